//! Every figure of an answer is true to the nanosecond, and an answer that denies changes nothing.

use proptest::prelude::*;
use tollway_core::gcra::Gcra;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Quota, Retry, State};

use crate::key::{Key, START, TICK, algorithm, config, script};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn remaining_is_what_can_be_taken_and_never_above_the_limit(
        algorithm in algorithm(), script in script(),
    ) {
        let mut key = Key::new(algorithm);
        let now = key.play(&script, START);
        let snapshot = key.peek(now);
        prop_assert_eq!(snapshot.limit(), key.limit());
        prop_assert!(snapshot.remaining() <= snapshot.limit());
        prop_assert!(snapshot.remaining() == 0 || key.allows(snapshot.remaining(), now));
        prop_assert!(!key.allows(snapshot.remaining() + 1, now));
    }

    #[test]
    fn who_waits_as_told_is_admitted_and_a_nanosecond_earlier_is_not(
        algorithm in algorithm(), script in script(), units in 1..30u64,
    ) {
        let mut key = Key::new(algorithm);
        let now = key.play(&script, START);
        match key.check(units, now).retry() {
            None => {}
            Some(Retry::Never) => prop_assert!(units > key.limit()),
            Some(Retry::After(wait)) => {
                prop_assert!(units <= key.limit());
                prop_assert!(key.allows(units, now.after(wait)));
                prop_assert!(!key.allows(units, now.after(wait).before(TICK)));
            }
        }
    }

    #[test]
    fn a_denial_changes_nothing(
        algorithm in algorithm(), script in script(), units in 1..30u64,
    ) {
        let mut key = Key::new(algorithm);
        let now = key.play(&script, START);
        let (before, shown) = (key.state.clone(), key.peek(now));
        let decision = key.check(units, now);
        if !decision.is_allowed() {
            prop_assert_eq!(decision.snapshot(), shown);
            prop_assert_eq!(key.state, before);
        }
    }

    #[test]
    fn next_after_is_when_more_remains_and_reset_after_when_all_does(
        algorithm in algorithm(), script in script(),
    ) {
        let mut key = Key::new(algorithm);
        let now = key.play(&script, START);
        prop_assert!(key.next_is_exact(now), "{:?}", key.peek(now));
        prop_assert!(key.reset_is_exact(now), "{:?}", key.peek(now));
    }

    /// Whatever is asked of it from then on is answered as a key that was never seen answers.
    #[test]
    fn a_state_is_vacant_when_it_says_so(
        algorithm in algorithm(), script in script(), later in script(),
    ) {
        let mut key = Key::new(algorithm);
        let now = key.play(&script, START);
        let vacant_at = key.state.vacant_at(&algorithm).max(now);
        prop_assert_eq!(vacant_at, now.after(key.peek(now).reset_after()));
        let mut absent = Key::new(algorithm);
        let mut at = vacant_at;
        for beat in later {
            at = at.after(beat.pause.of(key.fill()));
            prop_assert_eq!(key.peek(at), absent.peek(at));
            prop_assert_eq!(key.would(2, at), absent.would(2, at));
            key.act(beat.act, at);
            absent.act(beat.act, at);
        }
    }

    #[test]
    fn a_refund_gives_back_no_more_than_was_taken(
        algorithm in algorithm(), script in script(), units in 1..40u64,
    ) {
        let mut key = Key::new(algorithm);
        let now = key.play(&script, START);
        let before = key.peek(now);
        key.refund(units, now);
        let after = key.peek(now);
        prop_assert!(after.remaining() >= before.remaining());
        prop_assert!(after.remaining() <= after.limit());
        prop_assert!(after.remaining() - before.remaining() <= units);
        prop_assert!(!key.allows(after.limit() + 1, now));
        key.refund(u64::MAX, now);
        prop_assert_eq!(key.peek(now), Key::new(algorithm).peek(now));
    }

    #[test]
    fn counting_denies_nobody_and_takes_no_more_than_asked(
        algorithm in algorithm(), script in script(), units in 1..40u64,
    ) {
        let mut key = Key::new(algorithm);
        let now = key.play(&script, START);
        let before = key.peek(now).remaining();
        key.count(units, now);
        prop_assert_eq!(key.peek(now).remaining(), before.saturating_sub(units));
    }
}

#[test]
fn a_state_of_another_algorithm_counts_as_absent() {
    let quota: Quota = "5/1s".parse().unwrap();
    let mut window = Key::new(SlidingWindow::exact(quota).unwrap().into());
    assert!(window.check(5, START).is_allowed());
    let mut key = Key::new(Gcra::new(quota).into());
    key.state = window.state;
    assert_eq!(key.peek(START).remaining(), 5);
    assert!(key.check(5, START).is_allowed());
    assert!(matches!(key.state, State::Gcra(_)));
}
