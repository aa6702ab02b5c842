//! GCRA in one machine word, for quotas whose unit is a whole number of nanoseconds.
//!
//! The same algorithm with the same answers (a property holds the two together), at half the
//! instructions: an arrival time in nanoseconds is all there is to keep.

use super::{Cost, Decision, Gcra, Retry, Snapshot, Timestamp};

impl Gcra {
    /// A bound on the arrival times that [`Self::decide_word`] meets: two bits of the word stay
    /// free for whoever stores it, until the year 2116.
    pub const WORD_END: u64 = 1 << 62;

    /// Until when a state is one word below [`Self::WORD_END`]: then [`Self::decide_word`] may be
    /// asked. The beginning of time if it never is.
    #[inline(always)]
    pub const fn word_until(&self) -> Timestamp {
        self.word_until
    }

    /// [`Self::decide`] on an arrival time in nanoseconds, which is the first word of
    /// [`State::to_words`](super::State::to_words): only what has to be known before the word is
    /// written. [`Self::report`] says the rest.
    #[inline(always)]
    pub fn decide_word(&self, tat_ns: u64, cost: Cost, now: Timestamp) -> Word {
        let capacity = self.capacity as u64;
        let used_ns = tat_ns.saturating_sub(now.as_nanos());
        let asked = match cost.get().checked_mul(self.unit) {
            Some(asked) if asked <= capacity => asked,
            _ => return Word { tat_ns, used_ns, short_ns: Word::NEVER },
        };
        let wanted = used_ns + asked;
        if wanted <= capacity {
            return Word { tat_ns: now.as_nanos() + wanted, used_ns: wanted, short_ns: 0 };
        }
        Word { tat_ns, used_ns, short_ns: wanted - capacity }
    }

    /// What was decided, in full.
    #[inline(always)]
    pub fn report(&self, word: Word) -> Decision {
        let snapshot = self.snapshot_word(word.used_ns);
        match word.short_ns {
            0 => Decision::Allow(snapshot),
            Word::NEVER => Decision::Deny { snapshot, retry: Retry::Never },
            short_ns => Decision::Deny { snapshot, retry: Retry::after_nanos(short_ns) },
        }
    }

    /// Whether less than one unit is left.
    #[inline(always)]
    pub fn is_spent(&self, word: Word) -> bool {
        word.used_ns + self.unit > self.capacity as u64
    }

    #[inline(always)]
    fn snapshot_word(&self, used: u64) -> Snapshot {
        let capacity = self.capacity as u64;
        let free = capacity.saturating_sub(used);
        let (remaining, part) = (free / self.unit, free % self.unit);
        let overdrawn = used.saturating_sub(capacity);
        let next_after_ns = if used == 0 { 0 } else { self.unit - part + overdrawn };
        Snapshot::of(self.quota.burst(), remaining, used, next_after_ns)
    }
}

/// What a charge comes to, in one word: see [`Gcra::decide_word`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    tat_ns: u64,
    used_ns: u64,
    /// What is missing: zero if allowed.
    short_ns: u64,
}

impl Word {
    const NEVER: u64 = u64::MAX;

    /// Whether the units were taken.
    #[inline]
    pub const fn is_allowed(self) -> bool {
        self.short_ns == 0
    }

    /// The arrival time after the charge.
    #[inline]
    pub const fn tat_ns(self) -> u64 {
        self.tat_ns
    }
}

pub(super) const fn until(scale: u64, capacity: u128) -> Timestamp {
    // The last moment stays free too: a store marks by it that a state is kept elsewhere.
    let spare = (Gcra::WORD_END as u128 - 1).saturating_sub(capacity);
    // Twice the capacity must fit too: what is used and what is asked are added up.
    if scale != 1 || spare < capacity {
        Timestamp::MIN
    } else {
        Timestamp::from_nanos(spare as u64)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::State;
    use super::*;
    use crate::Quota;

    proptest! {
        #[test]
        fn one_word_decides_as_two_do(
            unit_ns in 1..10_000_000u64,
            burst in 1..1_000u64,
            steps in vec((0..3_000_000_000u64, 1..1_100u64, any::<bool>()), 1..60),
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
                let by_word = gcra.decide_word(word, cost, now);
                prop_assert_eq!(decision, gcra.report(by_word));
                prop_assert_eq!(next, State { tat: by_word.tat_ns().into() });
                let remaining = decision.snapshot().remaining();
                prop_assert_eq!(remaining == 0, gcra.is_spent(by_word));
                (state, word) = (next, by_word.tat_ns());
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
