//! Since when a store has failed without a break, which bounds what `allow` may allow.

use std::sync::atomic::{AtomicU64, Ordering};

use tollway_core::Timestamp;

/// Since when the store has failed without a break.
#[derive(Debug)]
pub(crate) struct Outage(AtomicU64);

impl Outage {
    const NONE: u64 = u64::MAX;

    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(Self::NONE))
    }

    /// When the current outage began: `now`, if there was none.
    pub(crate) fn began(&self, now: Timestamp) -> Timestamp {
        let nanos = now.as_nanos();
        match self.0.compare_exchange(Self::NONE, nanos, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => now,
            Err(began) => Timestamp::from_nanos(began),
        }
    }

    #[inline]
    pub(crate) fn over(&self) {
        // Reading first keeps the cache line shared between cores while all is well.
        if self.0.load(Ordering::Relaxed) != Self::NONE {
            self.0.store(Self::NONE, Ordering::Release);
        }
    }
}
