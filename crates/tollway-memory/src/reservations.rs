//! Open reservations: what was taken, and when it expires if nobody settles it.
//!
//! A heap of expiry times beside a map; the earliest expiry is also in an atomic, so that a check
//! knows with one load that nothing has expired.
//!
//! An open reservation is a promise and is never taken away, so room is kept free instead: a key
//! may hold at most four times as many places as are left then, a policy sixteen times. One key is
//! stopped at four fifths of all places, one policy at sixteen seventeenths; what is left is for
//! the others, and by the same rule no second one takes all of that. A request of several charges
//! is refused when each of them is over: everybody's limit, which is part of every request, is no
//! obstacle to anybody.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Mutex;

use tollway_core::{Algorithm, Held, OnExpiry, ReservationId, Timestamp};

use crate::hash::Fingerprint;
use crate::numbers::Lineage;
use crate::sync::{AtomicU64, Ordering, lock};

pub(crate) struct Reservations {
    open: Mutex<Open>,
    next_expiry_ns: AtomicU64,
    max: usize,
}

#[derive(Default)]
struct Open {
    /// Places promised to requests that are still being decided.
    promised: usize,
    by_id: HashMap<ReservationId, Entry>,
    by_expiry: BinaryHeap<Reverse<(Timestamp, ReservationId)>>,
    /// Places held or promised, by key and by owner.
    of_keys: HashMap<u64, usize>,
    of_owners: HashMap<u64, usize>,
}

/// How many places a key may hold for each that is left, and a policy.
const KEY_PER_FREE: usize = 4;
const OWNER_PER_FREE: usize = 16;

impl Open {
    /// Whether one of the charges is within what its key and its policy may hold.
    fn may_hold(&self, fingerprints: &[Fingerprint], free: usize) -> bool {
        let held = |places: &HashMap<u64, usize>, id| places.get(&id).copied().unwrap_or(0);
        let within = |fingerprint: &Fingerprint| {
            held(&self.of_keys, fingerprint.of_key()) < free.saturating_mul(KEY_PER_FREE)
                && held(&self.of_owners, fingerprint.owner) < free.saturating_mul(OWNER_PER_FREE)
        };
        free > 0 && (fingerprints.is_empty() || fingerprints.iter().any(within))
    }

    fn count_in(&mut self, fingerprints: impl Iterator<Item = Fingerprint>) {
        for fingerprint in fingerprints {
            *self.of_keys.entry(fingerprint.of_key()).or_default() += 1;
            *self.of_owners.entry(fingerprint.owner).or_default() += 1;
        }
    }

    fn count_out(&mut self, fingerprints: impl Iterator<Item = Fingerprint>) {
        for fingerprint in fingerprints {
            count_down(&mut self.of_keys, fingerprint.of_key());
            count_down(&mut self.of_owners, fingerprint.owner);
        }
    }

    /// Takes a reservation out.
    fn remove(&mut self, id: ReservationId) -> Option<Entry> {
        let entry = self.by_id.remove(&id)?;
        self.count_out(entry.parts.iter().map(|part| part.fingerprint));
        Some(entry)
    }
}

/// Nobody is kept who holds nothing: the maps stay as small as what is open.
fn count_down(places: &mut HashMap<u64, usize>, id: u64) {
    if let Some(held) = places.get_mut(&id) {
        *held -= 1;
        if *held == 0 {
            places.remove(&id);
        }
    }
}

/// One open reservation.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) expires_at: Timestamp,
    pub(crate) parts: Vec<ReservedCharge>,
}

/// What one charge of a reservation took.
#[derive(Clone, Debug)]
pub(crate) struct ReservedCharge {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) algorithm: Algorithm,
    pub(crate) lineage: Lineage,
    /// The number of the charge in the request: a charge to a tree of owners has several parts.
    pub(crate) charge: usize,
    pub(crate) held: Held,
    pub(crate) on_expiry: OnExpiry,
}

impl Reservations {
    pub(crate) fn new(max: usize) -> Self {
        Self { open: Mutex::default(), next_expiry_ns: AtomicU64::new(u64::MAX), max }
    }

    /// Promises a place for one more, to be used by [`Self::open`] or given back by
    /// [`Self::decline`], both with the same keys; or says when the first of the open ones expires.
    pub(crate) fn promise(&self, fingerprints: &[Fingerprint]) -> Result<(), Timestamp> {
        let mut open = lock(&self.open);
        let free = self.max.saturating_sub(open.by_id.len() + open.promised);
        if open.may_hold(fingerprints, free) {
            open.promised += 1;
            open.count_in(fingerprints.iter().copied());
            return Ok(());
        }
        Err(open.by_expiry.peek().map_or(Timestamp::MAX, |Reverse((expires_at, _))| *expires_at))
    }

    /// Gives a promised place back.
    pub(crate) fn decline(&self, fingerprints: &[Fingerprint]) {
        let mut open = lock(&self.open);
        open.promised -= 1;
        open.count_out(fingerprints.iter().copied());
    }

    /// Uses a promised place.
    pub(crate) fn open(&self, id: ReservationId, entry: Entry) {
        let mut open = lock(&self.open);
        open.promised -= 1;
        open.by_expiry.push(Reverse((entry.expires_at, id)));
        open.by_id.insert(id, entry);
        self.note_next(&mut open);
    }

    /// Takes an open reservation out, to be settled; one that has expired is not open.
    pub(crate) fn close(&self, id: ReservationId, now: Timestamp) -> Option<Entry> {
        let mut open = lock(&self.open);
        if open.by_id.get(&id)?.expires_at <= now {
            return None;
        }
        let entry = open.remove(id);
        self.note_next(&mut open);
        entry
    }

    /// Whether anything may have expired: one load, no lock.
    #[inline]
    pub(crate) fn may_have_expired(&self, now: Timestamp) -> bool {
        self.next_expiry_ns.load(Ordering::Acquire) <= now.as_nanos()
    }

    /// Takes the next expired reservation out.
    pub(crate) fn next_expired(&self, now: Timestamp) -> Option<Entry> {
        let mut open = lock(&self.open);
        let entry = loop {
            let Reverse((expires_at, id)) = *open.by_expiry.peek()?;
            if expires_at > now {
                break None;
            }
            open.by_expiry.pop();
            if let Some(entry) = open.remove(id) {
                break Some(entry);
            }
        };
        self.note_next(&mut open);
        entry
    }

    /// Drops settled reservations from the head of the heap and notes the earliest open one. The
    /// heap is rebuilt when the settled ones outnumber the open: it stays bounded.
    fn note_next(&self, open: &mut Open) {
        let Open { by_id, by_expiry, .. } = open;
        if by_expiry.len() > 2 * by_id.len() + 64 {
            by_expiry.retain(|Reverse((_, id))| by_id.contains_key(id));
        }
        while by_expiry.peek().is_some_and(|Reverse((_, id))| !by_id.contains_key(id)) {
            by_expiry.pop();
        }
        let next = by_expiry.peek().map_or(u64::MAX, |Reverse((at, _))| at.as_nanos());
        self.next_expiry_ns.store(next, Ordering::Release);
    }
}
