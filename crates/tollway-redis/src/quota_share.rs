//! Shares of a quota: what one of several processes, or one of several slots, may grant.
//!
//! | algorithm | share `i` of `n` |
//! |---|---|
//! | GCRA | the same units per `n` periods; burst ÷ `n` |
//! | leaky bucket | the same drips per `n` intervals; size ÷ `n` |
//! | windows, concurrency | limit ÷ `n`, in the same time |
//!
//! A division that leaves a remainder gives one unit more to each of the first shares: together the
//! shares are the quota, to the unit. Rates are stretched, not divided, so they are exact.

use std::time::Duration;

use tollway_core::concurrency::Concurrency;
use tollway_core::fixed_window::FixedWindow;
use tollway_core::gcra::Gcra;
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Algorithm, Quota};

/// Share `index` of `shares`; `None` if it would be empty, or its time too long.
pub(crate) fn share(algorithm: &Algorithm, shares: u32, index: u32) -> Option<Algorithm> {
    let shares = shares.max(1);
    let units = portion(algorithm.limit(), shares, index);
    with_limit(algorithm, shares, units)
}

/// What each of `shares` processes may grant on its own: the smallest share, but at least one unit.
/// Together they grant at most the larger of the limit and `shares`.
pub(crate) fn smallest_share(algorithm: &Algorithm, shares: u32) -> Option<Algorithm> {
    let shares = shares.max(1);
    let units = portion(algorithm.limit(), shares, shares - 1).max(1);
    with_limit(algorithm, shares, units)
}

fn portion(limit: u64, shares: u32, index: u32) -> u64 {
    let (shares, index) = (u64::from(shares), u64::from(index));
    limit / shares + u64::from(index < limit % shares)
}

fn with_limit(algorithm: &Algorithm, shares: u32, units: u64) -> Option<Algorithm> {
    Some(match algorithm {
        Algorithm::Gcra(gcra) => {
            let quota = gcra.quota();
            let period = stretched(quota.period(), shares)?;
            Gcra::new(Quota::with_burst(quota.units(), period, units).ok()?).into()
        }
        Algorithm::LeakyBucket(bucket) => {
            let interval = stretched(bucket.interval(), shares)?;
            LeakyBucket::new(units, bucket.drip_size(), interval).ok()?.into()
        }
        Algorithm::FixedWindow(window) => {
            let quota = Quota::new(units, window.quota().period()).ok()?;
            FixedWindow::new(quota, window.anchor()).into()
        }
        Algorithm::SlidingWindow(window) => {
            let quota = Quota::new(units, window.period()).ok()?;
            let buckets = SlidingWindow::new(quota, window.buckets());
            buckets.or_else(|_| SlidingWindow::exact(quota)).ok()?.into()
        }
        Algorithm::Concurrency(limit) => Concurrency::new(units, limit.lease()).ok()?.into(),
        _ => return None,
    })
}

fn stretched(time: Duration, shares: u32) -> Option<Duration> {
    time.checked_mul(shares).filter(|time| *time <= Quota::PERIOD_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gcra(text: &str) -> Algorithm {
        text.parse::<Quota>().unwrap().into()
    }

    #[test]
    fn shares_are_together_the_whole_to_the_unit() {
        let quota = "103/1s".parse::<Quota>().unwrap();
        let all: [Algorithm; 3] = [
            gcra("10/1s burst 103"),
            LeakyBucket::new(103, 2, Duration::from_secs(1)).unwrap().into(),
            SlidingWindow::new(quota, 10).unwrap().into(),
        ];
        for algorithm in all {
            let limits = (0..4).map(|index| share(&algorithm, 4, index).unwrap().limit());
            assert_eq!(limits.collect::<Vec<_>>(), [26, 26, 26, 25]);
        }
    }

    #[test]
    fn rates_are_exact() {
        let Some(Algorithm::Gcra(gcra)) = share(&gcra("10/1s burst 103"), 4, 0) else {
            panic!("a share of GCRA is GCRA");
        };
        assert_eq!(gcra.quota().to_string(), "10/4s burst 26");
    }

    #[test]
    fn an_empty_share_is_none_but_a_process_may_always_grant_one() {
        assert!(share(&gcra("3/1s"), 4, 3).is_none());
        assert_eq!(smallest_share(&gcra("3/1s"), 4).unwrap().limit(), 1);
    }
}
