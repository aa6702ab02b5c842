//! A clock that never goes back, made of one that may.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{Clock, Timestamp};

/// Any clock without its steps back: when the inner clock is set back, this one goes on from where
/// it stood and keeps that distance.
///
/// States hold moments. A clock that is set back would leave them in the future, and their keys
/// denied until it is there again; see [`Clock`]. Steps forward are believed.
///
/// ```
/// use core::time::Duration;
/// use tollway_core::{Clock, SteadyClock, Timestamp, VirtualClock};
///
/// let wall = VirtualClock::at(Timestamp::from_millis(60_000));
/// let clock = SteadyClock::new(wall);
/// assert_eq!(clock.now(), Timestamp::from_millis(60_000));
/// clock.inner().set(Timestamp::from_millis(20_000));
/// assert_eq!(clock.now(), Timestamp::from_millis(60_000));
/// clock.inner().advance(Duration::from_millis(500));
/// assert_eq!(clock.now(), Timestamp::from_millis(60_500));
/// ```
#[derive(Debug, Default)]
pub struct SteadyClock<C> {
    inner: C,
    /// How far this clock is ahead of the inner one, in nanoseconds.
    ahead: AtomicU64,
    /// The latest time given out, in nanoseconds.
    latest: AtomicU64,
}

impl<C: Clock> SteadyClock<C> {
    /// `inner` without its steps back.
    pub const fn new(inner: C) -> Self {
        Self { inner, ahead: AtomicU64::new(0), latest: AtomicU64::new(0) }
    }

    /// The clock that may step.
    pub const fn inner(&self) -> &C {
        &self.inner
    }
}

impl<C: Clock> Clock for SteadyClock<C> {
    fn now(&self) -> Timestamp {
        loop {
            // In this order: the inner clock is read after whoever gave out `latest` had read it,
            // so an earlier time proves a step, and not that this thread is a late one.
            let latest = self.latest.load(Ordering::SeqCst);
            let ahead = self.ahead.load(Ordering::SeqCst);
            let now = self.inner.now().as_nanos().saturating_add(ahead);
            if now >= latest {
                self.latest.fetch_max(now, Ordering::SeqCst);
                return Timestamp::from_nanos(now);
            }
            // Whoever finds the step first makes it good; the others look again.
            let _ = self.ahead.compare_exchange(
                ahead,
                ahead.saturating_add(latest - now),
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::VirtualClock;

    proptest! {
        #[test]
        fn it_never_goes_back_and_passes_as_the_inner_clock_does(
            steps in vec((0u64..5_000, proptest::option::of(0u64..100_000)), 1..50),
        ) {
            let clock = SteadyClock::new(VirtualClock::at(Timestamp::from_millis(50_000)));
            for (passes, set_to) in steps {
                let before = clock.now();
                if let Some(millis) = set_to {
                    let forward = Timestamp::from_millis(millis).since(clock.inner().now());
                    clock.inner().set(Timestamp::from_millis(millis));
                    prop_assert_eq!(clock.now(), before.after(forward));
                }
                let before = clock.now();
                clock.inner().advance(Duration::from_millis(passes));
                prop_assert_eq!(clock.now(), before.after(Duration::from_millis(passes)));
            }
        }
    }

    #[test]
    fn threads_agree_on_one_step() {
        let clock = SteadyClock::new(VirtualClock::at(Timestamp::from_millis(50_000)));
        let before = clock.now();
        clock.inner().set(Timestamp::from_millis(10_000));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| assert_eq!(clock.now(), before));
            }
        });
    }
}
