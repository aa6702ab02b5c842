//! The Tollway service: RESP, HTTP and Envoy gRPC in front of one limiter.
//!
//! ```text
//!   bytes -> front (resp, http, grpc) -> rules (Ask) -> enforcer (Decider) -> Store
//!         <-                          <- Verdict     <- counting           <-
//! ```
//!
//! `ARCHITECTURE.md` walks `CL.THROTTLE` in memory and an Envoy call on Redis function by function.
//!
//! **Invariants.** Every front asks through `rules::Rules::ask` and `decide::Decider`, so lists,
//! shadow mode, counts and failures are the same everywhere. Whatever a client sends is bounded
//! before it is kept. A malformed request gets an answer of its own and charges nothing.
//!
//! Deliberately absent: algorithms and states (`tollway-core`, the stores), arguments of the
//! command line (`tollway-cli`) and a thread that sweeps.

#![forbid(unsafe_code)]

mod adhoc;
mod auth;
mod channel_body;
mod client_stream;
pub mod config;
mod config_line;
mod counting;
mod dashboard;
mod decide;
mod descriptors;
mod drain;
mod durable;
mod endpoint;
mod enforcer;
mod fallback;
mod front;
mod grpc;
mod http;
mod http2;
mod lease_token;
mod listen;
pub mod logs;
mod metrics;
mod net;
mod open_files;
mod operation;
mod outage;
mod own_quotas;
mod pattern;
mod pressure;
mod process;
mod queue_watch;
mod queues;
mod quota_streams;
mod reload;
mod resp;
mod rls;
mod rules;
mod run;
mod server;
mod service;
mod settings;
mod shared_usage;
mod snapshot_log;
mod stale;
#[doc(hidden)]
pub mod testing;
mod tls;
mod top;
#[cfg(feature = "otlp")]
mod traces;
mod wait;
mod worker;
mod xds;

pub use auth::{Auth, Role};
pub use config_line::ConfigLine;
pub use dashboard::ProxyAdmin;
pub use descriptors::{DescriptorValues, Domain, Limit, Node};
pub use durable::DurableStore;
pub use endpoint::{Endpoint, UnixSocket};
pub use enforcer::Backing;
pub use front::Front;
pub use metrics::{Counter, Metrics, Tally};
pub use own_quotas::Keeper as OwnQuotaKeeper;
pub use pattern::{KeyList, Pattern};
pub use queues::{PlannedLimit, PlannedQueue, QueuePlan, Queues, open_queue_store};
pub use reload::{Sighting, reload, reload_certificates};
pub use rules::{GateKey, Lists, OwnLimit, Rule, RuleOptions, Rules, Spacing};
pub use run::{Ended, until_told};
pub use server::{Bound, Server};
pub use service::{Origin, Service};
pub use settings::{Limits, Manner, Settings};
pub use shared_usage::UsageStore;
#[cfg(feature = "otlp")]
pub use traces::{Collector, Traces};
pub use xds::XdsSettings;

/// The program of the README is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
