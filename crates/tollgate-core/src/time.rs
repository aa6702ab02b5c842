//! Time as an argument: a point in time, and where points in time come from.
//!
//! Nothing in this crate reads a clock. Whoever decides reads one [`Clock`] once and passes the
//! [`Timestamp`] down, so that every test, the simulator and a replay see the same answers.

mod steady;

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

pub use steady::SteadyClock;

/// A point in time: nanoseconds since the Unix epoch, good until the year 2554.
///
/// Arithmetic saturates: a moment past the end of time is the end of time, never a panic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The earliest moment: the Unix epoch.
    pub const MIN: Self = Self(0);
    /// The latest moment.
    pub const MAX: Self = Self(u64::MAX);

    /// The moment `nanos` nanoseconds after the Unix epoch.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The moment `millis` milliseconds after the Unix epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the Unix epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment `duration` later.
    #[must_use]
    pub const fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(saturating_nanos(duration)))
    }

    /// The moment `duration` earlier.
    #[must_use]
    pub const fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(saturating_nanos(duration)))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Timestamp {
    /// This moment as a stored one may be believed at `now`: at most [`SKEW`] in the future.
    pub(crate) const fn within_skew(self, now: Self) -> Self {
        let latest = now.after(SKEW);
        if self.0 > latest.0 { latest } else { self }
    }
}

/// How far in the future a stored moment may lie. Threads that read the clock and then race for a
/// key arrive out of order by microseconds, and must not move a window back and so forget what was
/// taken in it; a moment further ahead means that the clock was set back, and would lock the key.
pub const SKEW: Duration = Duration::from_millis(10);

/// `duration` in whole nanoseconds, at most [`u64::MAX`].
pub(crate) const fn saturating_nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

/// A source of time.
pub trait Clock: Send + Sync {
    /// The time now. It may step backwards; every algorithm says what it makes of that.
    fn now(&self) -> Timestamp;
}

/// A clock that moves only when told to, for tests and simulations.
///
/// ```
/// use core::time::Duration;
/// use tollgate_core::{Clock, Timestamp, VirtualClock};
///
/// let clock = VirtualClock::at(Timestamp::from_millis(1_000));
/// clock.advance(Duration::from_millis(500));
/// assert_eq!(clock.now(), Timestamp::from_millis(1_500));
/// ```
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// A clock that stands at `start`.
    #[must_use]
    pub const fn at(start: Timestamp) -> Self {
        Self(AtomicU64::new(start.0))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.set(self.now().after(by));
    }

    /// Moves the clock to `now`, backwards if need be.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}
