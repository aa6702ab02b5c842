//! Charges to trees of owners: to the buckets on an owner's path, which are states like others.

use tollway_core::shares::Expanded;
use tollway_core::{Algorithm, Charge, Cost, Grant, Snapshot, State, Timestamp};

use super::MemoryStore;
use super::request::RequestParts;

/// Whether the key of a charge is an owner in a tree.
#[inline]
pub(super) const fn is_shared(charge: &Charge<'_>) -> bool {
    matches!(charge.policy.algorithm(), Algorithm::Shares(_))
}

impl MemoryStore {
    /// Takes as many units as there are, up to the cost of the charge.
    pub(super) fn take_shared(&self, charge: &Charge<'_>, now: Timestamp) -> Grant {
        let charges = [*charge];
        let parts = RequestParts::new(&charges);
        let mut cost = Cost::ONE;
        let verdict = self.request_by(&parts, now, |slots, states, at| {
            let wanted = Expanded::of(&charges);
            cost = Grant::affordable(charge.cost, wanted.report(0, slots, states, at).remaining());
            Expanded::of(&[charge.cost(cost)]).decide(slots, states, 0, at)
        });
        match verdict {
            Some(verdict) => Grant::new(verdict.decisions()[0], cost),
            None => self.under_newer(&charges, now, |charges| self.take(&charges[0], now)),
        }
    }

    /// Gives the charge's units back to every bucket on its owner's path; what is left then.
    pub(super) fn refund_shared(&self, charge: &Charge<'_>, now: Timestamp) -> Snapshot {
        self.amend_path(charge, now, |algorithm, state, at| {
            state.refund(algorithm, charge.cost.get(), None, at);
        });
        self.peek(charge, now)
    }

    /// Forgets what was taken from the buckets on an owner's path. The root's among them: a floor
    /// must not have more than what is above it.
    pub(super) fn reset_shared(&self, charge: &Charge<'_>, now: Timestamp) {
        self.amend_path(charge, now, |algorithm, state, at| state.clear(algorithm, at));
    }

    /// From the root down: what is above a floor never has less than the floor.
    fn amend_path(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
        amend: impl Fn(&Algorithm, &mut State, Timestamp),
    ) {
        for part in Expanded::of(core::slice::from_ref(charge)).charges().iter().rev() {
            self.amend(&self.asked(part), now, &amend);
        }
    }
}
