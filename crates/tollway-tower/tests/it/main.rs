//! Integration tests of the layer, by what they look at.

#![allow(clippy::duplicate_mod, reason = "each example is a program and brings its own client")]

/// Header values that are not ASCII, absurd numbers, absent keys, panicking functions.
mod bad_input;
/// Permits: how many requests may be in flight at once.
mod concurrency;
/// The conformance scenarios of tollway-sim, asked through HTTP.
mod conformance;
/// The examples, run to their end.
mod examples;
/// Which limits apply, what they cost, what is exempt, what shadows do.
mod limits;
/// Reserve, then charge what the response really cost.
mod settling;
/// The header table of Sharkey, through a server.
mod sharkey;
/// Forged forwarding headers, with and without trusted proxies.
mod spoofing;
/// Stores that answer late, or not at all.
mod stores;
/// Waiting out a denial, and shedding load.
mod waiting;
/// Exact bytes over loopback, HTTP/1.1 and HTTP/2, axum and bare hyper.
mod wire;

/// A clock, a limiter, requests and servers for all of the above.
mod world;
