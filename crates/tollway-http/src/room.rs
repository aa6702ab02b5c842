//! The room for requests at work or waiting, in count and in bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What all requests hold together, bounded.
#[derive(Debug)]
pub struct Room {
    requests: AtomicUsize,
    bytes: AtomicU64,
    requests_max: usize,
    bytes_max: u64,
}

/// What one request holds, given back when dropped.
#[derive(Debug)]
pub struct RoomGuard {
    room: Arc<Room>,
    bytes: AtomicU64,
}

impl Room {
    /// Room for so many requests, which hold so many bytes together.
    pub const fn new(requests_max: usize, bytes_max: u64) -> Self {
        let (requests, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
        Self { requests, bytes, requests_max, bytes_max }
    }

    /// Holds `bytes` for one request, if there is room.
    #[must_use]
    pub fn enter(self: &Arc<Self>, bytes: u64) -> Option<RoomGuard> {
        let requests = self.requests.fetch_add(1, Ordering::Relaxed);
        let held = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let guard = RoomGuard { room: Arc::clone(self), bytes: AtomicU64::new(bytes) };
        let fits = requests < self.requests_max && held.saturating_add(bytes) <= self.bytes_max;
        fits.then_some(guard)
    }

    /// How many requests hold something.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// How many bytes they hold.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl RoomGuard {
    /// Holds `more` bytes beside, if there is room for them.
    #[must_use]
    pub fn extend(&self, more: u64) -> bool {
        let held = self.room.bytes.fetch_add(more, Ordering::Relaxed);
        if held.saturating_add(more) > self.room.bytes_max {
            self.room.bytes.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        self.bytes.fetch_add(more, Ordering::Relaxed);
        true
    }

    /// Gives back `less` of the bytes that it holds.
    pub fn shrink(&self, less: u64) {
        let taken = |held: u64| Some(held.saturating_sub(less));
        let before = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        let given = before.unwrap_or_else(|held| held).min(less);
        self.room.bytes.fetch_sub(given, Ordering::Relaxed);
    }
}

impl Drop for RoomGuard {
    fn drop(&mut self) {
        self.room.requests.fetch_sub(1, Ordering::Relaxed);
        self.room.bytes.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_full_in_count_or_bytes_takes_no_more_until_somebody_leaves() {
        let room = Arc::new(Room::new(2, 100));
        let (one, two) = (room.enter(40).unwrap(), room.enter(40).unwrap());
        assert!(room.enter(0).is_none(), "two are enough");
        drop(one);
        assert!(room.enter(70).is_none(), "40 and 70 are more than 100");
        let three = room.enter(50).unwrap();
        assert!(!three.extend(20) && three.extend(10));
        three.shrink(30);
        assert_eq!(room.bytes(), 70);
        assert!(three.extend(30));
        drop((two, three));
        assert_eq!((room.requests(), room.bytes()), (0, 0));
    }
}
