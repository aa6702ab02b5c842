//! Where the policy of a key comes from, if keys have plans of their own.

use alloc::sync::Arc;

use crate::{Policy, Timestamp};

/// Says which policy holds for a key: a plan of a customer, from a table or a database.
///
/// Asked before a decision, so it must answer at once; `tollway_memory::Plans` keeps what it has
/// been told. A plan that has the name of the policy in whose place it stands shares its state: who
/// changes the plan keeps what was used, as the new one's
/// [`on_change`](Policy::on_change) says. Make it with [`Policy::as_plan`], so that a key may go
/// back to a plan that was in use before; `tollway_memory::Plans` does so by itself.
pub trait PlanSource: Send + Sync {
    /// The policy of `key`; `None` for the one that holds for everybody else.
    fn plan(&self, key: &[u8], now: Timestamp) -> Option<Arc<Policy>>;
}
