//! The system's clock: Unix time at the start, moved on by the processor's steady counter.

use std::time::{SystemTime, UNIX_EPOCH};

use tollgate_core::{Clock, Timestamp};

/// A clock that never steps back within a process, and reads in a third of the time of the
/// standard library's: the time-stamp counter where the processor has a steady one.
///
/// Steps of the system's time after the start are not followed; a restart follows them.
#[derive(Clone, Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    origin: u64,
    started_at_ns: u64,
}

impl SystemClock {
    /// The clock, set by the system's time.
    #[must_use]
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let started_at_ns = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
        Self { origin: counter.raw(), counter, started_at_ns }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let elapsed_ns = self.counter.delta_as_nanos(self.origin, self.counter.raw());
        Timestamp::from_nanos(self.started_at_ns.saturating_add(elapsed_ns))
    }
}
