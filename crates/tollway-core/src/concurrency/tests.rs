use core::time::Duration;

use super::*;

fn limit(units: u64, lease_ms: u64) -> Concurrency {
    Concurrency::new(units, Duration::from_millis(lease_ms)).unwrap()
}

fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

#[test]
fn units_come_back_when_released() {
    let limit = limit(2, 1_000);
    let mut state = State::default();
    assert!(limit.decide(&mut state, Cost::ONE, 1, ms(0)).is_allowed());
    assert!(limit.decide(&mut state, Cost::ONE, 2, ms(0)).is_allowed());
    assert!(!limit.decide(&mut state, Cost::ONE, 3, ms(0)).is_allowed());
    assert!(limit.release(&mut state, 1, ms(1)));
    assert!(!limit.release(&mut state, 1, ms(1)));
    assert!(limit.decide(&mut state, Cost::ONE, 3, ms(1)).is_allowed());
}

#[test]
fn a_crashed_holder_loses_its_slot_when_the_lease_ends() {
    let limit = limit(2, 1_000);
    let mut state = State::default();
    assert!(limit.decide(&mut state, Cost::ONE, 1, ms(0)).is_allowed());
    assert!(limit.decide(&mut state, Cost::ONE, 2, ms(400)).is_allowed());
    let denied = limit.decide(&mut state, Cost::new(2).unwrap(), 3, ms(500));
    assert_eq!(denied.retry(), Some(Retry::After(Duration::from_millis(900))));
    assert!(!limit.decide(&mut state, Cost::ONE, 3, ms(999)).is_allowed());
    assert!(limit.decide(&mut state, Cost::ONE, 3, ms(1_000)).is_allowed());
    assert_eq!(state.holds().len(), 2);
}

#[test]
fn holds_stay_within_the_limit_and_in_order_of_expiry() {
    let limit = limit(3, 1_000);
    let mut state = State::default();
    for (id, at_ms) in [(1, 505), (2, 501), (3, 503), (4, 502)] {
        let _ = limit.decide(&mut state, Cost::ONE, id, ms(at_ms));
    }
    // Leases of those who come late begin when the state was changed last.
    let holds = state.holds().iter().map(|hold| (hold.id, hold.expires_at));
    let holds: alloc::vec::Vec<_> = holds.collect();
    assert_eq!(holds, [1, 2, 3].map(|id| (id, ms(1_505))));
    let counted = limit.count(&mut state, Cost::new(9).unwrap(), 5, ms(600));
    assert_eq!((counted.remaining(), state.holds().len()), (0, 3));
}

#[test]
fn a_clock_set_back_does_not_stretch_a_lease() {
    let limit = limit(1, 1_000);
    let mut state = State::default();
    assert!(limit.decide(&mut state, Cost::ONE, 1, ms(86_400_000)).is_allowed());
    limit.rewind(&mut state, ms(5_000));
    let retry = limit.decide(&mut state, Cost::ONE, 2, ms(5_000)).retry();
    assert_eq!(retry, Some(Retry::After(Duration::from_millis(1_010))));
    assert!(limit.decide(&mut state, Cost::ONE, 2, ms(6_010)).is_allowed());
}

#[test]
fn a_refund_releases_the_soonest_to_expire() {
    let limit = limit(3, 1_000);
    let mut state = State::default();
    assert!(limit.decide(&mut state, Cost::new(2).unwrap(), 1, ms(0)).is_allowed());
    assert!(limit.decide(&mut state, Cost::ONE, 2, ms(100)).is_allowed());
    limit.refund(&mut state, 2, ms(100));
    assert_eq!(state.holds().iter().map(|hold| hold.id).collect::<alloc::vec::Vec<_>>(), [2]);
}

#[test]
fn more_than_the_limit_is_never_possible_and_bounds_are_checked() {
    let denied = limit(2, 1).decide(&mut State::default(), Cost::new(3).unwrap(), 1, ms(0));
    assert_eq!(denied.retry(), Some(Retry::Never));
    assert_eq!(Concurrency::new(0, Duration::from_secs(1)), Err(ConcurrencyError::Limit));
    assert_eq!(Concurrency::new(65_537, Duration::from_secs(1)), Err(ConcurrencyError::Limit));
    assert_eq!(Concurrency::new(1, Duration::ZERO), Err(ConcurrencyError::Lease));
}
