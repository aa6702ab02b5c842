//! Both sides of a rate limit: enforce your own, obey other people's.
//!
//! ```
//! let limiter = tollway::Limiter::new("100/1m burst 20")?;
//! match limiter.check("alice") {
//!     tollway::Decision::Allow(left) => println!("{} left", left.remaining()),
//!     tollway::Decision::Deny { retry, .. } => println!("denied: {retry:?}"),
//! }
//! # Ok::<(), tollway::PolicyError>(())
//! ```
//!
//! This crate only re-exports, by feature:
//!
//! | feature | what it brings |
//! |---|---|
//! | (none) | the words, the exact algorithms and the traits; [`StoreLimiter`] over any store |
//! | `memory` (default) | `Limiter`, `MemoryStore`: limits in this process, sync and infallible |
//! | `tokio` | `Limiter::acquire().await` |
//! | `redis` | `tollway::redis`: limits that processes share through Redis, Valkey or the service |
//! | `tower` | `tollway::tower`: limits as middleware |
//! | `upstream` | `tollway::upstream`: profiles, budgets and pacing for limits of others |
//! | `reqwest` | the same for reqwest |
//! | `queue` | `tollway::queue`: jobs that wait for limits |
//! | `zones` | `tollway::zones`: calendar windows and recurring jobs in the time zones of the IANA |
//! | `server` | `tollway::server`: the service inside a program |
//!
//! A feature adds names and changes none: `Limiter` is the in-process limiter under every set of
//! features. `examples/` has one short program for each job.

#![forbid(unsafe_code)]

pub use tollway_core::{
    Algorithm, Answer, Charge, ChargeError, Cidr, CidrError, Clock, Cost, Decision, ErrorKind,
    Grant, Held, Key, KeyError, Mode, OnExpiry, OnStoreError, Outage, ParseQuotaError,
    ParseSizeError, Permit, PlanSource, Policy, PolicyError, Quota, QuotaError, Reservation,
    ReservationId, ReservationTerms, Reserved, Retry, SKEW, Settlement, Snapshot, State,
    SteadyClock, Store, StoreError, StoreLimiter, Timestamp, UnknownPolicy, Verdict, VirtualClock,
    decide_all, masked, parse_duration, parse_size,
};
pub use tollway_core::{
    calendar_window, civil, concurrency, fields, fixed_window, gcra, leaky_bucket, legacy, shares,
    sliding_window, spelling,
};

#[cfg(feature = "memory")]
pub use tollway_memory::{
    Capacity, DumpError, DumpErrorKind, DumpFile, Fill, Limiter, MemoryStore, Plans, Pressure,
    SystemClock, WhenFull,
};
#[cfg(feature = "queue")]
pub use tollway_queue as queue;
#[cfg(feature = "redis")]
pub use tollway_redis as redis;
#[cfg(feature = "server")]
pub use tollway_server as server;
#[cfg(feature = "tower")]
pub use tollway_tower as tower;
#[cfg(feature = "upstream")]
pub use tollway_upstream as upstream;
#[cfg(feature = "zones")]
pub use tollway_zones as zones;

/// The program of the README is compiled and run with the tests.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../README.md")]
struct Readme;
