use core::time::Duration;

use super::*;

fn limit(text: &str) -> Gcra {
    Gcra::new(text.parse().unwrap())
}

fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

/// The vectors shared by throttled and redis-cell: time, quantity, limited, remaining, retry (-1 if
/// allowed or never), reset; all times in milliseconds.
#[test]
fn the_sixteen_shared_vectors_hold_to_the_millisecond() {
    let limit = limit("1/s burst 5");
    let mut state = State::default();
    for (step, (at_ms, quantity, limited, remaining, retry_ms, reset_ms)) in [
        (0, 6, true, 5, -1, 0),
        (0, 1, false, 4, -1, 1_000),
        (0, 1, false, 3, -1, 2_000),
        (0, 1, false, 2, -1, 3_000),
        (0, 1, false, 1, -1, 4_000),
        (0, 1, false, 0, -1, 5_000),
        (0, 1, true, 0, 1_000, 5_000),
        (3_000, 1, false, 2, -1, 3_000),
        (3_100, 1, false, 1, -1, 3_900),
        (4_000, 1, false, 1, -1, 4_000),
        (8_000, 1, false, 4, -1, 1_000),
        (9_500, 1, false, 4, -1, 1_000),
        (9_500, 0, false, 4, -1, 1_000),
        (9_500, 2, false, 2, -1, 3_000),
        (9_500, 5, true, 2, 3_000, 3_000),
        (15_000, 6, true, 5, -1, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let now = Timestamp::from_millis(at_ms);
        let decision = match Cost::new(quantity) {
            None => Decision::Allow(limit.peek(state, now)),
            Some(cost) => {
                let (decision, next) = limit.decide(state, cost, now);
                state = next;
                decision
            }
        };
        let snapshot = decision.snapshot();
        assert_eq!(!decision.is_allowed(), limited, "step {step}");
        assert_eq!(snapshot.remaining(), remaining, "step {step}");
        assert_eq!(snapshot.reset_after(), Duration::from_millis(reset_ms), "step {step}");
        let after = decision.retry().and_then(Retry::after).map(|after| after.as_millis() as i64);
        assert_eq!(after.unwrap_or(-1), retry_ms, "step {step}");
    }
}

/// A seventh of a second is no whole number of nanoseconds; every wait is rounded up, but with room
/// for a burst of two the rounding is given back at the next request.
#[test]
fn a_rate_that_does_not_divide_the_period_does_not_drift() {
    let limit = limit("7/s burst 2");
    let start = Timestamp::from_nanos(1_700_000_000_000_000_123);
    let (mut state, mut now, mut admitted) = (State::default(), start, 0);
    while now <= start.after(Duration::from_secs(10_000)) {
        let (decision, next) = limit.decide(state, Cost::ONE, now);
        state = next;
        match decision.retry() {
            None => admitted += 1,
            Some(retry) => now = now.after(retry.after().unwrap()),
        }
    }
    assert_eq!(admitted, 2 + 7 * 10_000);
}

#[test]
fn next_after_is_when_one_more_unit_remains_and_not_before() {
    let limit = limit("7/s burst 5");
    let now = Timestamp::from_millis(5_000);
    let (_, state) = limit.decide(State::default(), cost(3), now);
    let later = now.after(Duration::from_millis(50));
    let next = limit.peek(state, later).next_after();
    let before = limit.peek(state, later.after(next).before(Duration::from_nanos(1)));
    assert_eq!((before.remaining(), limit.peek(state, later.after(next)).remaining()), (2, 3));
    assert_eq!(limit.peek(State::default(), now).next_after(), Duration::ZERO);
}

#[test]
fn a_clock_set_back_locks_a_key_for_one_fill_and_grants_nothing_twice() {
    let limit = limit("1/s burst 5");
    let noon = Timestamp::from_millis(86_400_000);
    let (_, state) = limit.decide(State::default(), cost(5), noon);
    let yesterday = Timestamp::from_millis(1_000);
    let state = limit.rewind(state, yesterday);
    let (decision, state) = limit.decide(state, Cost::ONE, yesterday);
    assert_eq!(decision.retry(), Some(Retry::After(Duration::from_secs(1))));
    let (decision, _) = limit.decide(state, Cost::ONE, yesterday.after(Duration::from_secs(1)));
    assert!(decision.is_allowed());
}

#[test]
fn a_quota_that_comes_with_the_call_finds_what_another_left() {
    let per_call = |text: &str| Gcra::per_call(text.parse().unwrap());
    let (slow, fast) = (per_call("1/1h burst 2"), per_call("1/1s burst 2"));
    let now = Timestamp::from_millis(86_400_000);
    let (_, state) = slow.decide(State::default(), cost(2), now);
    let (decision, after) = fast.decide(state, Cost::ONE, now);
    let wait = Duration::from_secs(7_200 + 1 - 2);
    assert_eq!((decision.retry(), after), (Some(Retry::After(wait)), state));
    let by_word = fast.decide_word(state.to_words()[0], Cost::ONE, now);
    assert_eq!((fast.report(by_word), by_word.tat_ns()), (decision, state.to_words()[0]));
    let tick = Duration::from_nanos(1);
    assert!(!fast.decide(state, Cost::ONE, now.after(wait).before(tick)).0.is_allowed());
    assert!(fast.decide(state, Cost::ONE, now.after(wait)).0.is_allowed());
}

#[test]
fn the_end_of_time_neither_panics_nor_forgives() {
    let widest = Quota::with_burst(Quota::UNITS_MAX, Quota::PERIOD_MAX, Quota::UNITS_MAX).unwrap();
    let limit = Gcra::new(widest);
    let (first, state) = limit.decide(State::default(), cost(Quota::UNITS_MAX), Timestamp::MAX);
    assert!(first.is_allowed());
    assert!(!limit.decide(state, Cost::ONE, Timestamp::MAX).0.is_allowed());
    let (never, _) = limit.decide(state, cost(u64::MAX), Timestamp::MAX);
    assert_eq!(never.retry(), Some(Retry::Never));
    assert_eq!(limit.vacant_at(state), Timestamp::MAX);
    let _ = limit.refund(state, u64::MAX, Timestamp::MIN);
}

#[test]
fn a_refund_never_fills_beyond_full() {
    let limit = limit("1/s burst 5");
    let now = Timestamp::from_millis(1_000);
    let (_, state) = limit.decide(State::default(), cost(2), now);
    assert_eq!(limit.peek(limit.refund(state, 1, now), now).remaining(), 4);
    let full = limit.refund(state, 100, now);
    assert_eq!(limit.peek(full, now), limit.peek(State::default(), now));
    // Full as of then: who read the clock a second earlier does not find it full as of that.
    assert_eq!(limit.peek(full, Timestamp::from_millis(0)).remaining(), 4);
}

#[test]
fn words_carry_a_state_whole() {
    let limit = limit("999983/1s");
    let (_, state) = limit.decide(State::default(), Cost::ONE, Timestamp::from_nanos(u64::MAX / 2));
    assert_ne!(state.to_words()[1], 0);
    assert_eq!(State::from_words(state.to_words()), state);
}
