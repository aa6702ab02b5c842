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
// Profiles on recorded responses.
mod profiles;
// Processes whose store is gone, against the same upstream, in virtual time.
mod outages;
// A fleet of processes against the same upstream, in virtual time.
mod replicas;
// A truthful upstream in virtual time.
mod world;
// Budgets shared through real servers.
mod shared;
