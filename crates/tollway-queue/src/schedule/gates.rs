//! Several limits that bind the same jobs, and what is in use of each.

use std::time::Duration;

use tollway_core::Timestamp;

use super::gate::{Gate, Opens};
use crate::Limit;

/// What is in use of several limits: a gate for each, in their order. Empty if nothing is in use of
/// any of them, so that an idle group costs nothing.
///
/// The limits stand elsewhere (a group's are mostly its queue's) and are passed to every call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gates(pub(crate) Vec<Gate>);

impl Gates {
    /// When a job of `weight` may pass all of them.
    pub(crate) fn opens(&self, limits: &[Limit], weight: u32, now: Timestamp) -> Opens {
        let opens = |(gate, limit): (&Gate, &Limit)| gate.opens(limit, weight, now);
        self.0.iter().zip(limits).map(opens).fold(Opens::At(Timestamp::MIN), Opens::max)
    }

    /// Makes the gates, if nothing has passed yet.
    pub(crate) fn fill(&mut self, limits: &[Limit]) {
        if self.0.is_empty() && !limits.is_empty() {
            self.0 = limits.iter().map(Gate::vacant).collect();
        }
    }

    /// Calls `change` with every gate; whether it said of any that this must be stored.
    pub(crate) fn change(
        &mut self,
        limits: &[Limit],
        mut change: impl FnMut(&mut Gate, &Limit) -> bool,
    ) -> bool {
        self.0.iter_mut().zip(limits).fold(false, |any, (gate, limit)| change(gate, limit) | any)
    }

    /// A call that was made at `made` was refused, and told to `wait` until an edge of the
    /// upstream's windows: of the shortest that are as long, or the longest there are.
    pub(crate) fn told(
        &mut self,
        limits: &[Limit],
        made: Timestamp,
        wait: Duration,
        now: Timestamp,
    ) {
        let window = |(index, limit): (usize, &Limit)| match limit {
            Limit::Window { window, .. } => Some((*window, index)),
            _ => None,
        };
        let windows = limits.iter().enumerate().filter_map(window);
        let fitting = windows.clone().filter(|(window, _)| *window >= wait).min();
        if let Some((_, index)) = fitting.or_else(|| windows.max())
            && let Some(gate) = self.0.get_mut(index)
        {
            gate.told(&limits[index], made, wait, now);
        }
    }

    /// From when on they say nothing; `None` while something is in flight.
    pub(crate) fn vacant_at(&self, limits: &[Limit]) -> Option<Timestamp> {
        let vacant_at = |(gate, limit): (&Gate, &Limit)| gate.vacant_at(limit);
        let mut all = self.0.iter().zip(limits).map(vacant_at);
        all.try_fold(Timestamp::MIN, |latest, at| Some(latest.max(at?)))
    }

    /// The clock was set back by `by` to `now`.
    pub(crate) fn set_back(&mut self, limits: &[Limit], by: Duration, now: Timestamp) {
        for (gate, limit) in self.0.iter_mut().zip(limits) {
            gate.set_back(limit, by, now);
        }
    }

    /// The limits are others from now on: what is in use of a limit of the same kind stays in use,
    /// and `running` jobs (with their weights) hold what there is of new slots.
    pub(crate) fn refit(&mut self, limits: &[Limit], running: &[(u64, u32)]) {
        let mut old = std::mem::take(&mut self.0).into_iter();
        let fit = |limit: &Limit| match old.next() {
            Some(gate) if gate.fits(limit) => gate,
            _ => {
                let mut gate = Gate::vacant(limit);
                running.iter().for_each(|(job, weight)| gate.hold(limit, *job, *weight));
                gate
            }
        };
        let fitted: Vec<Gate> = limits.iter().map(fit).collect();
        let is_vacant = |(gate, limit): (&Gate, &Limit)| *gate == Gate::vacant(limit);
        if !fitted.iter().zip(limits).all(is_vacant) {
            self.0 = fitted;
        }
    }
}
