//! Ids that were not given before and cannot be guessed: of reservations, permits and
//! requests.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// A keyed hash of a counter; the keys are the operating system's randomness.
#[derive(Debug)]
pub(crate) struct RandomIds {
    keys: [RandomState; 2],
    given: AtomicU64,
}

impl RandomIds {
    pub(crate) fn new() -> Self {
        // Two states of one process share a key but for a counter: mix in where they stand.
        let ids = Self { keys: [RandomState::new(), RandomState::new()], given: AtomicU64::new(0) };
        ids.given.store(ids.keys[0].hash_one(std::process::id()), Ordering::Relaxed);
        ids
    }

    pub(crate) fn next(&self) -> u128 {
        let count = self.given.fetch_add(1, Ordering::Relaxed);
        let [high, low] = [0, 1].map(|half| self.keys[half].hash_one((count, half)));
        u128::from(high) << 64 | u128::from(low)
    }
}
