use core::time::Duration;

use super::*;
use crate::legacy::Legacy;

fn bucket(size: u64, drip_size: u64, interval_ms: u64) -> LeakyBucket {
    LeakyBucket::new(size, drip_size, Duration::from_millis(interval_ms)).unwrap()
}

fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn stored(level: u64, at_ms: u64) -> State {
    State::new(level, ms(at_ms))
}

/// One call per time; the answers as a string of A(llowed) and B(locked), and the state after them.
fn calls(
    bucket: LeakyBucket,
    mut state: State,
    times_ms: &[u64],
) -> (alloc::string::String, State) {
    let mut answers = alloc::string::String::new();
    for &time_ms in times_ms {
        let (decision, next) = bucket.decide(state, Cost::ONE, ms(time_ms));
        answers.push(if decision.is_allowed() { 'A' } else { 'B' });
        state = next;
    }
    (answers, state)
}

/// `remaining`, reset and full reset in milliseconds after one call, as Sharkey's `LimitInfo`.
fn info(bucket: LeakyBucket, state: State, now_ms: u64) -> (bool, u64, u64, u64) {
    let (decision, _) = bucket.decide(state, Cost::ONE, ms(now_ms));
    let snapshot = decision.snapshot();
    let reset = if snapshot.remaining() > 0 { Duration::ZERO } else { snapshot.next_after() };
    let blocked = !decision.is_allowed();
    let full = snapshot.reset_after().as_millis() as u64;
    (blocked, snapshot.remaining(), reset.as_millis() as u64, full)
}

#[test]
fn the_first_call_fills_one_unit_now() {
    assert_eq!(
        calls(bucket(1, 1, 1_000), State::default(), &[1_000]),
        ("A".into(), stored(1, 1_000))
    );
}

#[test]
fn limit_info_matches_the_seeds_vectors() {
    let min_interval = bucket(1, 1, 1_000);
    let legacy = bucket(10, 2, 1_000);
    for (bucket, state, now_ms, expected) in [
        (bucket(2, 1, 1_000), stored(1, 0), 0, (false, 0, 1_000, 2_000)),
        (min_interval, stored(1, 0), 0, (true, 0, 1_000, 1_000)),
        (min_interval, State::default(), 0, (false, 0, 1_000, 1_000)),
        (min_interval, stored(2, 0), 0, (true, 0, 2_000, 2_000)),
        (bucket(10, 1, 1_000), stored(10, 0), 2_000, (false, 1, 0, 9_000)),
        (bucket(10, 1, 1_000), stored(10, 0), 0, (true, 0, 1_000, 10_000)),
        (legacy, stored(9, 0), 0, (false, 0, 1_000, 5_000)),
        (legacy, stored(10, 0), 0, (true, 0, 1_000, 5_000)),
        (legacy, stored(12, 0), 0, (true, 0, 2_000, 6_000)),
    ] {
        assert_eq!(info(bucket, state, now_ms), expected, "{bucket:?} {state:?} at {now_ms}");
    }
}

#[test]
fn drips_move_both_parts_of_the_state() {
    for (bucket, state, times_ms, answers, after) in [
        (bucket(1, 1, 1_000), stored(2, 0), &[2_000][..], "A", stored(1, 2_000)),
        (bucket(2, 2, 1_000), stored(2, 0), &[1_000], "A", stored(1, 1_000)),
        (
            bucket(5, 1, 1_000),
            State::default(),
            &[0, 1_000, 1_000, 1_000, 3_000],
            "AAAAA",
            stored(2, 3_000),
        ),
        (
            bucket(1, 1, 1_000),
            State::default(),
            &[0, 1_000, 1_000, 1_000, 3_000],
            "AABBA",
            stored(1, 3_000),
        ),
        (bucket(1, 1, 1_000), stored(1, 0), &[100], "B", stored(1, 0)),
        (bucket(1, 1, 1_000), stored(1, 0), &[1_000], "A", stored(1, 1_000)),
    ] {
        assert_eq!(calls(bucket, state, times_ms), (answers.into(), after));
    }
}

#[test]
fn a_factor_scales_size_and_interval() {
    let half =
        |size, drip_size, interval_ms| bucket(size, drip_size, interval_ms).with_factor(1, 2);
    assert_eq!(half(1, 1, 1_000).unwrap(), bucket(2, 1, 500));
    assert_eq!(bucket(10, 2, 1_000).with_factor(3, 1).unwrap(), bucket(4, 2, 3_000));
    // (1, 0) already holds one of the two units that a factor of one half makes of one.
    assert_eq!(calls(half(1, 1, 1_000).unwrap(), stored(1, 0), &[0, 0, 500]).0, "ABA");
    assert_eq!(calls(half(10, 2, 1_000).unwrap(), stored(19, 0), &[0, 0, 500]).0, "ABA");
    for (numerator, denominator) in [(0, 1), (1, 0)] {
        let scaled = bucket(1, 1, 1_000).with_factor(numerator, denominator);
        assert_eq!(scaled, Err(LeakyBucketError::Factor));
    }
}

#[test]
fn translated_limits_match_the_seeds_vectors() {
    let legacy = |max, duration_ms, min_interval_ms| {
        let legacy = Legacy { max: Some(max), duration_ms: Some(duration_ms), min_interval_ms };
        legacy.translate().unwrap().bucket.unwrap()
    };
    let ten = legacy(10, 10_000, None);
    assert_eq!(calls(ten, stored(10, 0), &[0, 1_000, 3_000, 3_000, 3_000, 5_000]).0, "BAAABA");
    assert_eq!(calls(legacy(1, 1_000, None), stored(10, 0), &[1_000]).0, "B");
    let many = legacy(4_096, 2_000, None);
    assert_eq!(calls(many, stored(4_096, 0), &[0]).0, "B");
    assert_eq!(calls(many, stored(4_096, 0), &[1]).0, "A");
    let spaced = legacy(10, 5_000, Some(1_000));
    assert_eq!(calls(spaced, stored(10, 0), &[1_000, 1_000, 1_000]).0, "AAB");
    assert_eq!(calls(spaced, stored(10, 0), &[100]), ("B".into(), stored(10, 0)));
}

/// Greedy calls every 10 ms for a minute at size 10, two units dripping per second: Sharkey's
/// formula admits 70, because its timestamp runs ahead with every drip.
#[test]
fn drip_size_counts_toward_the_throughput() {
    let bucket = bucket(10, 2, 1_000);
    let times: alloc::vec::Vec<u64> = (0..6_000).map(|call| call * 10).collect();
    let admitted = calls(bucket, State::default(), &times).0.matches('A').count();
    assert_eq!(admitted, 10 + 2 * 59);
}

/// One call, 9.9 s of nothing, then a burst at size 10: Sharkey banks the idle time and admits 18.
#[test]
fn idle_time_is_not_banked() {
    let mut times = alloc::vec![0];
    times.extend([9_900; 30]);
    let answers = calls(bucket(10, 1, 1_000), State::default(), &times).0;
    assert_eq!(answers.matches('A').count(), 1 + 10);
    let mut times = alloc::vec![0];
    times.extend([950; 30]);
    assert_eq!(calls(bucket(1, 1, 100), State::default(), &times).0.matches('A').count(), 2);
}

/// Sharkey keeps the phase of the first request and lets calls at 0, 1.9 and 3 s pass.
#[test]
fn an_empty_bucket_has_no_phase_so_spacing_holds() {
    assert_eq!(calls(bucket(1, 1, 1_500), State::default(), &[0, 1_900, 3_000, 3_400]).0, "AABA");
}

#[test]
fn reset_counts_from_now_not_from_the_last_drip() {
    let bucket = bucket(2, 1, 1_000);
    assert_eq!(info(bucket, stored(2, 0), 400), (true, 0, 600, 1_600));
}

#[test]
fn a_clock_set_back_neither_grants_twice_nor_locks_for_long() {
    let bucket = bucket(2, 1, 1_000);
    let (answers, state) = calls(bucket, State::default(), &[86_400_000, 86_400_000]);
    assert_eq!(answers, "AA");
    let state = bucket.rewind(state, Timestamp::from_millis(1_000));
    assert_eq!(calls(bucket, state, &[1_000, 2_009, 2_010]).0, "BBA");
}

#[test]
fn bounds_are_checked() {
    let new =
        |size, drip_size, millis| LeakyBucket::new(size, drip_size, Duration::from_millis(millis));
    assert_eq!(new(0, 1, 1), Err(LeakyBucketError::Size));
    assert_eq!(new(1, 0, 1), Err(LeakyBucketError::DripSize));
    assert_eq!(new(1, 1, 0), Err(LeakyBucketError::Interval));
    assert_eq!(new(2, 1, u64::MAX), Err(LeakyBucketError::Interval));
    assert_eq!(new(Quota::UNITS_MAX, 1, u64::MAX), Err(LeakyBucketError::Interval));
}
