//! What an upstream has left: claim before a request, observe after it.
//!
//! [`Budgets`] is the state machine of one credential: pure, no clock, no runtime, driven by calls
//! that carry the time. [`Ledger`] is the seam for async programs: [`LocalLedger`] drives a
//! [`Budgets`] in this process, `shared` does the same on Redis for a fleet.

mod bucket;
mod budgets;
mod change;
mod claim;
pub(crate) mod correction;
mod dispatches;
#[cfg(feature = "redis")]
pub(crate) mod document;
#[cfg_attr(not(feature = "redis"), allow(dead_code, unused_macros, unused_imports))]
pub(crate) mod encoding;
mod estimate;
mod grant;
mod hidden_limit;
mod index;
mod learn;
mod ledger;
#[cfg(feature = "ledger")]
mod local;
mod meter;
mod names;
mod pacing;
pub(crate) mod part;
pub(crate) mod room;
mod settings;
mod skew;
mod sub_limit;
mod table;
mod view;
mod why;

#[cfg(feature = "redis")]
pub(crate) use names::Names;

pub use budgets::{Budgets, Granted, Ticket, Waiter};
pub use change::{Change, ChangeKind};
pub use claim::{Claim, Priority, Reason, Refusal};
pub use correction::Correction;
pub use ledger::{BoxFuture, Fate, Ledger, LedgerError, Permit, Settle};
#[cfg(feature = "ledger")]
pub use local::LocalLedger;
pub use room::BucketRoom;
pub use settings::Settings;
pub use view::{BucketView, DimensionView, Knowledge, LastRefusal, Page, WaitCause, Why};
