use core::time::Duration;

use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::concurrency::Concurrency;
use crate::fixed_window::{Anchor, FixedWindow};
use crate::gcra::Gcra;
use crate::leaky_bucket::LeakyBucket;
use crate::sliding_window::SlidingWindow;
use crate::{Charge, Cost, Key, Policy, Quota, Retry};

fn start() -> Timestamp {
    Timestamp::from_millis(1_700_000_000_123)
}

fn gcra(text: &str) -> Algorithm {
    text.parse::<Quota>().unwrap().into()
}

/// One of each algorithm, with `limit` units per `period`.
fn of_limit(limit: u64, period: Duration) -> Vec<Algorithm> {
    let quota = Quota::new(limit, period).unwrap();
    let drip = (period / limit as u32).max(Duration::from_nanos(1));
    Vec::from([
        Algorithm::from(quota),
        LeakyBucket::new(limit, 1, drip).unwrap().into(),
        FixedWindow::new(quota, Anchor::Epoch).into(),
        FixedWindow::new(quota, Anchor::FirstRequest).into(),
        SlidingWindow::new(quota, 10).unwrap().into(),
        SlidingWindow::exact(quota).unwrap().into(),
    ])
}

fn take(state: &mut State, algorithm: &Algorithm, units: u64, now: Timestamp) -> bool {
    let policy = Policy::new("p", *algorithm).unwrap();
    let cost = Cost::new(units).unwrap();
    let charge = Charge::new(&policy, Key::new("k").unwrap()).cost(cost);
    state.charge(&charge, 0, now).is_allowed()
}

fn taken(algorithm: &Algorithm, units: u64, now: Timestamp) -> State {
    let mut state = State::vacant(algorithm);
    if units > 0 {
        assert!(take(&mut state, algorithm, units, now));
    }
    state
}

fn left(state: &State, algorithm: &Algorithm, now: Timestamp) -> u64 {
    state.peek(algorithm, now).remaining()
}

fn hour() -> Duration {
    Duration::from_hours(1)
}

#[test]
fn used_units_stay_used_and_a_raise_gives_the_difference() {
    for old in of_limit(10, hour()) {
        for new in of_limit(20, hour()) {
            let state = taken(&old, 6, start());
            let carried = state.carry(&old, &new, OnChange::AsIs, start());
            assert_eq!(left(&carried, &new, start()), 14, "{old:?} to {new:?}");
        }
    }
}

#[test]
fn a_share_stays_used_and_is_rounded_up() {
    for old in of_limit(10, hour()) {
        for (limit, expected) in [(20, 8), (3, 1)] {
            for new in of_limit(limit, hour()) {
                let state = taken(&old, 6, start());
                let carried = state.carry(&old, &new, OnChange::Proportional, start());
                assert_eq!(left(&carried, &new, start()), expected, "{old:?} to {new:?}");
            }
        }
    }
}

#[test]
fn a_reset_leaves_nothing_used() {
    for old in of_limit(10, hour()) {
        for new in of_limit(20, hour()) {
            let carried = taken(&old, 6, start()).carry(&old, &new, OnChange::Reset, start());
            assert_eq!(left(&carried, &new, start()), 20, "{old:?} to {new:?}");
        }
    }
}

#[test]
fn a_fraction_of_a_unit_is_kept_between_gcras() {
    let (old, new) = (gcra("10/1h"), gcra("20/1h"));
    let state = taken(&old, 10, start());
    // Half a unit came back under the old numbers.
    let now = start().after(Duration::from_mins(3));
    let carried = state.carry(&old, &new, OnChange::AsIs, now);
    let snapshot = carried.peek(&new, now);
    assert_eq!(snapshot.remaining(), 10);
    // The other half comes at the new rate, 20 an hour.
    assert_eq!(snapshot.next_after(), Duration::from_secs(90));
}

#[test]
fn drips_that_come_as_often_keep_their_moments() {
    let bucket = |size| LeakyBucket::new(size, 1, Duration::from_secs(10)).unwrap().into();
    let (old, new): (Algorithm, Algorithm) = (bucket(5), bucket(8));
    let state = taken(&old, 5, start());
    let now = start().after(Duration::from_secs(17));
    let carried = state.carry(&old, &new, OnChange::AsIs, now);
    let snapshot = carried.peek(&new, now);
    assert_eq!((snapshot.remaining(), snapshot.next_after()), (4, Duration::from_secs(3)));
}

#[test]
fn a_sliding_window_keeps_when_units_were_taken() {
    let window = |text: &str| SlidingWindow::exact(text.parse().unwrap()).unwrap().into();
    let (old, new): (Algorithm, Algorithm) = (window("10/1h"), window("10/30m"));
    let mut state = taken(&old, 4, start());
    let at = |minutes| start().after(Duration::from_mins(minutes));
    assert!(take(&mut state, &old, 3, at(20)));
    let carried = state.carry(&old, &new, OnChange::AsIs, at(40));
    assert_eq!(left(&carried, &new, at(40)), 7, "four are older than half an hour");
    assert_eq!(left(&carried, &new, at(50)), 10);
}

#[test]
fn permits_stay_held_until_they_are_released() {
    let permits = |limit| Algorithm::from(Concurrency::new(limit, hour()).unwrap());
    let (old, new) = (permits(10), permits(2));
    let mut state = State::vacant(&old);
    for id in 1..=3 {
        let _ = state.count(&old, Cost::ONE, id, start());
    }
    let mut carried = state.carry(&old, &new, OnChange::AsIs, start());
    assert!(!take(&mut carried, &new, 1, start()));
    let (Algorithm::Concurrency(limit), State::Concurrency(holds)) = (&new, &mut carried) else {
        panic!("permits")
    };
    assert!(limit.release(holds, 1, start()) && limit.release(holds, 2, start()));
    assert_eq!(left(&carried, &new, start()), 1);
    let wider = permits(4);
    assert_eq!(left(&carried.carry(&new, &wider, OnChange::AsIs, start()), &wider, start()), 3);
}

#[test]
fn units_in_flight_are_used_under_a_rate_and_used_units_are_not_in_flight() {
    let permits = Algorithm::from(Concurrency::new(10, hour()).unwrap());
    for rate in of_limit(20, hour()) {
        let carried = taken(&permits, 3, start()).carry(&permits, &rate, OnChange::AsIs, start());
        assert_eq!(left(&carried, &rate, start()), 17, "{rate:?}");
        let carried = taken(&rate, 3, start()).carry(&rate, &permits, OnChange::AsIs, start());
        assert_eq!(left(&carried, &permits, start()), 10, "{rate:?}");
    }
}

/// ratelimit #744: `requests_per_unit` from 5 to 6 with 5 used leaves 1.
#[test]
fn ratelimit_744_a_limit_raised_in_mid_window_gives_the_difference() {
    let window = |limit: u64| -> Algorithm {
        FixedWindow::new(Quota::new(limit, hour()).unwrap(), Anchor::Epoch).into()
    };
    let state = taken(&window(5), 5, start());
    let mut carried = state.carry(&window(5), &window(6), OnChange::AsIs, start());
    assert!(take(&mut carried, &window(6), 1, start()));
    assert!(!take(&mut carried, &window(6), 1, start()));
}

/// boulder #8785: an override takes effect at once, and the wait that is told is true.
#[test]
fn boulder_8785_an_override_is_obeyed_at_once_and_its_wait_is_true() {
    let (old, new) = (gcra("10/1h"), gcra("2/1h"));
    let mut carried = taken(&old, 10, start()).carry(&old, &new, OnChange::AsIs, start());
    let retry = carried.retry(&new, Cost::ONE, start());
    let Some(Retry::After(wait)) = retry else { panic!("{retry:?}") };
    assert_eq!(wait, Duration::from_mins(30));
    assert!(!take(&mut carried, &new, 1, start().after(wait).before(Duration::from_nanos(1))));
    assert!(take(&mut carried, &new, 1, start().after(wait)));
}

/// What was taken by one call is not granted again to another with other numbers, however often
/// both ask in turn; and a call that brings a higher rate is never denied for a lower one.
#[test]
fn numbers_of_calls_that_are_asked_in_turn_mint_nothing_and_lose_nothing() {
    let call = |text: &str| Algorithm::from(Gcra::per_call(text.parse().unwrap()));
    let (wide, narrow) = (call("1/6s burst 40"), call("1/60s burst 10"));
    let mut state = taken(&wide, 35, start());
    for minutes in 0..3 {
        let now = start().after(Duration::from_mins(minutes));
        let before = left(&state, &wide, now);
        assert_eq!(before, 5 + 10 * minutes);
        for _ in 0..5 {
            state = state.carry(&wide, &narrow, OnChange::AsIs, now);
            assert!(!take(&mut state, &narrow, 1, now));
            state = state.carry(&narrow, &wide, OnChange::AsIs, now);
            assert_eq!(left(&state, &wide, now), before);
        }
    }
    // Nine units are used then: one is left of ten.
    let now = start().after(Duration::from_secs(26 * 6));
    let carried = state.carry(&wide, &narrow, OnChange::AsIs, now);
    assert_eq!((left(&carried, &narrow, now), left(&state, &wide, now)), (1, 31));
}

#[test]
fn a_call_with_smaller_numbers_waits_until_enough_has_come_back() {
    let call = |text: &str| Algorithm::from(Gcra::per_call(text.parse().unwrap()));
    let (wide, narrow) = (call("1/6s burst 40"), call("1/60s burst 10"));
    let mut carried = taken(&wide, 40, start()).carry(&wide, &narrow, OnChange::AsIs, start());
    let Some(Retry::After(wait)) = carried.retry(&narrow, Cost::ONE, start()) else { panic!() };
    assert_eq!(wait, Duration::from_secs(30 * 6 + 60), "thirty at the old rate, one at the new");
    assert!(!take(&mut carried, &narrow, 1, start().after(wait).before(Duration::from_nanos(1))));
    assert!(take(&mut carried, &narrow, 1, start().after(wait)));
}

#[test]
fn who_asks_by_older_numbers_is_decided_by_the_newer_unless_these_say_nothing() {
    for old in of_limit(1_000, hour()) {
        for new in of_limit(10, hour()) {
            let state = taken(&old, 1_000, start()).carry(&old, &new, OnChange::AsIs, start());
            assert!(state.keeps_its_numbers(&new, &old, start()), "{old:?} to {new:?}");
            let full = start().after(hour() * 3);
            assert!(!state.keeps_its_numbers(&new, &old, full), "{old:?} to {new:?}");
        }
    }
    let call = Algorithm::from(Gcra::per_call("10/1h".parse().unwrap()));
    assert!(!taken(&call, 1, start()).keeps_its_numbers(&call, &gcra("1/1s"), start()));
}

#[test]
fn a_state_that_says_nothing_is_as_good_as_none_under_any_numbers() {
    let (narrow, wide) = (gcra("3/1h"), gcra("11/1h"));
    let state = taken(&narrow, 3, start());
    let now = start().after(hour());
    assert_eq!(left(&state.carry(&narrow, &wide, OnChange::AsIs, now), &wide, now), 11);
}

prop_compose! {
    fn any_rate()(limit in 1..200u64, period_ms in 1..100_000u64, index in 0..6usize)
        -> Algorithm {
        of_limit(limit, Duration::from_millis(period_ms))[index]
    }
}

/// The longest time after which one unit is to be had again.
fn fill(algorithm: &Algorithm) -> Duration {
    let Some((units, period)) = algorithm.window() else { panic!("a rate") };
    match algorithm {
        Algorithm::LeakyBucket(bucket) => bucket.interval() * bucket.size() as u32,
        Algorithm::Gcra(gcra) => period * gcra.quota().burst().div_ceil(units) as u32,
        _ => period,
    }
}

proptest! {
    /// As it is: what was left plus the difference, rounded down, and nothing more.
    #[test]
    fn units_neither_appear_nor_vanish(
        old in any_rate(), new in any_rate(), units in 0..200u64, wait_ms in 0..100_000u64,
    ) {
        let same_kind = matches!(
            (&old, &new),
            (Algorithm::SlidingWindow(_), Algorithm::SlidingWindow(_))
        );
        prop_assume!(!same_kind, "a window knows when units were taken");
        let now = start().after(Duration::from_millis(wait_ms));
        let state = taken(&old, units.min(old.limit()), start());
        let used = old.limit() - left(&state, &old, now);
        let carried = state.carry(&old, &new, OnChange::AsIs, now);
        let expected = new.limit().saturating_sub(used);
        // A fraction of a unit that is back already counts between two of GCRA only.
        prop_assert_eq!(left(&carried, &new, now), expected);
    }

    #[test]
    fn a_raise_never_denies_what_was_allowed(
        old in any_rate(), more in 0..100u64, index in 0..6usize, units in 0..200u64,
        wait_ms in 0..100_000u64, rule in 0..3usize,
    ) {
        let (_, period) = old.window().unwrap();
        let period = if matches!(old, Algorithm::LeakyBucket(_)) { fill(&old) } else { period };
        let new = of_limit(old.limit() + more, period)[index];
        let now = start().after(Duration::from_millis(wait_ms));
        let state = taken(&old, units.min(old.limit()), start());
        let carried = state.carry(&old, &new, OnChange::ALL[rule], now);
        prop_assert!(left(&carried, &new, now) >= left(&state, &old, now));
    }

    #[test]
    fn a_lowered_limit_locks_for_one_new_fill_at_most(
        old in any_rate(), new in any_rate(), wait_ms in 0..100_000u64, rule in 0..3usize,
    ) {
        let now = start().after(Duration::from_millis(wait_ms));
        let state = taken(&old, old.limit(), start());
        let carried = state.carry(&old, &new, OnChange::ALL[rule], now);
        match carried.retry(&new, Cost::ONE, now) {
            Some(Retry::After(wait)) => prop_assert!(wait <= fill(&new), "{:?}", wait),
            Some(never) => prop_assert!(false, "{:?}", never),
            None => {}
        }
    }

    /// Those of the newer numbers are decided by these only from their first request on, and those
    /// of the older too: together they have at least the smaller limit and at most the larger.
    #[test]
    fn callers_of_old_and_new_numbers_together_have_between_the_one_limit_and_the_other(
        limits in (1..60u64, 1..60u64), kinds in (0..6usize, 0..6usize),
        callers in proptest::collection::vec(any::<bool>(), 60..130),
    ) {
        let (old, new) =
            (of_limit(limits.0, hour())[kinds.0], of_limit(limits.1, hour())[kinds.1]);
        let (mut state, mut kept_under) = (State::vacant(&old), old);
        let mut granted = 0;
        let before_last = callers.iter().rposition(|is_new| !is_new).map_or(0, |last| last + 1);
        let mut both = 0;
        for (number, is_new) in callers.iter().enumerate() {
            if *is_new && kept_under != new {
                state = state.carry(&kept_under, &new, OnChange::AsIs, start());
                kept_under = new;
            }
            granted += u64::from(take(&mut state, &kept_under, 1, start()));
            both = if number < before_last { granted } else { both };
        }
        let (least, most) = (limits.0.min(limits.1), limits.0.max(limits.1));
        prop_assert!(granted >= least.min(callers.len() as u64) && granted <= most);
        // After the last of the old ones everything is as if all had been new.
        let asked_after = (callers.len() - before_last) as u64;
        if before_last > 0 && kept_under == new {
            let expected = limits.1.saturating_sub(both).min(asked_after);
            prop_assert_eq!(granted - both, expected);
        }
    }

    #[test]
    fn the_same_numbers_change_nothing_that_is_told(
        rate in any_rate(), units in 1..200u64, wait_ms in 0..100_000u64,
    ) {
        let now = start().after(Duration::from_millis(wait_ms));
        let state = taken(&rate, units.min(rate.limit()), start());
        let carried = state.carry(&rate, &rate, OnChange::AsIs, now);
        prop_assert_eq!(carried.peek(&rate, now), state.peek(&rate, now));
    }
}
