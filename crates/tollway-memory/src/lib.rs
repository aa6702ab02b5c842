//! In-process store and system clock for Tollway: sync, infallible, bounded; no async runtime.
//!
//! [`Limiter`] is the short way: one policy, one line. [`MemoryStore`], on which it is built, has
//! any number of policies, several charges in one request, batches, reservations, and a file that
//! survives a restart.
//!
//! Invariants: a call never waits for I/O, never allocates for a key that is known already (GCRA,
//! leaky bucket, fixed window), and never stops to sweep. Memory stays under [`Capacity`], whatever
//! keys come. Under those three algorithms a denied charge writes nothing that another core reads.
//!
//! Deliberately absent: growth beyond the capacity, background threads, and the keys themselves (a
//! seeded 64-bit fingerprint stands for each).

mod capacity;
mod clock;
mod hash;
mod limiter;
mod numbers;
mod owners;
mod packed;
#[cfg(not(tollway_loom))]
mod pages;
mod plans;
mod reservations;
mod slot;
mod store;
mod sync;
mod table;
mod variable_states;

#[cfg(feature = "tokio")]
mod acquire;

pub use capacity::{Capacity, Pressure, WhenFull};
pub use clock::SystemClock;
pub use limiter::Limiter;
pub use plans::Plans;
pub use store::{DumpError, DumpErrorKind, DumpFile, Fill, MemoryStore};

/// The program of the README is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
