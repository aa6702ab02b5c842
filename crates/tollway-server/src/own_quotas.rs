//! Quotas of one's own: for one key or a pattern, set while the service runs, shared and kept.
//!
//! ```text
//!   HTTP, RESP, page --Asked--> Keeper::change --kept--> file beside the snapshot | shared hash
//!                                    `--in force--> Rules (OwnQuotas) --> every request
//!   another node's change --push, or a look--> Keeper::follow --in force--> Rules
//! ```
//!
//! Keys that an operator bans are kept and shared in the same way: they are denied by all policies.
//!
//! They are kept where the states are kept, and before anybody hears that they are set: beside the
//! snapshot for states in memory, in the store for states on Redis or Valkey. Without either they
//! end with the process, as the states do. They come before what the configuration says of a key.
//!
//! **Bounds.** So many quotas, patterns among them, and changes in the list; keys, notes and
//! quotas of so many bytes. At a bound a change is refused and nothing else happens.

mod change;
mod checked_lines;
mod entry;
mod file;
mod in_force;
mod keeper;
mod numbers;
mod planned;

pub(crate) use change::change;
pub(crate) use entry::{Whom, millis, moment, whom_json};
pub(crate) use in_force::{Ban, Own, OwnQuotas};
pub use keeper::Keeper;
pub(crate) use keeper::{Asked, Changed, Refused, What};

/// Quotas of one's own and bans that there may be.
const QUOTAS_MAX: usize = 10_000;
/// Those among them that are for patterns: each request may have to look at all of a policy's.
const PATTERNS_MAX: usize = 256;
/// Changes that are listed.
const CHANGES_MAX: usize = 1_000;
