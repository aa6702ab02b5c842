//! How every part of Tollway reaches a Redis server: dialling, failure rules, scripts, batches.
//!
//! ```text
//!   callers ──> Batcher ──> Client ──> EVALSHA, or EVAL where the server does not know the Script
//!                             │  ^
//!               Failure <─────┘  └── Dialer: an address, Sentinel, the holder of a cluster's slot
//!                  │
//!                  └──> OutageRecord: since when, and why
//! ```
//!
//! The store, the remote store, the queue's backend and the shared ledger of `tollway-upstream`
//! keep their scripts and what goes in and out of them. Everything that can go wrong between them
//! and a server is decided here, once:
//!
//! * [`Dialer`] finds the server, connects and makes sure that it may be written to.
//! * [`Client`] keeps one connection. A broken one is replaced by a task of the client's own, with
//!   growing pauses, so that no caller's patience bounds a dial and no caller pays for a retry.
//! * [`Failure`] says what an error means, also when it is hidden within the error of a script.
//! * [`Script`] is sent by its hash, and with its source to a server that does not know the hash.
//! * [`Batcher`] gathers what is asked while round trips are under way into the next one.

mod address;
mod batcher;
mod client;
mod cluster;
mod dial;
mod failure;
mod outage;
mod reconnecting;
mod script;

pub use address::check_url;
pub(crate) use address::{at, misuse, unavailable};
pub use batcher::{BatchBounds, Batcher, Rejected};
pub use client::{Client, ClientSettings, Probe};
pub(crate) use cluster::{Range, slots};
pub use dial::Dialer;
pub use failure::{Failure, FailureKind};
pub(crate) use failure::{Redirect, unknown};
pub use outage::{OutageRecord, Proof};
pub use reconnecting::Changes;
pub use script::Script;
