//! The most that each algorithm admits within an interval, whatever is asked and whoever comes
//! late.

use std::time::Duration;

use tollway_core::Algorithm;

/// The most units that may be admitted from one moment to another one `length` later, both
/// included.
///
/// # Panics
///
/// If the algorithm is one that nobody has given a bound here.
pub fn bound(algorithm: &Algorithm, length: Duration) -> u128 {
    let length = length.as_nanos();
    match algorithm {
        Algorithm::Gcra(gcra) => {
            let quota = gcra.quota();
            let refilled = length * u128::from(quota.units()) / quota.period().as_nanos();
            u128::from(quota.burst()) + refilled
        }
        Algorithm::LeakyBucket(bucket) => {
            let drips = length.div_ceil(bucket.interval().as_nanos());
            u128::from(bucket.size()) + drips * u128::from(bucket.drip_size())
        }
        Algorithm::SlidingWindow(window) => {
            let (period, buckets) = (window.period().as_nanos(), u128::from(window.buckets()));
            // What all buckets but one cover is looked at whole, whatever the phase.
            let whole = period * (buckets - 1);
            let windows =
                if whole == 0 { length / period + 2 } else { (length * buckets).div_ceil(whole) };
            per(window.limit(), windows.max(1))
        }
        Algorithm::FixedWindow(window) => {
            // One more than fit: the first may have started just before, and the last ends later.
            let windows = length / window.quota().period().as_nanos();
            per(window.quota().units(), windows + 2)
        }
        Algorithm::Concurrency(limit) => per(limit.limit(), length / limit.lease().as_nanos() + 1),
        Algorithm::CalendarWindow(window) => {
            // Clocks change by a few hours at most, or leave out a day; a month may lack three.
            let about = window.calendar().unit().about().as_nanos();
            per(algorithm.limit(), length / (about / 2) + 2)
        }
        other => panic!("no bound is known for {other:?}"),
    }
}

fn per(units: u64, windows: u128) -> u128 {
    u128::from(units) * windows
}
