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
//! | (none) | the words, the exact algorithms and the traits of `tollgate-core` |
//! | `memory` (default) | [`Limiter`], [`MemoryStore`]: limits in this process, sync and infallible |
//! | `tokio` | `Limiter::acquire().await` |
//!
//! A limiter over any store, shared between processes, is [`shared::Limiter`].

#![forbid(unsafe_code)]

pub use tollgate_core::*;

#[cfg(feature = "memory")]
pub use tollgate_memory::{
    Capacity, DumpError, DumpErrorKind, Limiter, MemoryStore, Pressure, SystemClock, WhenFull,
};

/// The limiter over any [`Store`], asked asynchronously.
pub mod shared {
    pub use tollgate_core::Limiter;
}

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
