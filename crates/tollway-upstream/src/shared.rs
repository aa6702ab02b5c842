//! Budgets shared through Redis and Valkey, key-compatible with Spectacles.
//!
//! ```text
//!   claim, answer ──> Group ──> Replica ── what is there, what is to be there ──> commit.lua
//!                       ^          ^ └── Documents: Budgets of a group, read and written    │
//!                       │          └────────────── done, or what is there now ──────────────┤
//!                       └── these may go, look again <──publish── a call of another process ┘
//! ```
//!
//! **One ledger, two stores.** What may go is decided by [`Budgets`](crate::budget::Budgets), here
//! as in one process. The store compares documents with those that a decision was made from, and
//! puts others in their place; it decides nothing.
//!
//! **For everybody.** Whoever makes a call decides for the whole fleet: it lets go the requests of
//! other processes too, in order of arrival, and tells them.
//!
//! **Crash-safe.** What a process that is gone has in the documents is given up by any other that
//! waits there. Nothing is lost with a message, a reply or the store: each process compares the
//! documents with what it knows.
//!
//! **Compatible.** The keys `[prefix:]global`, `[prefix:]<route>:remaining` and
//! `[prefix:]<route>:limit` mean what they mean to Spectacles clients of both versions, which may
//! go on beside this. Everything else is drawn in `scripts/commit.lua`.
//!
//! **Fail-safe.** While the store is unreachable, each process keeps to its share of every limit.
//!
//! **Fair.** Within a process priorities and weights mean what they mean without a store (see
//! `fair_queue`). Between processes claims are served in order of arrival; a priority there moves a
//! claim ten seconds forward or back.
//!
//! # Deliberately absent
//!
//! - The client's clock in anything that the fleet shares.
//! - Decisions in scripts: they differed from those of one process, case by case.
//! - Locks: a process that holds one may be gone.
//! - Polling, except for keys that old clients write without publishing a message.

mod call;
mod claim_queue;
mod counter;
mod documents;
mod fallback;
mod fleet;
mod group;
mod inspect;
mod keys;
mod ledger;
mod ledger_state;
mod names;
mod old_clients;
mod peers;
#[doc(hidden)]
pub mod replica;
mod script;
mod server_clock;
mod settings;
mod stored;
mod token_batch;
mod token_waits;
mod upkeep;

pub use fleet::Fleet;
pub use keys::Prefix;
pub use ledger::RedisLedger;
pub use settings::{GlobalRate, Naming, Settings, SpectaclesVersion};
