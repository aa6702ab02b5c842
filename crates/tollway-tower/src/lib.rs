//! Enforce in any tower service: a layer that limits requests and tells clients the truth.
//!
//! ```
//! use std::sync::Arc;
//! use tollway_core::{StoreLimiter, Policy};
//! use tollway_memory::{Capacity, MemoryStore, SystemClock};
//! use tollway_tower::{RateLimitLayer, keys::ClientAddress};
//!
//! let store = Arc::new(MemoryStore::new(Capacity::keys(10_000)));
//! let policy = Policy::parse("client", "100/1m burst 20")?;
//! let limiter = StoreLimiter::new([policy], store, Arc::new(SystemClock::new()));
//! let layer = RateLimitLayer::new(limiter, "client", ClientAddress::peer())?;
//! # let _ = layer;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What a request goes through
//!
//! ```text
//! request ─► exempt? ─► keys, costs ─► StoreLimiter ─┬─ allow ─► inner service ─► fields, settle
//!                                                    └─ deny ──► 429 problem+json, or wait
//! ```
//!
//! Invariants:
//! - Whatever a client sends and whatever a configured function does, each request gets an answer:
//!   a panic in a key, cost or exemption function is status 500, one in a settling function leaves
//!   the reserved cost charged, and the process lives on (with `panic = "unwind"`).
//! - A forwarding header from a peer that is not trusted never chooses the key.
//! - Several limits on one request are taken together or not at all.
//! - What was reserved is settled exactly once, also when the client hangs up.
//!
//! Deliberately absent: generics over stores, clocks and keys in the public types; reading request
//! bodies; metrics (see [`Builder::observe`]); work that outlives its request (see
//! `tollway-queue`).

#![forbid(unsafe_code)]

mod body;
mod demand;
mod error;
mod future;
mod gate;
mod guard;
mod head;
pub mod keys;
mod layer;
mod limit;
mod outage;
mod refusal;
mod reply;
mod service;
mod settle;
mod wait;

#[cfg(feature = "axum")]
pub use body::AxumBody;
pub use body::{AnyBody, Bodies, Body};
pub use error::{LayerError, LayerErrorKind};
pub use future::ResponseFuture;
pub use gate::Observation;
pub use head::{Head, ResponseHead};
pub use layer::{Builder, RateLimitLayer};
pub use limit::{Limit, Meter, MissingKey};
pub use refusal::{Reason, Refusal};
pub use service::RateLimit;
pub use tollway_core::fields::Dialect;

/// The program of the README is compiled and run with the tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;
