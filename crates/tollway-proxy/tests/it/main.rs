//! The proxy from outside: real clients, the fake upstream on loopback.

#![allow(clippy::unwrap_used, reason = "what tests share is test code too")]
#![allow(clippy::print_stdout, reason = "a test says why it skips")]

// What requests take, as clients state it and as answers tell it.
mod costs;
// An upstream that breaks its word, and what would bring a ban.
mod faults;
// Messages on their way through: framing, bodies, versions, the proxy's own pages.
mod messages;
// Limits, order, deadlines and fairness through the proxy.
mod limits;
// Budgets of language models.
mod models;
// Proxies that do not know of each other, on one token.
mod paced;
// Real clients through the proxy.
mod peers;
// A proxy in front of the fake upstream, and a client to speak to it.
mod rig;
// What people see: changes, reasons to wait, metrics, the page.
mod seen;
// The burst of the proxy in virtual time.
mod schedule;
// Upstreams that are away, answer too early, refuse often, or go on with another protocol.
mod hard_upstreams;
// The way out over TLS.
mod tls;
// Whom the proxy lets in: no web pages of others, no admin's token on its way to the upstream.
mod visitors;
