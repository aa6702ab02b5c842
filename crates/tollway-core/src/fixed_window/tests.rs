use core::time::Duration;

use super::*;

fn window(text: &str, anchor: Anchor) -> FixedWindow {
    FixedWindow::new(text.parse().unwrap(), anchor)
}

fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn answers(window: FixedWindow, times_ms: &[u64]) -> alloc::string::String {
    let mut state = State::default();
    let decide = |&time_ms: &u64| {
        let (decision, next) = window.decide(state, Cost::ONE, ms(time_ms));
        state = next;
        if decision.is_allowed() { 'A' } else { 'B' }
    };
    times_ms.iter().map(decide).collect()
}

#[test]
fn an_epoch_anchored_window_starts_at_multiples_of_its_period() {
    let window = window("2/1s", Anchor::Epoch);
    assert_eq!(answers(window, &[900, 950, 999, 1_000, 1_500, 1_999, 2_000]), "AABAABA");
}

#[test]
fn a_first_anchored_window_starts_with_its_first_request() {
    let window = window("2/1s", Anchor::FirstRequest);
    assert_eq!(
        answers(window, &[900, 1_000, 1_500, 1_899, 1_900, 2_000, 2_899, 2_900]),
        "AABBAABA"
    );
}

#[test]
fn the_wait_ends_with_the_window() {
    for (anchor, wait_ms) in [(Anchor::Epoch, 100), (Anchor::FirstRequest, 500)] {
        let window = window("2/1s", anchor);
        let (_, state) = window.decide(State::default(), Cost::new(2).unwrap(), ms(400));
        let (decision, _) = window.decide(state, Cost::ONE, ms(900));
        assert_eq!(decision.retry(), Some(Retry::After(Duration::from_millis(wait_ms))));
    }
}

#[test]
fn units_of_an_earlier_window_are_not_given_back_to_this_one() {
    let window = window("2/1s", Anchor::Epoch);
    let (_, state) = window.decide(State::default(), Cost::new(2).unwrap(), ms(1_100));
    assert_eq!(window.refund(state, 2, Some(ms(900)), ms(1_200)), state);
    assert_eq!(
        window.peek(window.refund(state, 9, Some(ms(1_000)), ms(1_200)), ms(1_200)).remaining(),
        2
    );
    assert_eq!(window.peek(window.refund(state, 1, None, ms(1_200)), ms(1_200)).remaining(), 1);
}

/// A thread that read the clock just before the boundary, and lost the race, must not reopen the
/// old window and so forget what the new one holds.
#[test]
fn a_racing_thread_does_not_move_a_window_back() {
    let window = window("3/1s", Anchor::Epoch);
    let (_, state) = window.decide(State::default(), Cost::new(2).unwrap(), ms(1_000));
    let (late, state) = window.decide(state, Cost::ONE, Timestamp::from_nanos(999_999_999));
    assert!(late.is_allowed());
    assert!(!window.decide(state, Cost::ONE, ms(1_001)).0.is_allowed());
}

#[test]
fn a_clock_set_back_keeps_the_count_and_locks_for_one_window() {
    for anchor in [Anchor::Epoch, Anchor::FirstRequest] {
        let window = window("2/1s", anchor);
        let (_, state) = window.decide(State::default(), Cost::new(2).unwrap(), ms(86_400_000));
        let state = window.rewind(state, ms(5_000));
        let (denied, state) = window.decide(state, Cost::ONE, ms(5_000));
        assert!(denied.retry().unwrap().after().unwrap() <= Duration::from_millis(1_010));
        assert!(window.decide(state, Cost::ONE, ms(6_010)).0.is_allowed());
    }
}

/// Ten units were taken at 1.0 s, and given back at 1.9 s. Whoever read the clock at 1.1 s and
/// comes after that starts the next window at 1.9 s: started at 1.1 s, it would end 0.8 s too
/// early.
#[test]
fn a_window_emptied_by_a_refund_or_a_reset_is_not_begun_anew_before_that() {
    let window = window("10/1s", Anchor::FirstRequest);
    let ten = Cost::new(10).unwrap();
    let (_, full) = window.decide(State::default(), ten, ms(1_000));
    for empty in [window.refund(full, 10, None, ms(1_900)), window.clear(full, ms(1_900))] {
        let (late, next) = window.decide(empty, ten, ms(1_100));
        assert!(late.is_allowed());
        let (denied, _) = window.decide(next, Cost::ONE, ms(2_100));
        assert_eq!(denied.retry(), Some(Retry::After(Duration::from_millis(800))));
        assert_eq!(window.moment(empty, ms(1_100)), ms(1_900));
    }
    let part = window.refund(full, 9, None, ms(1_900));
    assert!(window.decide(part, ten, ms(2_000)).0.is_allowed(), "its window is over at 2.0 s");
}

#[test]
fn the_end_of_time_does_not_panic() {
    let window = window("2/1s", Anchor::FirstRequest);
    let (_, state) = window.decide(State::default(), Cost::new(2).unwrap(), Timestamp::MAX);
    let _ = window.decide(state, Cost::ONE, Timestamp::MAX);
    let _ = window.count(state, Cost::new(u64::MAX).unwrap(), Timestamp::MIN);
}
