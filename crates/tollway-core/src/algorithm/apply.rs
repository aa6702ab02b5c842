//! What every algorithm can do with a state, in place; most do it by way of macros.

use core::fmt;
use core::time::Duration;

use super::Parameters;
use crate::carry::Used;
use crate::decision::{Decision, Retry, Snapshot};
use crate::{Cost, Timestamp};

/// What every algorithm can do with a state, in place.
pub(crate) trait Apply: fmt::Display + Sized {
    type State: Default;

    /// The algorithm as configurations name it.
    const NAME: &'static str;

    /// The name with what sets this variant of the algorithm apart.
    fn label(&self) -> &'static str {
        Self::NAME
    }

    fn limit(&self) -> u64;
    fn window(&self) -> Option<(u64, Duration)>;
    /// The three numbers that make it, for [`Self::from_numbers`].
    fn numbers(&self) -> [u64; 3];
    fn from_numbers(numbers: [u64; 3]) -> Option<Self>;
    /// The same rate over `shares` times as long, with room for `units`.
    fn share(&self, shares: u32, units: u64) -> Option<Self>;
    /// Reads it from parameters with names. All of them are read before it gives up: one mistake
    /// must not hide the next.
    fn from_parameters(given: &dyn Parameters) -> Option<Self>;

    fn decide(&self, it: &mut Self::State, cost: Cost, id: u128, now: Timestamp) -> Decision;
    fn count(&self, it: &mut Self::State, cost: Cost, id: u128, now: Timestamp) -> Snapshot;
    fn retry(&self, it: &Self::State, cost: Cost, now: Timestamp) -> Option<Retry>;
    fn peek(&self, it: &Self::State, now: Timestamp) -> Snapshot;
    fn refund(&self, it: &mut Self::State, units: u64, at: Option<Timestamp>, now: Timestamp);
    fn vacant_at(&self, it: &Self::State) -> Timestamp;
    fn clear(&self, it: &mut Self::State, now: Timestamp);
    fn rewind(&self, it: &mut Self::State, now: Timestamp);
    /// What a change of numbers takes along as of `at`, which is not before its moment.
    fn used(&self, it: &Self::State, at: Timestamp) -> Used;
    /// The state of a key that has used this much as of `at`, and of no time before.
    fn having_used(&self, used: Used, at: Timestamp) -> Self::State;

    /// A state that does not record when it was changed has no moment of its own.
    fn moment(&self, _it: &Self::State, now: Timestamp) -> Timestamp {
        now
    }

    fn forget_past(&self, it: &mut Self::State, now: Timestamp) {
        if self.vacant_at(it) <= now {
            *it = Self::State::default();
        }
    }
}

/// Implements the part of [`Apply`] that is alike for algorithms whose states are small values.
macro_rules! apply_by_value {
    () => {
        type State = State;

        fn decide(&self, it: &mut State, cost: Cost, _: u128, now: Timestamp) -> Decision {
            let (decision, state) = Self::decide(self, *it, cost, now);
            *it = state;
            decision
        }

        fn count(&self, it: &mut State, cost: Cost, _: u128, now: Timestamp) -> Snapshot {
            let (snapshot, state) = Self::count(self, *it, cost, now);
            *it = state;
            snapshot
        }

        fn retry(&self, it: &State, cost: Cost, now: Timestamp) -> Option<Retry> {
            Self::decide(self, *it, cost, now).0.retry()
        }

        fn peek(&self, it: &State, now: Timestamp) -> Snapshot {
            Self::peek(self, *it, now)
        }

        fn vacant_at(&self, it: &State) -> Timestamp {
            Self::vacant_at(self, *it)
        }

        fn clear(&self, it: &mut State, now: Timestamp) {
            *it = Self::clear(self, *it, now);
        }

        fn rewind(&self, it: &mut State, now: Timestamp) {
            *it = Self::rewind(self, *it, now);
        }
    };
}

/// The same for algorithms whose states are changed in place.
macro_rules! apply_in_place {
    () => {
        type State = State;

        fn retry(&self, it: &State, cost: Cost, now: Timestamp) -> Option<Retry> {
            Self::retry(self, it, cost, now)
        }

        fn peek(&self, it: &State, now: Timestamp) -> Snapshot {
            Self::peek(self, it, now)
        }

        fn vacant_at(&self, it: &State) -> Timestamp {
            Self::vacant_at(self, it)
        }

        fn clear(&self, it: &mut State, now: Timestamp) {
            Self::clear(self, it, now);
        }

        fn rewind(&self, it: &mut State, now: Timestamp) {
            Self::rewind(self, it, now);
        }

        fn moment(&self, it: &State, now: Timestamp) -> Timestamp {
            Self::moment(self, it, now)
        }
    };
}

/// Makes `peek` and `count` of a window's `roll` and `snapshot`; its state counts units in
/// `$taken`.
macro_rules! peek_and_count_by_window {
    ($taken:ident) => {
        /// What there is to report, with nothing taken.
        pub fn peek(&self, state: State, now: Timestamp) -> Snapshot {
            self.snapshot(self.roll(state, now), now)
        }

        /// Takes `cost` units whether or not the window has them.
        #[must_use]
        pub fn count(&self, state: State, cost: Cost, now: Timestamp) -> (Snapshot, State) {
            let window = self.roll(state, now);
            let taken = State { $taken: window.$taken.saturating_add(cost.get()), ..window };
            (self.snapshot(taken, now), taken)
        }
    };
}

pub(crate) use {apply_by_value, apply_in_place, peek_and_count_by_window};
