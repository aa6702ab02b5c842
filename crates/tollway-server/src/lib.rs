//! The Tollway service: RESP, HTTP and Envoy gRPC in front of one limiter.
//!
//! ```text
//!   listen -> server -> worker -> resp | http | grpc -> rules (Ask) -> decide (Decider) -> store
//! ```
//!
//! **Invariants.** Every front asks through [`rules`] and [`decide`], so lists, shadow mode, counts
//! and failures are the same everywhere. Everything a client sends is bounded before it is kept. A
//! malformed request is answered on its own and charges nothing.
//!
//! Deliberately absent: algorithms and states (`tollway-core`, the stores), arguments of the
//! command line (`tollway-cli`) and a thread that sweeps.

#![forbid(unsafe_code)]

pub mod adhoc;
pub mod auth;
pub mod buffers;
pub mod config;
mod counting;
pub mod dashboard;
pub mod decide;
pub mod descriptors;
pub mod drain;
pub mod endpoint;
pub mod enforcer;
pub mod fallback;
#[cfg(test)]
mod fuzzing;
pub mod grpc;
pub mod http;
mod http2;
mod lease_token;
mod listen;
pub mod logs;
pub mod metrics;
pub mod net;
mod open_files;
pub mod operator_changes;
pub mod outage;
pub mod pattern;
mod pressure;
mod process;
pub mod queues;
pub mod reload;
mod reservation_name;
pub mod resp;
pub mod rls;
pub mod rules;
pub mod run;
pub mod server;
pub mod service;
pub mod settings;
mod stale;
pub mod tls;
pub mod top;
#[cfg(feature = "otlp")]
pub mod traces;
mod wait;
pub mod worker;

/// The program of the README is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
