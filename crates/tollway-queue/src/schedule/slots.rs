//! Response-anchored slots: each is free again one window after the response of its call.
//!
//! ```text
//!   call k       |--busy--|<------- window ------->|              dispatch k+N not before here
//!                dispatch  response (the anchor)    free
//! ```
//!
//! The upstream counts a call at some moment between dispatch and response, so two calls that use
//! the same slot are counted at least a window apart, whatever the phase of the upstream's windows.
//! Slots that free at the edges of a grid instead are the reservoir of a window (see `cooling`).
//!
//! **Invariants.** Anchors are in order; only those younger than a window are kept, so idle slots
//! are nothing at all. Who holds a slot is written by name: to release twice, or after the limit
//! was changed, changes nothing. Beyond [`EXACT_MAX`] slots, anchors are rounded up to a 64th of
//! the window, so that memory is bounded and the loss is at most that.

use std::collections::VecDeque;
use std::time::Duration;

use tollway_core::Timestamp;

use super::cooling::Cooling;
use super::in_flight::InFlight;

/// Up to how many slots every anchor is kept as it is.
const EXACT_MAX: u32 = 64;

/// What is in use of some slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    /// When calls were answered and how many units they had, oldest first.
    anchors: VecDeque<(Timestamp, u32)>,
    pub(crate) in_flight: InFlight,
}

impl Slots {
    /// Slots whose calls were answered at `anchors`, and what is in flight.
    #[cfg(any(feature = "redb", feature = "redis"))]
    pub(crate) fn answered(
        anchors: impl IntoIterator<Item = (Timestamp, u32)>,
        in_flight: InFlight,
    ) -> Self {
        Self { anchors: anchors.into_iter().collect(), in_flight }
    }

    #[cfg(any(feature = "redb", test))]
    pub(crate) fn anchors(&self) -> impl ExactSizeIterator<Item = (Timestamp, u32)> + '_ {
        self.anchors.iter().copied()
    }

    /// The call of `job` was answered at `at`.
    pub(crate) fn answer(&mut self, job: u64, at: Timestamp, slots: u32, cooling: Cooling) {
        let units = self.in_flight.release(job);
        if units == 0 || cooling.window().is_zero() {
            return;
        }
        let at = if slots > EXACT_MAX { round_up(at, cooling.window()) } else { at };
        let index = self.anchors.partition_point(|(anchor, _)| *anchor <= at);
        match index.checked_sub(1).and_then(|last| self.anchors.get_mut(last)) {
            Some((anchor, answered)) if *anchor == at => *answered += units,
            _ => self.anchors.insert(index, (at, units)),
        }
    }

    /// When `units` are free; `None` if that needs an answer to a call in flight.
    pub(crate) fn ready_at(&self, units: u32, slots: u32, cooling: Cooling) -> Option<Timestamp> {
        let wanted = u64::from(units.min(slots)) + self.in_flight.units() + self.cooling_units();
        let mut missing = wanted.saturating_sub(u64::from(slots));
        if missing == 0 {
            return Some(Timestamp::MIN);
        }
        for (anchor, units) in &self.anchors {
            missing = missing.saturating_sub(u64::from(*units));
            if missing == 0 {
                return Some(cooling.frees(*anchor));
            }
        }
        None
    }

    /// When the slot of the `index`-th unit from now is free, if every answer in flight comes at
    /// `answers_at`; `index` is less than `slots`.
    pub(crate) fn free_at(
        &self,
        index: u64,
        slots: u32,
        cooling: Cooling,
        base: Timestamp,
        answers_at: Timestamp,
    ) -> Timestamp {
        let used = self.in_flight.units() + self.cooling_units();
        let mut passed = u64::from(slots).saturating_sub(used);
        if index < passed {
            return base;
        }
        for (anchor, units) in &self.anchors {
            passed += u64::from(*units);
            if index < passed {
                return cooling.frees(*anchor).max(base);
            }
        }
        cooling.frees(answers_at).max(base)
    }

    fn cooling_units(&self) -> u64 {
        self.anchors.iter().map(|(_, units)| u64::from(*units)).sum()
    }

    /// Forgets anchors whose units are free.
    pub(crate) fn forget(&mut self, now: Timestamp, cooling: Cooling) {
        while self.anchors.front().is_some_and(|(anchor, _)| cooling.frees(*anchor) <= now) {
            self.anchors.pop_front();
        }
        if self.anchors.is_empty() {
            self.anchors = VecDeque::new();
        }
    }

    /// From when on these slots say nothing; `None` while something is in flight.
    pub(crate) fn vacant_at(&self, cooling: Cooling) -> Option<Timestamp> {
        if self.in_flight.units() > 0 {
            return None;
        }
        Some(self.anchors.back().map_or(Timestamp::MIN, |(anchor, _)| cooling.frees(*anchor)))
    }

    /// The clock was set back by `by`: what was answered stays answered as long ago.
    pub(crate) fn set_back(&mut self, by: Duration) {
        for (anchor, _) in &mut self.anchors {
            *anchor = anchor.before(by);
        }
    }
}

fn round_up(at: Timestamp, window: Duration) -> Timestamp {
    let grid_ns = (window.as_nanos() as u64 / 64).max(1);
    Timestamp::from_nanos(at.as_nanos().div_ceil(grid_ns).saturating_mul(grid_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Cooling = Cooling::After(Duration::from_secs(10));

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_slot_is_free_a_window_after_the_answer() {
        let mut slots = Slots::default();
        slots.in_flight.hold(1, 1);
        slots.in_flight.hold(2, 1);
        assert_eq!(slots.ready_at(1, 2, WINDOW), None);
        slots.answer(2, at(300), 2, WINDOW);
        slots.answer(1, at(500), 2, WINDOW);
        assert_eq!(slots.ready_at(1, 2, WINDOW), Some(at(10_300)));
        assert_eq!(slots.ready_at(2, 2, WINDOW), Some(at(10_500)));
        slots.forget(at(10_500), WINDOW);
        assert_eq!(slots, Slots::default());
    }

    #[test]
    fn a_slot_is_released_once_by_whom_holds_it() {
        let mut slots = Slots::default();
        slots.in_flight.hold(1, 3);
        assert_eq!(
            (slots.in_flight.release(2), slots.in_flight.release(1), slots.in_flight.release(1)),
            (0, 3, 0)
        );
        slots.answer(1, at(0), 3, WINDOW);
        assert_eq!(slots, Slots::default());
    }

    #[test]
    fn many_slots_are_remembered_in_few_anchors_never_too_early() {
        let mut slots = Slots::default();
        for job in 0..10_000 {
            slots.in_flight.hold(job, 1);
            slots.answer(job, at(job), 10_000, WINDOW);
            let newest = slots.anchors().last().map(|(anchor, _)| anchor);
            assert!(newest >= Some(at(job)));
        }
        assert!(slots.anchors().len() <= 65);
    }
}
