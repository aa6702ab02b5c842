//! The crate from outside, with all its features.

#![allow(clippy::unwrap_used, reason = "what tests share is test code too")]
#![allow(clippy::print_stdout, reason = "a test says why it skips")]

// The rules that budgets keep, one by one.
mod budget_rules;
// Budgets against a truthful upstream in virtual time.
mod budgets;
// Budgets for async programs, in this process.
mod ledger;
// The line in front of a pacer, and the layers that use it.
mod pacing;
// What idle buckets take.
mod memory;
// The layer and the middleware on the fake upstream.
mod client;
// Real clients through the proxy.
mod peers;
// A proxy in front of the fake upstream, on loopback.
mod proxy;
// An upstream that breaks its word, and what would bring a ban.
mod proxy_faults;
// Messages on their way through: framing, bodies, versions, the proxy's own pages.
mod proxy_http;
// Limits, order, deadlines and fairness through the proxy.
mod proxy_limits;
// The burst of the proxy in virtual time.
mod proxy_schedule;
// The way out over TLS.
mod proxy_tls;
// Whom the proxy lets in: no web pages of others, no admin's token on its way to the upstream.
mod proxy_visitors;
// Profiles on recorded responses.
mod profiles;
// A truthful upstream in virtual time.
mod world;
// Budgets shared through real servers.
mod shared;
