//! Shared store on Redis and Valkey: one round trip, cluster-safe, honest under failure.
//!
//! ```text
//!   charges ─> known denials? ─> units in hand? ─> request ─> router ─> node ─> batch ─> script
//!                   │                 │                       (slot)   (server)            │
//!                   v                 v                                                    v
//!   verdict <───────┴─────────────────┴── policies, if the store fails <── replay on the core
//! ```
//!
//! **Exact.** Scripts only add, carry and compare integers below 2^53. From the values that the
//! script found, `tollway_core` computes what is left and when to retry, so an answer cannot differ
//! from the one in memory.
//!
//! **One round trip.** A request is one command, whatever the number of its charges. While the
//! server is busy, requests of many callers are gathered, and one run of one script decides them.
//!
//! **Honest.** After an error the outcome is known, or reported as unknown. Each policy defines the
//! answer in that case, and the answer is marked as degraded. The bounds are in `docs/redis.md`.
//!
//! # Deliberately absent
//!
//! The client's clock; floating point; `MULTI` and optimistic locking, which need several round
//! trips and retry under load; server modules; the client library's own cluster mode, which sends a
//! script again after an I/O error and so may charge twice.

#![forbid(unsafe_code)]

mod batch;
mod call;
pub mod connection;
mod degraded;
mod denial;
mod encoded_policy;
mod gcra_value;
mod layout;
mod lease;
mod local_shares;
mod node;
mod numbers;
mod open_reservations;
mod packed_bytes;
mod persistence;
mod random_ids;
mod remote;
mod replay;
mod request;
mod round_trip;
mod router;
mod script;
mod script_numbers;
mod settings;
mod single_request;
mod split_policy;
mod state_value;
mod status;
mod store;
mod usage_book;
mod versioned_hash;

pub use connection::check_url;
pub use persistence::Persistence;
pub use remote::RemoteStore;
pub use settings::{Certificates, Denials, LeaseTerms, PolicySettings, Settings};
pub use status::Status;
pub use store::RedisStore;
pub use usage_book::{UsageBook, UsageBounds, UsageChange, UsageRow, UsageRows, UsageWindow};
pub use versioned_hash::{
    HashBounds, HashChange, HashChanged, HashContent, HashNews, HashVersion, LOOK_EVERY,
    VersionedHash,
};

/// The program of the README is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
