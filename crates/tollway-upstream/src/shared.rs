//! Budgets shared through Redis and Valkey, key-compatible with Spectacles.
//!
//! ```text
//!   claim ──> BucketQueue (of this process) ──script──────> remaining, limit, global  Spectacles
//!                ^                                          leases, window, queue     ours
//!                └── woken in order of arrival,             │
//!                    as many as there are slots <──publish──┘<── observe, leave, mend
//! ```
//!
//! **Compatible.** The keys `[prefix:]global`, `[prefix:]<route>:remaining` and
//! `[prefix:]<route>:limit` mean what they mean to Spectacles clients of both versions, which may
//! go on beside this. Everything else is kept in keys of our own, drawn in `scripts/bucket.lua`.
//!
//! **Crash-safe.** Every request under way has a lease. If the lease ends without an answer, the
//! next request goes out to learn the state; a crashed process blocks a bucket for one lease at
//! most.
//!
//! **Ordered.** An answer counts for the window that it belongs to. The window is found by the
//! upstream's own reset and by the time at which the request left; a late answer never changes a
//! newer window.
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
//! - `SET` followed by `PEXPIRE`: a crash between the two leaves a counter that never ends.
//! - Polling, except for keys that old clients write without publishing a message.

mod bucket_queue;
mod claim_loop;
mod claim_queue;
mod costs;
mod encoded_answer;
mod fallback;
mod fleet;
mod inspect;
mod keys;
mod ledger;
mod ledger_state;
mod names;
mod script;
mod settings;
mod token_batch;
mod upkeep;

pub use fleet::Fleet;
pub use keys::Prefix;
pub use ledger::RedisLedger;
pub use settings::{GlobalRate, Naming, Settings, SpectaclesVersion};
