//! Open reservations: what was taken, and when it expires if nobody settles it.
//!
//! A heap of expiry times beside a map; the earliest expiry is also in an atomic, so that a check
//! knows with one load that nothing has expired.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Mutex;

use tollgate_core::{Algorithm, Held, OnExpiry, ReservationId, Timestamp};

use crate::hash::Fingerprint;
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
}

/// One open reservation.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) expires_at: Timestamp,
    pub(crate) parts: Vec<Part>,
}

/// What one charge of a reservation took.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) algorithm: Algorithm,
    pub(crate) held: Held,
    pub(crate) on_expiry: OnExpiry,
}

impl Reservations {
    pub(crate) fn new(max: usize) -> Self {
        Self { open: Mutex::default(), next_expiry_ns: AtomicU64::new(u64::MAX), max }
    }

    /// Promises a place for one more, to be used by [`Self::open`] or given back by
    /// [`Self::decline`]; or says when the first of the open ones expires.
    pub(crate) fn promise(&self) -> Result<(), Timestamp> {
        let mut open = lock(&self.open);
        if open.by_id.len() + open.promised < self.max {
            open.promised += 1;
            return Ok(());
        }
        Err(open.by_expiry.peek().map_or(Timestamp::MAX, |Reverse((expires_at, _))| *expires_at))
    }

    /// Gives a promised place back.
    pub(crate) fn decline(&self) {
        lock(&self.open).promised -= 1;
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
        let entry = open.by_id.remove(&id);
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
            if let Some(entry) = open.by_id.remove(&id) {
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
