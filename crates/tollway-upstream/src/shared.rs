//! Budgets shared through Redis and Valkey, key-compatible with Spectacles.
//!
//! ```text
//!   claim ──> Lane (waiters of this process) ──one script──> remaining, limit, global   Spectacles
//!                ^                                           leases, window, line       ours
//!                └── woken: first come, first served,        │
//!                    as many as there are slots   <──publish─┘<── observe, leave, mend
//! ```
//!
//! **Compatible.** The keys `[prefix:]global`, `[prefix:]<route>:remaining` and
//! `[prefix:]<route>:limit` mean what they mean to Spectacles clients of both versions, which may
//! go on beside this. Everything else is kept in keys of our own, drawn in `scripts/bucket.lua`.
//!
//! **Crash-safe.** Whoever is under way has a lease. When it runs out without an answer, one more
//! request is sent to find out; no bucket is stuck for longer, whoever has stranded it.
//!
//! **Ordered.** An answer counts for the window it is from, found by the upstream's own reset and
//! by when its request was let go; a late one never touches a newer window.
//!
//! **Not open.** While the store is gone each process keeps to its part of every limit.
//!
//! # Deliberately absent
//!
//! The client's clock in anything that the fleet shares; `SET` then `PEXPIRE`, which loses windows;
//! a poll, except for what old clients write without telling anybody; weights between clients of
//! different processes: between processes it is first come, first served.

mod claim_loop;
mod costs;
mod encoded_answer;
mod fallback;
mod fleet;
mod inspect;
mod keys;
mod lane;
mod ledger;
mod names;
mod parts;
mod script;
mod settings;
mod token_batch;
mod upkeep;
mod waiters;

pub use fleet::Fleet;
pub use keys::Prefix;
pub use ledger::RedisLedger;
pub use settings::{Dialect, GlobalRate, Naming, Settings};
