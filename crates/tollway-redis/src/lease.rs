//! Leases: units of a hot key taken in batches, and spent in process.
//!
//! ```text
//!   store    take 64 ─────────────────────────────> refund 9
//!   process        | 1 | 1 | 1 | … 55 requests … |     what is unused goes back
//!                  <----------- lease ----------->
//! ```
//!
//! A unit is taken from the store before it is spent, so the store never grants more than the
//! quota; only the *moment* of spending is later, by at most the lease's time. Hence
//!
//! * **over-admission**: in any interval, at most `processes × units_max` beyond the quota: the
//!   units that were held when the interval began, whether they are spent in it or go back;
//! * **loss**: a process that dies takes at most `units_max` per key with it, until the quota
//!   brings them back by itself.
//!
//! The batch follows demand: it doubles when a lease is spent in less than half its time, and
//! halves when more than half of it is left over. A key that is not hot is asked for one by one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tollway_core::{Decision, Snapshot, Timestamp};

use crate::request::KeyCharge;
use crate::settings::{KEPT_BYTES_MAX, LeaseTerms};

/// The leases of one process.
pub(crate) struct Leases {
    keys: Mutex<HashMap<Vec<u8>, Arc<Lease>>>,
    max: usize,
}

/// One key's units in hand.
pub(crate) struct Lease {
    pub(crate) part: KeyCharge,
    pub(crate) terms: LeaseTerms,
    hand: Mutex<Hand>,
    /// Held by whoever fetches more: the others wait for what that brings.
    pub(crate) fetching: tokio::sync::Mutex<()>,
}

struct Hand {
    left: u64,
    taken: u64,
    batch: u64,
    began: Instant,
    /// The server's time when the units were taken.
    taken_at: Timestamp,
    /// What the store said of the key then.
    snapshot: Snapshot,
}

/// Units to be given back, and when they were taken.
pub(crate) struct Unused {
    pub(crate) units: u64,
    pub(crate) taken_at: Timestamp,
}

impl Leases {
    pub(crate) fn new(max: usize) -> Self {
        Self { keys: Mutex::default(), max }
    }

    /// The lease on a part's key; `None` if there are too many keys, or it is too long, or still
    /// has units that were taken under other numbers.
    pub(crate) fn of(&self, part: &KeyCharge, terms: LeaseTerms) -> Option<Arc<Lease>> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lease) = keys.get(&part.key) {
            if lease.part.encoded.head() == part.encoded.head() {
                return Some(Arc::clone(lease));
            }
            // What is in hand under other numbers goes back before there is more.
            if lease.hand().left > 0 || Arc::strong_count(lease) > 1 {
                return None;
            }
            keys.remove(&part.key);
        }
        if part.key.len() > KEPT_BYTES_MAX {
            return None;
        }
        if keys.len() >= self.max {
            // Who holds one may be fetching units for it: dropped, nobody would give them back.
            keys.retain(|_, lease| lease.hand().left > 0 || Arc::strong_count(lease) > 1);
        }
        if keys.len() >= self.max {
            return None;
        }
        let lease = Arc::new(Lease::new(part.clone(), terms));
        keys.insert(part.key.clone(), Arc::clone(&lease));
        Some(lease)
    }

    /// Every lease whose time is over, or every lease.
    pub(crate) fn ended(&self, all: bool) -> Vec<Arc<Lease>> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = |lease: &&Arc<Lease>| all || lease.hand().began.elapsed() >= lease.terms.time;
        keys.values().filter(ended).cloned().collect()
    }
}

impl Lease {
    fn new(part: KeyCharge, terms: LeaseTerms) -> Self {
        let hand = Hand {
            left: 0,
            taken: 0,
            batch: 1,
            began: Instant::now(),
            taken_at: Timestamp::MIN,
            snapshot: Snapshot::default(),
        };
        Self { part, terms, hand: Mutex::new(hand), fetching: tokio::sync::Mutex::default() }
    }

    /// Spends units in hand, if there are enough and their time is not over.
    pub(crate) fn spend(&self, units: u64) -> Option<Decision> {
        let mut hand = self.hand();
        if hand.left < units || hand.began.elapsed() >= self.terms.time {
            return None;
        }
        hand.left -= units;
        let (known, left) = (hand.snapshot, hand.left);
        let remaining = known.remaining().saturating_add(left);
        let (reset, next) = (known.reset_after(), known.next_after());
        Some(Decision::Allow(Snapshot::new(known.limit(), remaining, reset, next)))
    }

    /// How many units to fetch so that `units` can be spent: as many as demand suggests, and never
    /// more in hand than the terms allow.
    pub(crate) fn wanted(&self, units: u64) -> u64 {
        let mut hand = self.hand();
        let is_spent_early = hand.began.elapsed() < self.terms.time / 2;
        if hand.taken > 0 && is_spent_early {
            hand.batch = hand.batch.saturating_mul(2);
        }
        hand.batch = hand.batch.clamp(1, self.terms.units_max.max(1));
        let room = self.terms.units_max.saturating_sub(hand.left);
        hand.batch.min(room).max(units)
    }

    /// Whether its time is over.
    pub(crate) fn is_over(&self) -> bool {
        self.hand().began.elapsed() >= self.terms.time
    }

    /// Notes that units were asked for and spent at once: the next may be asked for in a batch.
    pub(crate) fn note_demand(&self, snapshot: Snapshot) {
        let mut hand = self.hand();
        if hand.left == 0 {
            hand.taken = 1;
            hand.began = Instant::now();
            hand.snapshot = snapshot;
        }
    }

    /// Takes in hand what the store has granted.
    pub(crate) fn receive(&self, units: u64, snapshot: Snapshot, taken_at: Timestamp) {
        let mut hand = self.hand();
        hand.left = hand.left.saturating_add(units);
        hand.taken = hand.left;
        hand.began = Instant::now();
        hand.snapshot = snapshot;
        hand.taken_at = taken_at;
    }

    /// Ends the lease: what is unused is to be given back.
    pub(crate) fn end(&self) -> Option<Unused> {
        let mut hand = self.hand();
        let units = std::mem::take(&mut hand.left);
        if units > hand.taken / 2 {
            hand.batch = (hand.batch / 2).max(1);
        }
        hand.taken = 0;
        (units > 0).then_some(Unused { units, taken_at: hand.taken_at })
    }

    fn hand(&self) -> MutexGuard<'_, Hand> {
        self.hand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TERMS: LeaseTerms = LeaseTerms { units_max: 64, time: Duration::from_secs(60) };

    fn part(key: &[u8]) -> KeyCharge {
        KeyCharge::of_limit(key, "5/1m", 1)
    }

    #[test]
    fn a_lease_that_is_being_fetched_makes_no_room_for_another() {
        let leases = Leases::new(1);
        let fetched = leases.of(&part(b"a"), TERMS).unwrap();
        assert!(leases.of(&part(b"b"), TERMS).is_none());
        fetched.receive(5, Snapshot::default(), Timestamp::MIN);
        drop(fetched);
        let ended: Vec<_> = leases.ended(true).iter().filter_map(|lease| lease.end()).collect();
        assert_eq!(ended.len(), 1, "what was fetched is given back");
        assert!(leases.of(&part(b"b"), TERMS).is_some(), "an idle lease makes room");
    }

    #[test]
    fn a_long_key_has_no_lease() {
        let leases = Leases::new(1);
        assert!(leases.of(&part(&[b'k'; KEPT_BYTES_MAX + 1]), TERMS).is_none());
    }
}
