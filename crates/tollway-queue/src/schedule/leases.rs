//! Leases that are not over, and when each of them expires.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tollway_core::Timestamp;

use super::id_hash::IdHash;
use crate::job::Progress;

/// A lease that was granted.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) worker: Arc<str>,
    pub(crate) leased_at: Timestamp,
    pub(crate) expires_at: Timestamp,
    pub(crate) progress: Option<Progress>,
    pub(crate) cancelled: bool,
    /// How often limits had been changed when it was granted; unknown after a restart.
    pub(crate) refits: Option<u64>,
}

/// Leases that are not over, by job.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// Only the methods below change when one expires, which the order beside it repeats.
    pub(crate) running: HashMap<u64, Running, IdHash>,
    expiries: BTreeSet<(Timestamp, u64)>,
}

impl Leases {
    /// The jobs that run.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.running.keys().copied()
    }

    /// The lease that ends first: when, and whose.
    pub(crate) fn first(&self) -> Option<(Timestamp, u64)> {
        self.expiries.first().copied()
    }

    pub(crate) fn insert(&mut self, id: u64, running: Running) {
        self.expiries.insert((running.expires_at, id));
        self.running.insert(id, running);
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Running> {
        let running = self.running.remove(&id)?;
        self.expiries.remove(&(running.expires_at, id));
        if self.running.is_empty() {
            // Gives the memory of a burst back.
            *self = Self::default();
        }
        Some(running)
    }

    /// Lets a lease last until `until`, or longer if it does already.
    pub(crate) fn prolong(&mut self, id: u64, until: Timestamp) -> Option<&Running> {
        let running = self.running.get_mut(&id)?;
        self.expiries.remove(&(running.expires_at, id));
        running.expires_at = running.expires_at.max(until);
        self.expiries.insert((running.expires_at, id));
        Some(running)
    }

    /// The clock was set back by `by`: leases last as long as before.
    pub(crate) fn set_back(&mut self, by: Duration) {
        self.expiries.clear();
        for (id, running) in &mut self.running {
            running.leased_at = running.leased_at.before(by);
            running.expires_at = running.expires_at.before(by);
            // In which window it was counted is not known any more.
            running.refits = None;
            self.expiries.insert((running.expires_at, *id));
        }
    }
}
