//! The slowest, the fastest, the largest and the last: nothing drifts and nothing panics.

use std::time::Duration;

use proptest::prelude::*;
use tollway_core::concurrency::Concurrency;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::gcra::Gcra;
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Algorithm, Quota, Retry, Timestamp};

use crate::key::{Key, START, config};

/// Asks for `units` over and over for `length`, waiting exactly as told; the units admitted.
fn saturate(key: &mut Key, units: u64, start: Timestamp, length: Duration) -> u128 {
    let (mut now, end, mut admitted) = (start, start.after(length), 0);
    while now < end {
        match key.check(units, now).retry() {
            None => admitted += u128::from(units),
            Some(Retry::After(wait)) => {
                assert!(!wait.is_zero(), "{:?} denies and says to come at once", key.algorithm);
                now = now.after(wait);
            }
            Some(Retry::Never) => panic!("{units} units can never be had of {:?}", key.algorithm),
        }
    }
    admitted
}

fn quota(text: &str) -> Quota {
    text.parse().expect("the quotas of these tests are valid")
}

/// Saturated, the key admits its rate times the time, give or take one limit.
fn holds_its_rate(algorithm: Algorithm, units: u64, start: Timestamp, periods: u32) {
    let (rate, period) = algorithm.window().expect("only algorithms with a rate are saturated");
    let mut key = Key::new(algorithm);
    let admitted = saturate(&mut key, units, start, period * periods);
    let ideal = u128::from(rate) * u128::from(periods);
    let limit = u128::from(key.limit());
    assert!(
        admitted <= ideal + limit && admitted + limit >= ideal,
        "{algorithm:?}: {admitted} admitted in {periods} periods, {ideal} would be right"
    );
}

/// Rates that divide nothing, from one a month to a million a second, and how many to ask for.
const RATES: [(&str, u64); 9] = [
    ("1/1s", 1),
    ("7/1s burst 2", 1),
    ("13/1m burst 3", 2),
    ("4500/1h burst 40", 39),
    ("1000000/1s", 200_000),
    ("999983/1s burst 100000", 99_991),
    ("1/86399s burst 2", 1),
    ("3/1us", 1),
    ("999999999999999/1d burst 99999999999999", 77_777_777_777_777),
];

#[test]
fn gcra_does_not_drift_in_ten_thousand_periods() {
    for (text, units) in RATES {
        holds_its_rate(Gcra::new(quota(text)).into(), units, START, 10_000);
    }
}

#[test]
fn leaky_buckets_do_not_drift_in_ten_thousand_periods() {
    for (size, drip_size, interval_ns, units) in [
        (10, 2, 1_000_000_000, 1),
        (1, 1, 1, 1),
        (4_096, 2, 1_000_000, 2),
        (100, 7, 333_333_333, 3),
        (1, 1, 86_399_000_000_000, 1),
        (Quota::UNITS_MAX, 333_333_333_333_333, 1_000_000_007, 111_111_111_111_111),
    ] {
        let bucket = LeakyBucket::new(size, drip_size, Duration::from_nanos(interval_ns)).unwrap();
        holds_its_rate(bucket.into(), units, START, 10_000);
    }
}

#[test]
fn windows_do_not_drift_in_ten_thousand_periods() {
    for (text, units) in [("1/1s", 1), ("6/1001ns", 2), ("1000000/1s", 250_000), ("3/86399s", 1)] {
        for anchor in [Anchor::Epoch, Anchor::FirstRequest] {
            holds_its_rate(FixedWindow::new(quota(text), anchor).into(), units, START, 10_000);
        }
        for buckets in [1, 10, 1_000] {
            let window = SlidingWindow::new(quota(text), buckets).unwrap();
            holds_its_rate(window.into(), units, START, 10_000);
        }
        if let Ok(exact) = SlidingWindow::exact(quota(text)) {
            holds_its_rate(exact.into(), units, START, 10_000);
        }
    }
}

/// Ten thousand months are more than a timestamp can tell: seven thousand from the epoch on.
#[test]
fn one_in_thirty_days_does_not_drift_in_centuries() {
    let month = quota("1/30d");
    let thirty_days = Duration::from_secs(30 * 86_400);
    for algorithm in [
        Gcra::new(month).into(),
        LeakyBucket::new(1, 1, thirty_days).unwrap().into(),
        SlidingWindow::new(month, 30).unwrap().into(),
        SlidingWindow::exact(month).unwrap().into(),
        FixedWindow::new(month, Anchor::Epoch).into(),
        FixedWindow::new(month, Anchor::FirstRequest).into(),
    ] {
        holds_its_rate(algorithm, 1, Timestamp::MIN, 7_000);
    }
}

/// The largest and the smallest numbers that make an algorithm.
fn giants() -> Vec<Algorithm> {
    let (units, period) = (Quota::UNITS_MAX, Quota::PERIOD_MAX);
    let tick = Duration::from_nanos(1);
    let quotas = [
        Quota::new(units, period),
        Quota::new(units, tick),
        Quota::new(1, tick),
        Quota::new(1, period),
        Quota::with_burst(units, tick, 1),
        Quota::with_burst(1, tick, units),
        Quota::with_burst(units - 1, period - Duration::from_secs(1), units),
    ];
    let mut giants = Vec::new();
    for quota in quotas.into_iter().map(Result::unwrap) {
        giants.push(Gcra::new(quota).into());
        giants.push(FixedWindow::new(quota, Anchor::Epoch).into());
        giants.push(FixedWindow::new(quota, Anchor::FirstRequest).into());
        let buckets = SlidingWindow::CELLS_MAX.min(quota.period().as_nanos() as u64);
        giants.push(SlidingWindow::new(quota, buckets).expect("in bounds").into());
        giants.extend(SlidingWindow::exact(quota).ok().map(Algorithm::from));
    }
    for (size, drip_size, interval) in
        [(units, units, period), (units, 1, tick), (1, units, period), (1, 1, tick)]
    {
        giants.push(LeakyBucket::new(size, drip_size, interval).expect("in bounds").into());
    }
    for (limit, lease) in [(1, tick), (Concurrency::LIMIT_MAX, period)] {
        giants.push(Concurrency::new(limit, lease).expect("in bounds").into());
    }
    giants
}

fn any_moment() -> impl Strategy<Value = Timestamp> {
    let nanos = prop_oneof![
        any::<u64>(),
        0..5u64,
        (0..5u64).prop_map(|back| u64::MAX - back),
        (0..5_000_000_000u64).prop_map(|back| u64::MAX - back),
        Just(START.as_nanos()),
    ];
    nanos.prop_map(Timestamp::from_nanos)
}

fn any_units() -> impl Strategy<Value = u64> {
    prop_oneof![1..4u64, Just(u64::MAX), Just(Quota::UNITS_MAX), any::<u64>()]
}

proptest! {
    #![proptest_config(config())]

    /// Any operation, any cost, at any moment and in any order, on the most extreme algorithms.
    #[test]
    fn nothing_panics_and_nothing_exceeds_its_limit(
        algorithm in prop::sample::select(giants()),
        acts in prop::collection::vec((0..5u8, any_units(), any_moment(), any_moment()), 1..30),
    ) {
        let mut key = Key::new(algorithm);
        for (act, units, now, taken_at) in acts {
            match act {
                0 => key.count(units, now),
                1 => key.refund(units, now),
                2 => key.state.refund(&algorithm, units, Some(taken_at), now),
                _ => drop(key.check(units, now)),
            }
            let snapshot = key.peek(now);
            prop_assert!(snapshot.remaining() <= snapshot.limit());
            prop_assert!(snapshot.next_after() <= snapshot.reset_after());
            let _ = key.state.vacant_at(&algorithm);
        }
    }
}

#[test]
fn more_than_the_limit_is_never_to_be_had_and_changes_nothing() {
    for algorithm in giants() {
        for units in [algorithm.limit() + 1, u64::MAX] {
            let mut key = Key::new(algorithm);
            let before = key.state.clone();
            assert_eq!(key.check(units, START).retry(), Some(Retry::Never));
            assert_eq!(key.state, before);
        }
    }
}

#[test]
fn the_last_period_of_time_is_limited_like_any_other() {
    for text in ["3/1s", "3/1h"] {
        let quota = quota(text);
        let start = Timestamp::MAX.before(quota.period() + Duration::from_nanos(1));
        for algorithm in [
            Gcra::new(quota).into(),
            SlidingWindow::exact(quota).unwrap().into(),
            FixedWindow::new(quota, Anchor::FirstRequest).into(),
            Concurrency::new(3, quota.period()).unwrap().into(),
        ] {
            let mut key = Key::new(algorithm);
            assert!(key.check(3, start).is_allowed());
            assert!(!key.check(3, start.after(quota.period() / 2)).is_allowed());
        }
    }
}
