use core::time::Duration;

use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::concurrency::Concurrency;
use crate::fixed_window::{Anchor, FixedWindow};
use crate::leaky_bucket::LeakyBucket;
use crate::sliding_window::SlidingWindow;
use crate::{Charge, Key, Policy, Quota, Retry};

const FORWARD: Change = Change { rule: OnChange::AsIs, order: Order::Forward };
const BACK: Change = Change { rule: OnChange::AsIs, order: Order::Back };

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
            let carried = state.carry(&old, &new, FORWARD, start());
            assert_eq!(left(&carried, &new, start()), 14, "{old:?} to {new:?}");
        }
    }
}

#[test]
fn a_share_stays_used_and_is_rounded_up() {
    let share = Change { rule: OnChange::Proportional, ..FORWARD };
    for old in of_limit(10, hour()) {
        for (limit, expected) in [(20, 8), (3, 1)] {
            for new in of_limit(limit, hour()) {
                let state = taken(&old, 6, start());
                let carried = state.carry(&old, &new, share, start());
                assert_eq!(left(&carried, &new, start()), expected, "{old:?} to {new:?}");
            }
        }
    }
}

#[test]
fn a_reset_leaves_nothing_used() {
    let reset = Change { rule: OnChange::Reset, ..FORWARD };
    for old in of_limit(10, hour()) {
        for new in of_limit(20, hour()) {
            let carried = taken(&old, 6, start()).carry(&old, &new, reset, start());
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
    let carried = state.carry(&old, &new, FORWARD, now);
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
    let carried = state.carry(&old, &new, FORWARD, now);
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
    let carried = state.carry(&old, &new, FORWARD, at(40));
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
    let mut carried = state.carry(&old, &new, FORWARD, start());
    assert!(!take(&mut carried, &new, 1, start()));
    let (Algorithm::Concurrency(limit), State::Concurrency(holds)) = (&new, &mut carried) else {
        panic!("permits")
    };
    assert!(limit.release(holds, 1, start()) && limit.release(holds, 2, start()));
    assert_eq!(left(&carried, &new, start()), 1);
    let wider = permits(4);
    assert_eq!(left(&carried.carry(&new, &wider, FORWARD, start()), &wider, start()), 3);
}

#[test]
fn units_in_flight_are_used_under_a_rate_and_used_units_are_not_in_flight() {
    let permits = Algorithm::from(Concurrency::new(10, hour()).unwrap());
    for rate in of_limit(20, hour()) {
        let carried = taken(&permits, 3, start()).carry(&permits, &rate, FORWARD, start());
        assert_eq!(left(&carried, &rate, start()), 17, "{rate:?}");
        let carried = taken(&rate, 3, start()).carry(&rate, &permits, FORWARD, start());
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
    let mut carried = state.carry(&window(5), &window(6), FORWARD, start());
    assert!(take(&mut carried, &window(6), 1, start()));
    assert!(!take(&mut carried, &window(6), 1, start()));
}

/// boulder #8785: an override takes effect at once, and the wait that is told is true.
#[test]
fn boulder_8785_an_override_is_obeyed_at_once_and_its_wait_is_true() {
    let (old, new) = (gcra("10/1h"), gcra("2/1h"));
    let mut carried = taken(&old, 10, start()).carry(&old, &new, FORWARD, start());
    let retry = carried.retry(&new, Cost::ONE, start());
    let Some(Retry::After(wait)) = retry else { panic!("{retry:?}") };
    assert_eq!(wait, Duration::from_mins(30));
    assert!(!take(&mut carried, &new, 1, start().after(wait).before(Duration::from_nanos(1))));
    assert!(take(&mut carried, &new, 1, start().after(wait)));
}

/// What was cut when the limit was lowered is not granted again to those who still ask by the old
/// one, however often both ask in turn.
#[test]
fn numbers_asked_in_turn_mint_nothing() {
    for wide in of_limit(1_000, hour()) {
        for narrow in of_limit(10, hour()) {
            let mut state = taken(&wide, 1_000, start());
            for _ in 0..5 {
                state = state.carry(&wide, &narrow, FORWARD, start());
                assert!(!take(&mut state, &narrow, 1, start()), "{wide:?} to {narrow:?}");
                state = state.carry(&narrow, &wide, BACK, start());
                assert!(!take(&mut state, &wide, 1, start()), "{narrow:?} back to {wide:?}");
            }
        }
    }
}

#[test]
fn a_state_that_says_nothing_is_as_good_as_none_under_any_numbers() {
    let (narrow, wide) = (gcra("3/1h"), gcra("11/1h"));
    let state = taken(&narrow, 3, start());
    let now = start().after(hour());
    assert_eq!(left(&state.carry(&narrow, &wide, BACK, now), &wide, now), 11);
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
        let carried = state.carry(&old, &new, FORWARD, now);
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
        let change = Change { rule: OnChange::ALL[rule], ..FORWARD };
        let carried = state.carry(&old, &new, change, now);
        prop_assert!(left(&carried, &new, now) >= left(&state, &old, now));
    }

    #[test]
    fn a_lowered_limit_locks_for_one_new_fill_at_most(
        old in any_rate(), new in any_rate(), wait_ms in 0..100_000u64, rule in 0..3usize,
    ) {
        let now = start().after(Duration::from_millis(wait_ms));
        let state = taken(&old, old.limit(), start());
        let change = Change { rule: OnChange::ALL[rule], ..FORWARD };
        let carried = state.carry(&old, &new, change, now);
        match carried.retry(&new, Cost::ONE, now) {
            Some(Retry::After(wait)) => prop_assert!(wait <= fill(&new), "{:?}", wait),
            Some(never) => prop_assert!(false, "{:?}", never),
            None => {}
        }
    }

    #[test]
    fn who_asks_by_the_older_numbers_finds_no_more_than_is_left(
        old in any_rate(), new in any_rate(), units in 1..200u64,
    ) {
        let state = taken(&new, units.min(new.limit()), start());
        let cut = state.carry(&new, &old, BACK, start());
        let is_bucket = matches!(new, Algorithm::Gcra(_) | Algorithm::LeakyBucket(_));
        prop_assume!(is_bucket);
        prop_assert!(left(&cut, &old, start()) <= left(&state, &new, start()));
    }

    #[test]
    fn the_same_numbers_change_nothing_that_is_told(
        rate in any_rate(), units in 1..200u64, wait_ms in 0..100_000u64,
    ) {
        let now = start().after(Duration::from_millis(wait_ms));
        let state = taken(&rate, units.min(rate.limit()), start());
        let carried = state.carry(&rate, &rate, FORWARD, now);
        prop_assert_eq!(carried.peek(&rate, now), state.peek(&rate, now));
    }
}
