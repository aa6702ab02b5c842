//! The short way of a few charges: GCRA in one word each, all keys known, all charges allowed.
//!
//! Most requests of several charges are two, one's own limit and everybody's, and are allowed. They
//! are decided here on the stack. Whatever is not so (a newcomer, a denial, a key named twice,
//! another algorithm) goes the long way with nothing changed, and is decided there by the same
//! rules.

use tollway_core::gcra::Gcra;
use tollway_core::{Algorithm, Charge, Mode, Timestamp, Verdict};

use super::MemoryStore;
use crate::hash::Fingerprint;
use crate::slot::Content;
use crate::table::FEW;

impl MemoryStore {
    /// Takes every charge if all are allowed and this is the way for them.
    pub(super) fn take_known(&self, charges: &[Charge<'_>], now: Timestamp) -> Option<Verdict> {
        if charges.len() > FEW {
            return None;
        }
        let mut fingerprints = [Fingerprint::default(); FEW];
        for (charge, fingerprint) in charges.iter().zip(&mut fingerprints) {
            by_word(charge, now)?;
            *fingerprint = self.fingerprint(charge);
        }
        let mut locked = self.narrow.lock_few(&fingerprints[..charges.len()], now)?;
        let mut words = [None; FEW];
        for ((charge, held), word) in charges.iter().zip(&locked).zip(&mut words) {
            let moment = held.as_ref()?.view().words[0];
            let decided = by_word(charge, now)?.decide_word(moment, charge.cost, now);
            *word = Some(decided).filter(|word| word.is_allowed());
            (*word)?;
        }
        let mut decisions = Vec::with_capacity(charges.len());
        for (index, charge) in charges.iter().enumerate() {
            let (gcra, word) = (by_word(charge, now)?, words[index]?);
            let vacant_at = Timestamp::from_nanos(word.tat_ns());
            let limited = gcra.is_spent(word);
            let content = Content { words: [word.tat_ns(), 0], vacant_at, limited };
            locked[index].take()?.write(fingerprints[index].tag, content);
            decisions.push(gcra.report(word));
        }
        Some(Verdict::new(decisions))
    }
}

/// The algorithm of a charge whose state is one word.
#[inline]
fn by_word<'a>(charge: &Charge<'a>, now: Timestamp) -> Option<&'a Gcra> {
    match charge.policy.algorithm() {
        Algorithm::Gcra(gcra) if now < gcra.word_until() && charge.mode == Mode::Enforce => {
            Some(gcra)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use tollway_core::{Cost, Key, Policy};

    use super::*;
    use crate::Capacity;
    use crate::hash::Seed;

    fn policies() -> [Policy; 4] {
        let policy = |name, quota: &str| Policy::parse(name, quota).unwrap();
        // The last is no whole number of nanoseconds a unit, so it always goes the long way.
        [policy("a", "4/1s"), policy("b", "5/1s burst 2"), policy("c", "6/1m"), policy("d", "7/1s")]
    }

    proptest! {
        #[test]
        fn the_short_way_and_the_long_way_decide_alike(
            steps in proptest::collection::vec(
                (
                    vec((0..4usize, 0..3usize, 1..4u64), 2..6),
                    0..900_000_000u64,
                    any::<bool>(),
                ),
                1..60,
            ),
        ) {
            let policies = policies();
            let keys = ["alice", "bob", "*"];
            // One seed: a clock that is set back shows which slots newcomers have reused.
            let store = || MemoryStore::with_seed(Capacity::keys(64), Seed::new([1; 2]));
            let stores = [store(), store()];
            let mut now = Timestamp::from_millis(1_000_000);
            for (asked, wait_ns, back) in steps {
                let wait = Duration::from_nanos(wait_ns);
                now = if back { now.before(wait) } else { now.after(wait) };
                let charge = |&(policy, key, cost): &(usize, usize, u64)| {
                    let key = Key::new(keys[key]).unwrap();
                    Charge::new(&policies[policy], key).cost(Cost::new(cost).unwrap())
                };
                let charges: Vec<_> = asked.iter().map(charge).collect();
                let short = stores[0].check_all(&charges, now);
                prop_assert_eq!(short, stores[1].request(&charges, 0, now));
                for charge in &charges {
                    prop_assert_eq!(stores[0].peek(charge, now), stores[1].peek(charge, now));
                }
            }
        }
    }

    #[test]
    fn only_known_keys_that_are_allowed_go_the_short_way() {
        let [own, all, ..] = policies();
        let store = MemoryStore::new(Capacity::keys(64));
        let now = Timestamp::from_millis(1_000);
        let [alice, everyone] = ["alice", "*"].map(|key| Key::new(key).unwrap());
        let both = [Charge::new(&own, alice), Charge::new(&all, everyone)];
        assert!(store.take_known(&both, now).is_none(), "newcomers");
        assert!(store.check_all(&both, now).is_allowed());
        assert!(store.take_known(&[both[0], both[0]], now).is_none(), "a key named twice");
        assert!(store.take_known(&both, now).unwrap().is_allowed());
        let before = store.peek(&both[0], now);
        assert!(store.take_known(&both, now).is_none(), "a denial");
        assert_eq!(store.peek(&both[0], now), before, "nothing was changed, or stays locked");
    }
}
