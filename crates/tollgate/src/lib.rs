//! Both sides of a rate limit: enforce your own, obey other people's.
//!
//! ```
//! let limiter = tollgate::Limiter::new("100/1m burst 20")?;
//! match limiter.check("alice") {
//!     tollgate::Decision::Allow(left) => println!("{} left", left.remaining()),
//!     tollgate::Decision::Deny { retry, .. } => println!("denied: {retry:?}"),
//! }
//! # Ok::<(), tollgate::PolicyError>(())
//! ```
//!
//! This crate only re-exports, by feature:
//!
//! | feature | what it brings |
//! |---|---|
//! | (none) | the words, the exact algorithms and the traits; [`StoreLimiter`] over any store |
//! | `memory` (default) | `Limiter`, `MemoryStore`: limits in this process, sync and infallible |
//! | `tokio` | `Limiter::acquire().await` |
//! | `redis` | `tollgate::redis`: limits that processes share through Redis, Valkey or the service |
//! | `tower` | `tollgate::tower`: limits as middleware |
//! | `upstream` | `tollgate::upstream`: profiles, budgets and pacing for limits of others |
//! | `reqwest` | the same for reqwest |
//! | `queue` | `tollgate::queue`: jobs that wait for limits |
//! | `server` | `tollgate::server`: the service inside a program |
//!
//! A feature adds names and changes none: `Limiter` is the one of this process under every set of
//! them.

#![forbid(unsafe_code)]

pub use tollgate_core::{
    Algorithm, Answer, Charge, ChargeError, Cidr, CidrError, Clock, Cost, Decision, ErrorKind,
    Grant, Held, Key, KeyError, Mode, OnExpiry, OnStoreError, Outage, ParseQuotaError, Permit,
    Policy, PolicyError, Quota, QuotaError, Reservation, ReservationId, ReservationTerms, Reserved,
    Retry, SKEW, Settlement, Snapshot, State, SteadyClock, Store, StoreError, StoreLimiter,
    Timestamp, Verdict, VirtualClock, decide_all, masked, parse_duration,
};
pub use tollgate_core::{
    concurrency, fields, fixed_window, gcra, leaky_bucket, legacy, sliding_window,
};

#[cfg(feature = "memory")]
pub use tollgate_memory::{
    Capacity, DumpError, DumpErrorKind, DumpFile, Fill, Limiter, MemoryStore, Pressure,
    SystemClock, WhenFull,
};
#[cfg(feature = "queue")]
pub use tollgate_queue as queue;
#[cfg(feature = "redis")]
pub use tollgate_redis as redis;
#[cfg(feature = "server")]
pub use tollgate_server as server;
#[cfg(feature = "tower")]
pub use tollgate_tower as tower;
#[cfg(feature = "upstream")]
pub use tollgate_upstream as upstream;

/// The README's code is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So is the book's.
#[cfg(all(doctest, feature = "memory"))]
mod book {
    #[doc = include_str!("../../../docs/how-to/in-process.md")]
    struct InProcess;
    #[doc = include_str!("../../../docs/migrating.md")]
    struct Migrating;
}
