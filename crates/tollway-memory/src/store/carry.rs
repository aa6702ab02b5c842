//! GCRA states that outgrow one word: carried from the narrow table to the double one.
//!
//! An arrival time fits into a narrow slot until the year 2116, or some decades earlier if a fill
//! takes decades. From that moment on the same policy lives in the double table. A key that is
//! asked about there for the first time brings along what it has in the narrow table; left behind,
//! what it had taken would be forgiven.

use tollway_core::gcra::Gcra;
use tollway_core::{Algorithm, Timestamp};

use super::MemoryStore;
use crate::hash::Fingerprint;
use crate::packed::{self, Layout};
use crate::slot::Content;
use crate::sync::lock;
use crate::table::Change;

/// What is left in the narrow slot: later than any arrival time, so a caller who read the clock
/// before that moment and comes after it is denied, and not decided on what is not true any more.
const CARRIED: u64 = Gcra::WORD_END - 1;

impl MemoryStore {
    /// Where the state of a key lives at `now`, after it was carried there if need be.
    #[inline]
    pub(super) fn layout(
        &self,
        fingerprint: impl Fn() -> Fingerprint,
        algorithm: &Algorithm,
        now: Timestamp,
    ) -> Layout {
        let layout = Layout::of(algorithm, now);
        if let (Layout::Double, Algorithm::Gcra(gcra)) = (layout, algorithm)
            && gcra.word_until() > Timestamp::MIN
        {
            self.carry(fingerprint(), algorithm, now);
        }
        layout
    }

    #[cold]
    fn carry(&self, fingerprint: Fingerprint, algorithm: &Algorithm, now: Timestamp) {
        if self.double.read(fingerprint).is_some() || self.narrow.read(fingerprint).is_none() {
            return;
        }
        let _carrying = lock(&self.carrying);
        if self.double.read(fingerprint).is_none() {
            self.carry_alone(fingerprint, algorithm, now, || ());
        }
    }

    /// Closes the narrow slot first and adds what was in it after that, so that at no moment both
    /// tables let the same units go. Whoever looks in between finds the key in neither: in the
    /// narrow table it is denied, and in the double one it waits for the lock. `between` is called
    /// there.
    fn carry_alone(
        &self,
        fingerprint: Fingerprint,
        algorithm: &Algorithm,
        now: Timestamp,
        between: impl FnOnce(),
    ) {
        let moment = self.swap_narrow(fingerprint, now, |moment| moment > 0, CARRIED);
        if moment == 0 || moment == CARRIED {
            return;
        }
        between();
        let added = self.double.update(fingerprint, now, |words, at| {
            let [low, high] = words;
            let tat = u128::from(low) + (u128::from(high) << 64) + u128::from(moment);
            let words = [tat as u64, (tat >> 64) as u64];
            let snapshot = packed::unpack(algorithm, words).peek(algorithm, at);
            Change { answer: (), content: Some(packed::content(words, snapshot, at)) }
        });
        if added.is_err() {
            // No room there: it stays where it was, for the next one to try.
            self.swap_narrow(fingerprint, now, |left| left == CARRIED, moment);
        }
    }

    /// Puts `with` into the narrow slot if what is there `is_meant`; what was there, 0 if nothing.
    fn swap_narrow(
        &self,
        fingerprint: Fingerprint,
        now: Timestamp,
        is_meant: impl Fn(u64) -> bool,
        with: u64,
    ) -> u64 {
        let before = self.narrow.update(fingerprint, now, |[moment, _], _| {
            let vacant_at = Timestamp::from_nanos(with);
            let content = Content { words: [with, 0], vacant_at, limited: true };
            Change { answer: moment, content: is_meant(moment).then_some(content) }
        });
        before.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollway_core::{Charge, Cost, Key, Policy};

    use super::*;
    use crate::Capacity;

    #[test]
    fn a_state_that_outgrows_its_word_is_not_forgiven() {
        let policy = Policy::parse("p", "10/1h").unwrap();
        let Algorithm::Gcra(gcra) = policy.algorithm() else { panic!("a quota is GCRA") };
        let charge = Charge::new(&policy, Key::new("k").unwrap());
        let ten = charge.cost(Cost::new(10).unwrap());
        let until = gcra.word_until();
        let before = until.before(Duration::from_millis(1));
        for request in [vec![charge], vec![charge, charge]] {
            let store = MemoryStore::new(Capacity::keys(64));
            assert!(store.check(&ten, before).is_allowed());
            assert!(!store.check_all(&request, until).is_allowed());
            assert_eq!(store.peek(&charge, until).remaining(), 0);
            assert!(!store.check(&charge, before).is_allowed(), "nor to who comes late");
            let filled = until.after(Duration::from_hours(1));
            assert!(store.check(&ten, filled).is_allowed());
            assert!(!store.check(&charge, filled).is_allowed());
        }
    }

    /// One unit is left. Somebody late asks in the narrow table while the key is being carried, and
    /// somebody in time in the double table after that: one of them gets it.
    #[test]
    fn a_unit_is_not_taken_in_both_tables_while_its_key_is_carried() {
        let policy = Policy::parse("p", "10/1h").unwrap();
        let Algorithm::Gcra(gcra) = policy.algorithm() else { panic!("a quota is GCRA") };
        let charge = Charge::new(&policy, Key::new("k").unwrap());
        let until = gcra.word_until();
        let before = until.before(Duration::from_millis(1));
        let store = MemoryStore::new(Capacity::keys(64));
        assert!(store.check(&charge.cost(Cost::new(9).unwrap()), before).is_allowed());
        let mut late = false;
        store.carry_alone(store.fingerprint(&charge), policy.algorithm(), until, || {
            late = store.check(&charge, before).is_allowed();
        });
        let in_time = store.check(&charge, until).is_allowed();
        assert_eq!((late, in_time), (false, true));
        assert!(!store.check(&charge, until).is_allowed());
    }

    #[test]
    fn a_refund_and_a_reset_find_what_was_carried_over() {
        let policy = Policy::parse("p", "10/1h").unwrap();
        let Algorithm::Gcra(gcra) = policy.algorithm() else { panic!("a quota is GCRA") };
        let charge = Charge::new(&policy, Key::new("k").unwrap());
        let ten = charge.cost(Cost::new(10).unwrap());
        let store = MemoryStore::new(Capacity::keys(64));
        assert!(store.check(&ten, gcra.word_until().before(Duration::from_nanos(1))).is_allowed());
        assert_eq!(store.refund(&charge, gcra.word_until()).remaining(), 1);
        store.reset(&charge, gcra.word_until());
        assert_eq!(store.peek(&charge, gcra.word_until()).remaining(), 10);
    }
}
