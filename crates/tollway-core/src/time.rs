//! Time as an argument: a point in time, and where points in time come from.
//!
//! Nothing in this crate reads a clock. Whoever decides reads one [`Clock`] once and passes the
//! [`Timestamp`] down, so that every test, the simulator and a replay see the same answers.

#[cfg(target_has_atomic = "64")]
mod steady;

use core::fmt;
#[cfg(target_has_atomic = "64")]
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crate::fields::calendar;

#[cfg(target_has_atomic = "64")]
pub use steady::SteadyClock;

/// A point in time: nanoseconds since the Unix epoch, good until the year 2554.
///
/// Arithmetic saturates: a moment past the end of time is the end of time, never a panic.
///
/// `Debug` shows a date in UTC. A moment before [`Self::DATES_FROM`] counts from a zero of its own,
/// as in tests and simulations, and is shown as how long after it.
///
/// ```
/// use tollway_core::Timestamp;
///
/// let moment = Timestamp::from_millis(1_700_000_000_250);
/// assert_eq!(format!("{moment:?}"), "2023-11-14T22:13:20.25Z");
/// assert_eq!(format!("{:?}", Timestamp::from_millis(1_500)), "0+1.5s");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The earliest moment: the Unix epoch.
    pub const MIN: Self = Self(0);
    /// The latest moment.
    pub const MAX: Self = Self(u64::MAX);

    /// The first moment that `Debug` shows as a date: a billion seconds after the epoch.
    pub const DATES_FROM: Self = Self(1_000_000_000_000_000_000);

    /// The moment `nanos` nanoseconds after the Unix epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The moment `millis` milliseconds after the Unix epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds since the Unix epoch.
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
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since_zero = Duration::from_nanos(self.0);
        if *self < Self::DATES_FROM {
            return write!(f, "0+{since_zero:?}");
        }
        f.write_str(&calendar::print_exactly(since_zero))
    }
}

/// How far in the future a stored moment may lie before a clock that *can* be set back is taken to
/// have been: the clock of a Redis server, or of a queue's caller. Whoever has such a clock says so
/// by [`State::rewind`](crate::State::rewind). No decision does it by itself: a reading that is
/// behind a state may as well be that of a thread which was interrupted after it read the clock,
/// and moving the state back for it would grant the units in between a second time.
pub const SKEW: Duration = Duration::from_millis(10);

/// `duration` in whole nanoseconds, at most [`u64::MAX`].
pub(crate) const fn saturating_nanos(duration: Duration) -> u64 {
    let nanos = duration.as_nanos();
    if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 }
}

/// A source of time.
///
/// **Contract.** Within a process, `now` never goes back: once any thread was given a reading,
/// every reading that is begun later, by any thread, is at least as late. Readings may be *used* in
/// any order and after any delay. A state that is ahead of a reading is taken as proof that the
/// reading is old, and the charge is decided as of the state's time; so a clock that does step back
/// grants nothing twice, but denies what it should not until it has caught up. Wrap a clock that
/// may step in a [`SteadyClock`].
pub trait Clock: Send + Sync {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// A clock that moves only when told to, for tests and simulations.
///
/// ```
/// use core::time::Duration;
/// use tollway_core::{Clock, Timestamp, VirtualClock};
///
/// let clock = VirtualClock::at(Timestamp::from_millis(1_000));
/// clock.advance(Duration::from_millis(500));
/// assert_eq!(clock.now(), Timestamp::from_millis(1_500));
/// ```
#[cfg(target_has_atomic = "64")]
#[derive(Default)]
pub struct VirtualClock(AtomicU64);

#[cfg(target_has_atomic = "64")]
impl VirtualClock {
    /// A clock that stands at `start`.
    pub const fn at(start: Timestamp) -> Self {
        Self(AtomicU64::new(start.0))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.set(self.now().after(by));
    }

    /// Moves the clock to `now`, backwards if need be: then what it reads is a reading that comes
    /// late, as [`Clock`] says.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

#[cfg(target_has_atomic = "64")]
impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(target_has_atomic = "64")]
impl fmt::Debug for VirtualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VirtualClock").field(&self.now()).finish()
    }
}

#[cfg(test)]
mod tests {
    use alloc::format;

    use super::*;

    #[test]
    fn a_moment_is_shown_as_a_date_if_it_counts_from_the_epoch() {
        let shown = |nanos| format!("{:?}", Timestamp::from_nanos(nanos));
        assert_eq!(shown(1_794_805_232_076_573_467), "2026-11-16T05:00:32.076573467Z");
        assert_eq!(shown(951_782_400_000_000_000), "0+951782400s", "a simulation of thirty years");
        assert_eq!(shown(1_000_000_000_000_000_000), "2001-09-09T01:46:40Z");
        assert_eq!(shown(u64::MAX), "2554-07-21T23:34:33.709551615Z");
        assert_eq!((shown(0), shown(1_500_000)), ("0+0ns".into(), "0+1.5ms".into()));
    }

    #[test]
    fn what_holds_durations_shows_them_with_their_units() {
        let second = Duration::from_secs(1);
        let snapshot = crate::Snapshot::new(5, 3, 2 * second, second / 4);
        let shown = "Snapshot { limit: 5, remaining: 3, reset_after: 2s, next_after: 250ms }";
        assert_eq!(format!("{snapshot:?}"), shown);
        let quota: crate::Quota = "100/1m burst 20".parse().unwrap();
        assert_eq!(format!("{quota:?}"), "Quota(100/1m burst 20)");
        let lease = crate::concurrency::Concurrency::new(2, 30 * second).unwrap();
        assert_eq!(format!("{lease:?}"), "Concurrency { limit: 2, lease: 30s }");
        let clock = VirtualClock::at(Timestamp::from_millis(1_700_000_000_000));
        assert_eq!(format!("{clock:?}"), "VirtualClock(2023-11-14T22:13:20Z)");
    }
}
