//! What a key keeps when the numbers of its policy change: pure functions for every pair of
//! algorithms.
//!
//! A state belongs to the name of a policy. When its numbers, period, burst or algorithm change,
//! [`State::carry`] says what the state is under the new ones:
//!
//! ```text
//!   used 6 of 10             used under 20                     under 3
//!   as-is                    6: 14 are left                    3: nothing is left, the rest is cut
//!   proportional             12: 8 are left                    2, rounded up: 1 is left
//!   reset                    0: 20 are left                    0: 3 are left
//! ```
//!
//! | from, to | what is kept |
//! |---|---|
//! | bucket, bucket | used units, with their fraction between two of GCRA |
//! | window, window of the same kind | what was taken, at the times at which it was taken |
//! | window, bucket, and back | used units; a window counts them as taken now |
//! | permits, permits | every hold, until it is released or its lease ends |
//! | permits, bucket or window | units in flight are used; a release gives them back |
//! | bucket or window, permits | nothing is in flight |
//!
//! **Rounding** is against the requester: up to the next tick of GCRA, else to the next whole unit.
//!
//! **Numbers that come with each call** ([`Gcra::per_call`](crate::gcra::Gcra::per_call)) have no
//! order: any call may bring larger or smaller ones. Between two of them units are carried up to
//! the smaller limit, and what is beyond it as the time until it has come back. So nothing is cut:
//! carried to and fro a state grants nothing twice.
//!
//! **Older numbers** do not come in here. A bucket that has used more than the new limit holds
//! would be locked for longer than it takes to fill, so it is cut to empty: these are the only
//! units that vanish. Carried back to the larger limit they would be granted a second time, and
//! again with each turn. So a store carries a state to newer numbers only: who still asks by older
//! ones is decided by those that the key is kept under.

use crate::Timestamp;
use crate::algorithm::{Algorithm, Apply, State, each};

crate::named_enum! {
    /// What becomes of the units that a key has used when the numbers of its policy change.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum OnChange {
        /// Used units stay used; the difference between the limits is given or taken.
        #[default]
        AsIs = "as-is",
        /// The used share of the limit stays used.
        Proportional = "proportional",
        /// Nothing is used: each set of numbers counts for itself.
        Reset = "reset",
    }
}

/// Units used, with a part of one: `units + part / of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    units: u64,
    part: u128,
    of: u128,
}

impl Used {
    pub(crate) const fn whole(units: u64) -> Self {
        Self { units, part: 0, of: 1 }
    }

    /// `ticks` of which a unit has `unit`.
    pub(crate) fn of_ticks(ticks: u128, unit: u64) -> Self {
        let of = u128::from(unit);
        let units = u64::try_from(ticks / of).unwrap_or(u64::MAX);
        Self { units, part: ticks % of, of }
    }

    /// The same in ticks of which a unit has `unit`, rounded up.
    pub(crate) fn ticks(self, unit: u64) -> u128 {
        let (mut part, mut of, unit) = (self.part, self.of, u128::from(unit));
        // Only shares of astronomic limits have so many digits: the last of them are rounded up.
        while part.checked_mul(unit).is_none() {
            (part, of) = (part / 2 + 1, of / 2);
        }
        let part = (part * unit).div_ceil(of);
        u128::from(self.units).saturating_mul(unit).saturating_add(part)
    }

    /// Whole units, rounded up.
    pub(crate) const fn up(self) -> u64 {
        self.units.saturating_add((self.part > 0) as u64)
    }

    fn at_most(self, limit: u64) -> Self {
        if self.units < limit { self } else { Self::whole(limit) }
    }

    /// The same share of `new` as it was of `old`.
    fn scaled(self, new: u64, old: u64) -> Self {
        let (new, old) = (u128::from(new), u128::from(old));
        let all = u128::from(self.units) * new;
        // A unit has fewer than 2^62 ticks, and a limit fewer than 2^50 units: there is room.
        let (part, of) = (all % old * self.of + self.part * new, self.of * old);
        let units = u64::try_from(all / old + part / of).unwrap_or(u64::MAX);
        Self { units, part: part % of, of }
    }
}

/// `units` out of `old`, as a share of `new`, rounded up.
pub(crate) fn scaled(units: u128, new: u64, old: u64) -> u128 {
    units.saturating_mul(u128::from(new)).div_ceil(u128::from(old))
}

impl State {
    /// The state of a key whose numbers were `old` under the newer numbers `new`, as of `now`, by
    /// this rule.
    #[must_use]
    pub fn carry(&self, old: &Algorithm, new: &Algorithm, rule: OnChange, now: Timestamp) -> Self {
        let at = self.moment(old, now);
        let used = each!(old, self, (own, it) => own.used(it, at), else Used::whole(0));
        let mut carried = Self::vacant(new);
        if rule == OnChange::Reset {
            carried.become_used(new, Used::whole(0), at);
            return carried;
        }
        let like = match (old, new, self) {
            (Algorithm::LeakyBucket(old), Algorithm::LeakyBucket(new), Self::LeakyBucket(it)) => {
                new.carry_phase(old, *it, at).map(Self::LeakyBucket)
            }
            (Algorithm::FixedWindow(old), Algorithm::FixedWindow(new), Self::FixedWindow(it)) => {
                Some(Self::FixedWindow(new.carry_window(old, *it, rule, at)))
            }
            (
                Algorithm::SlidingWindow(old),
                Algorithm::SlidingWindow(new),
                Self::SlidingWindow(it),
            ) => Some(Self::SlidingWindow(new.carry_cells(old, it, rule, at))),
            (Algorithm::Gcra(old), Algorithm::Gcra(new), Self::Gcra(it))
                if rule == OnChange::AsIs && (old.is_per_call() || new.is_per_call()) =>
            {
                return Self::Gcra(new.carry_between_calls(old, *it, at));
            }
            (Algorithm::Concurrency(_), Algorithm::Concurrency(_), Self::Concurrency(it)) => {
                return Self::Concurrency(it.clone());
            }
            _ => None,
        };
        match like {
            Some(window @ (Self::FixedWindow(_) | Self::SlidingWindow(_))) => carried = window,
            phase => {
                let used = match rule {
                    OnChange::Proportional => used.scaled(new.limit(), old.limit()),
                    _ => used,
                };
                let is_bucket = matches!(new, Algorithm::Gcra(_) | Algorithm::LeakyBucket(_));
                let used = if is_bucket { used.at_most(new.limit()) } else { used };
                carried.become_used(new, used, at);
                if let (Some(Self::LeakyBucket(phase)), Self::LeakyBucket(it)) =
                    (phase, &mut carried)
                {
                    *it = it.in_phase_with(phase);
                }
            }
        }
        carried
    }

    /// Whether who asks by the older numbers `asked` is decided by those that this state is kept
    /// under: if it says anything, and both have an order.
    pub fn keeps_its_numbers(
        &self,
        kept_under: &Algorithm,
        asked: &Algorithm,
        now: Timestamp,
    ) -> bool {
        let is_of_a_call = |it: &Algorithm| matches!(it, Algorithm::Gcra(it) if it.is_per_call());
        let has_order = !is_of_a_call(kept_under) && !is_of_a_call(asked);
        has_order && self.vacant_at(kept_under) > now
    }

    fn become_used(&mut self, algorithm: &Algorithm, used: Used, at: Timestamp) {
        each!(algorithm, &mut *self, (own, it) => *it = own.having_used(used, at), else ());
    }
}

#[cfg(test)]
mod tests;
