//! GCRA in one machine word, for quotas whose unit is a whole number of nanoseconds.
//!
//! The same algorithm with the same answers (a property holds the two together), at half the
//! instructions: an arrival time in nanoseconds is all there is to keep.

use super::{Cost, Decision, Gcra, Retry, SKEW, Snapshot, State, Timestamp};

const SKEW_NS: u64 = SKEW.as_nanos() as u64;

impl Gcra {
    /// A bound on the arrival times that [`Self::decide_word`] meets: two bits of the word stay free
    /// for whoever stores it, until the year 2116.
    pub const WORD_END: u64 = 1 << 62;

    /// Until when a state is one word below [`Self::WORD_END`]: then [`Self::decide_word`] may be
    /// asked. The beginning of time if it never is.
    #[inline]
    #[must_use]
    pub const fn word_until(&self) -> Timestamp {
        self.word_until
    }

    /// [`Self::decide`] on an arrival time in nanoseconds, which is [`State::to_words`]'s first word.
    #[inline]
    #[must_use]
    pub fn decide_word(&self, tat_ns: u64, cost: Cost, now: Timestamp) -> (Decision, u64) {
        let capacity = self.capacity as u64;
        let mut tat_ns = tat_ns;
        let mut used = tat_ns.saturating_sub(now.as_nanos());
        if used > capacity + SKEW_NS {
            used = capacity;
            tat_ns = now.as_nanos() + capacity;
        }
        let asked = match cost.get().checked_mul(self.unit) {
            Some(asked) if asked <= capacity => asked,
            _ => {
                let snapshot = self.snapshot_word(used);
                return (Decision::Deny { snapshot, retry: Retry::Never }, tat_ns);
            }
        };
        let wanted = used + asked;
        if wanted <= capacity {
            return (Decision::Allow(self.snapshot_word(wanted)), now.as_nanos() + wanted);
        }
        let retry = Retry::after_nanos(wanted - capacity);
        (Decision::Deny { snapshot: self.snapshot_word(used), retry }, tat_ns)
    }

    #[inline]
    fn snapshot_word(&self, used: u64) -> Snapshot {
        let capacity = self.capacity as u64;
        let free = capacity.saturating_sub(used);
        let (remaining, part) = (free / self.unit, free % self.unit);
        let overdrawn = used.saturating_sub(capacity);
        Snapshot {
            limit: self.quota.burst(),
            remaining,
            reset_after_ns: used,
            next_after_ns: if used == 0 { 0 } else { self.unit - part + overdrawn },
        }
    }
}

pub(super) const fn until(scale: u64, capacity: u128) -> Timestamp {
    let last = (Gcra::WORD_END - SKEW_NS) as u128;
    let spare = last.saturating_sub(capacity);
    // Twice the capacity must fit too: what is used and what is asked are added up.
    if scale != 1 || spare < capacity {
        Timestamp::MIN
    } else {
        Timestamp::from_nanos(spare as u64)
    }
}

impl State {
    /// The state with this arrival time in nanoseconds, for a quota that is asked by word.
    #[must_use]
    pub const fn from_word(tat_ns: u64) -> Self {
        Self { tat: tat_ns as u128 }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::Quota;

    proptest! {
        #[test]
        fn one_word_decides_as_two_do(
            unit_ns in 1..10_000_000u64,
            burst in 1..1_000u64,
            steps in proptest::collection::vec((0..3_000_000_000u64, 1..1_100u64, any::<bool>()), 1..60),
        ) {
            let quota = Quota::with_burst(1, Duration::from_nanos(unit_ns), burst).unwrap();
            let gcra = Gcra::new(quota);
            let mut now = Timestamp::from_millis(1_000_000);
            let (mut state, mut word) = (State::default(), 0);
            for (wait_ns, units, back) in steps {
                let wait = Duration::from_nanos(wait_ns % (unit_ns * burst + 1));
                now = if back { now.before(wait) } else { now.after(wait) };
                let cost = Cost::new(units).unwrap();
                let (decision, next) = gcra.decide(state, cost, now);
                let (by_word, next_word) = gcra.decide_word(word, cost, now);
                prop_assert_eq!(decision, by_word);
                prop_assert_eq!(next, State::from_word(next_word));
                (state, word) = (next, next_word);
            }
        }
    }

    #[test]
    fn quotas_with_a_fraction_of_a_nanosecond_need_more_than_a_word() {
        let until = |text: &str| Gcra::new(text.parse().unwrap()).word_until();
        assert_eq!(until("7/s"), Timestamp::MIN);
        assert!(until("100/1m burst 20") > Timestamp::from_millis(4_000_000_000_000));
    }
}
