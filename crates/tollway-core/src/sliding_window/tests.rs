use alloc::string::String;
use core::time::Duration;

use super::*;

fn window(text: &str, buckets: u64) -> SlidingWindow {
    SlidingWindow::new(text.parse().unwrap(), buckets).unwrap()
}

fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn answers(window: SlidingWindow, times_ms: &[u64]) -> String {
    let mut state = State::default();
    let decide = |&time_ms: &u64| {
        let decision = window.decide(&mut state, Cost::ONE, ms(time_ms));
        assert!(state.cells().len() as u64 <= window.buckets() + 1);
        if decision.is_allowed() { 'T' } else { 'F' }
    };
    times_ms.iter().map(decide).collect()
}

#[test]
fn the_worked_example_holds_cell_by_cell() {
    let window = window("5/1s", 10);
    let mut state = State::default();
    for (at_ms, allowed, cells) in [
        (1_592_171_101_900, true, &[(15_921_711_019, 1)][..]),
        (1_592_171_101_950, true, &[(15_921_711_019, 2)]),
        (1_592_171_102_013, true, &[(15_921_711_019, 2), (15_921_711_020, 1)]),
        (1_592_171_102_810, true, &[(15_921_711_019, 2), (15_921_711_020, 1), (15_921_711_028, 1)]),
        (1_592_171_102_850, true, &[(15_921_711_019, 2), (15_921_711_020, 1), (15_921_711_028, 2)]),
        (
            1_592_171_102_890,
            false,
            &[(15_921_711_019, 2), (15_921_711_020, 1), (15_921_711_028, 2)],
        ),
        (1_592_171_102_980, true, &[(15_921_711_020, 1), (15_921_711_028, 2), (15_921_711_029, 1)]),
    ] {
        assert_eq!(window.decide(&mut state, Cost::ONE, ms(at_ms)).is_allowed(), allowed);
        let stored: alloc::vec::Vec<_> =
            state.cells().map(|cell| (cell.tick, cell.units)).collect();
        assert_eq!(stored, cells, "at {at_ms}");
    }
}

#[test]
fn the_seeds_vectors_hold_bucketed_and_exact() {
    let times = [0, 500, 1_000, 1_001, 1_500, 2_000, 2_001];
    for window in [window("1/1s", 1_000), SlidingWindow::exact("1/1s".parse().unwrap()).unwrap()] {
        assert_eq!(answers(window, &times), "TFTFFTF");
        assert_eq!(answers(window, &[1_007, 2_001]), "TF");
    }
    assert_eq!(answers(window("2/1s", 1_000), &times), "TTTFTTF");
    assert_eq!(answers(window("1/1s", 100), &[1_007, 2_001]), "TT");
    assert_eq!(answers(window("1/1s", 10), &[1_592_171_101_990, 1_592_171_102_930]), "TT");
}

#[test]
fn the_worst_case_is_twice_the_limit_in_just_under_a_period() {
    let times = [99, 99, 99, 99, 99, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000];
    assert_eq!(answers(window("5/1s", 10), &times), "TTTTTTTTTTF");
    let exact = SlidingWindow::exact("5/1s".parse().unwrap()).unwrap();
    assert_eq!(answers(exact, &times), "TTTTTFFFFFF");
}

#[test]
fn buckets_need_not_divide_the_period() {
    let window = window("2/1s", 7);
    let mut state = State::default();
    assert!(window.decide(&mut state, Cost::new(2).unwrap(), ms(150)).is_allowed());
    let retry = window.decide(&mut state, Cost::ONE, ms(200)).retry().unwrap().after().unwrap();
    // Tick 1 of 7 is dropped when tick 8 starts, at 8/7 s rounded up.
    assert_eq!(retry, Duration::from_nanos(1_142_857_143 - 200_000_000));
}

#[test]
fn a_refund_gives_back_what_was_taken_then_or_else_the_oldest() {
    let window = window("3/1s", 10);
    let mut state = State::default();
    for at_ms in [0, 500, 900] {
        assert!(window.decide(&mut state, Cost::ONE, ms(at_ms)).is_allowed());
    }
    let mut known = state.clone();
    window.refund(&mut known, 1, Some(ms(500)), ms(950));
    assert_eq!(known.cells().map(|cell| cell.tick).collect::<alloc::vec::Vec<_>>(), [0, 9]);
    window.refund(&mut state, 1, None, ms(950));
    assert_eq!(state.cells().map(|cell| cell.tick).collect::<alloc::vec::Vec<_>>(), [5, 9]);
    window.refund(&mut state, 5, Some(ms(100)), ms(950));
    assert_eq!(state.cells().len(), 2);
}

#[test]
fn a_clock_set_back_keeps_what_was_taken_for_one_period() {
    let window = window("2/1s", 10);
    let mut state = State::default();
    assert!(window.decide(&mut state, Cost::new(2).unwrap(), ms(86_400_000)).is_allowed());
    window.rewind(&mut state, ms(5_000));
    let retry = window.decide(&mut state, Cost::ONE, ms(5_000)).retry().unwrap().after().unwrap();
    assert!(retry <= Duration::from_millis(1_100));
    assert!(window.decide(&mut state, Cost::ONE, ms(5_000).after(retry)).is_allowed());
}

#[test]
fn bounds_are_checked() {
    let quota = |text: &str| text.parse::<Quota>().unwrap();
    assert_eq!(SlidingWindow::new(quota("1/s"), 0), Err(SlidingWindowError::Buckets));
    assert_eq!(SlidingWindow::new(quota("1/s"), 65_537), Err(SlidingWindowError::Buckets));
    assert_eq!(SlidingWindow::new(quota("1/5ns"), 6), Err(SlidingWindowError::Buckets));
    assert_eq!(SlidingWindow::exact(quota("65537/s")), Err(SlidingWindowError::ExactUnits));
}

#[test]
fn the_end_of_time_does_not_panic() {
    let window = SlidingWindow::exact("2/1s".parse().unwrap()).unwrap();
    let mut state = State::default();
    let _ = window.decide(&mut state, Cost::new(2).unwrap(), Timestamp::MAX);
    let _ = window.decide(&mut state, Cost::ONE, Timestamp::MAX);
    let _ = window.count(&mut state, Cost::new(u64::MAX).unwrap(), Timestamp::MAX);
    window.refund(&mut state, 1, None, Timestamp::MIN);
}

/// The sum of what was counted was once cut off at what 64 bits hold, and so was the wait.
#[test]
fn the_wait_is_true_however_much_was_counted() {
    let window = SlidingWindow::exact("1/1m".parse().unwrap()).unwrap();
    let mut state = State::default();
    let _ = window.count(&mut state, Cost::new(u64::MAX).unwrap(), ms(0));
    let _ = window.count(&mut state, Cost::ONE, ms(10_000));
    let denied = window.decide(&mut state, Cost::ONE, ms(10_000));
    assert_eq!(denied.retry(), Some(Retry::After(Duration::from_secs(60))));
    assert!(
        !window.decide(&mut state, Cost::ONE, Timestamp::from_nanos(69_999_999_999)).is_allowed()
    );
    assert!(window.decide(&mut state, Cost::ONE, ms(70_000)).is_allowed());
}

#[test]
fn counted_charges_take_no_more_cells_than_the_limit_needs() {
    let window = SlidingWindow::exact("10/1m".parse().unwrap()).unwrap();
    let (mut state, mut all) = (State::default(), State::default());
    for millis in 0..1_000 {
        let _ = window.count(&mut state, Cost::ONE, ms(millis));
        assert!(state.cells().len() <= 74, "{} cells", state.cells().len());
        all =
            State::from_cells(all.cells().chain([Cell { tick: ms(millis).as_nanos(), units: 1 }]));
    }
    // Nobody notices: the answers are those of a state that kept every cell.
    for millis in [1_000, 59_999, 60_500, 60_989, 60_990, 60_995, 60_999, 61_000] {
        assert_eq!(window.peek(&state, ms(millis)), window.peek(&all, ms(millis)), "{millis}");
        for units in [1, 5, 10] {
            let cost = Cost::new(units).unwrap();
            let retry = window.retry(&all, cost, ms(millis));
            assert_eq!(window.retry(&state, cost, ms(millis)), retry, "{units} at {millis}");
        }
    }
}

#[test]
fn a_late_reading_counts_in_the_tick_of_the_last_change() {
    let window = window("2/1s", 10);
    let mut state = State::default();
    assert!(window.decide(&mut state, Cost::ONE, ms(500)).is_allowed());
    assert!(window.decide(&mut state, Cost::ONE, ms(1_700)).is_allowed());
    // As of 1,200 ms the first would count; as of 1,700 ms it does not, and that is what counts.
    assert!(window.decide(&mut state, Cost::ONE, ms(1_200)).is_allowed());
    let denied = window.decide(&mut state, Cost::ONE, ms(1_200));
    assert_eq!(denied.retry(), Some(Retry::After(Duration::from_millis(1_500))));
    // What was given back late does not reopen the past either.
    window.refund(&mut state, 2, None, ms(1_200));
    assert_eq!(window.moment(&state, ms(0)), ms(1_700));
}

#[test]
fn a_state_gives_back_what_it_needed_in_a_busier_time() {
    let window = SlidingWindow::exact("1000/1h".parse().unwrap()).unwrap();
    let (mut state, start) = (State::default(), Timestamp::from_millis(1_000_000_000));
    for step in 0..1_000 {
        let now = start.after(Duration::from_nanos(step));
        assert!(window.decide(&mut state, Cost::ONE, now).is_allowed());
    }
    let later = start.after(Duration::from_secs(7_200));
    assert!(window.decide(&mut state, Cost::ONE, later).is_allowed());
    state.shrink();
    assert_eq!(state.cells().len(), 1);
    assert!(state.cells.capacity() <= 20, "{}", state.cells.capacity());
}
