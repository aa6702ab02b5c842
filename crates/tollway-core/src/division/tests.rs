//! The bound in worlds of holders that behave as Envoy does, judged by one bucket for all.

mod every_order;
mod random_order;
mod steady;
mod world;

use super::*;
use crate::Quota;

fn terms(quota: &str, lifetime_secs: u64) -> Divisible {
    Divisible::new(quota.parse::<Quota>().unwrap(), Duration::from_secs(lifetime_secs)).unwrap()
}

/// Whether the long sizes run.
fn is_full() -> bool {
    extern crate std;
    std::env::var_os("TOLLWAY_FULL").is_some()
}

#[test]
fn the_interval_divides_the_rate_finely_and_fits_into_32_bits() {
    let of = |quota: &str| {
        let terms = terms(quota, 15);
        (terms.whole().tokens_per_fill, terms.fill_interval().as_secs())
    };
    assert_eq!(of("100/s"), (1_000_000, 10_000));
    assert_eq!(of("2000000/s"), (2_000_000, 1));
    assert_eq!(of("10/1m"), (166_666, 1_000_000));
    assert_eq!(of("1/1h"), (277, 1_000_000));
    let refused = |quota: &str, secs| {
        Divisible::new(quota.parse().unwrap(), Duration::from_secs(secs)).is_err()
    };
    assert!(refused("5000000000/s burst 1", 15));
    assert!(refused("100/s burst 5000000000", 15));
    assert!(refused("1/s", 2));
}

#[test]
fn a_lone_holder_gets_all_but_the_reserve_at_once() {
    let terms = terms("100/s burst 160", 15);
    let now = Timestamp::from_millis(100_000);
    let mut division = Division::new(terms, Timestamp::MIN);
    division.report(1, 1, now);
    let mut told = Vec::new();
    division.instruct(now, &mut told);
    let portion = Portion { max_tokens: 150, tokens_per_fill: 984_375 };
    assert_eq!(told, [Instruction { holder: 1, number: 1, order: Order::Assign(portion) }]);
    assert_eq!(division.held(), (150, 984_375));
}

#[test]
fn after_a_start_nothing_is_given_until_all_earlier_portions_have_expired() {
    let began = Timestamp::from_millis(100_000);
    let mut division = Division::new(terms("100/s burst 160", 15), began);
    let mut told = Vec::new();
    division.report(1, 1, began);
    division.instruct(began, &mut told);
    assert_eq!(told, []);
    let wake = division.wake_at(began);
    assert!(wake.since(began) <= Duration::from_millis(16_100), "{wake:?}");
    let later = wake.after(Duration::from_secs(1));
    division.instruct(wake, &mut told);
    division.instruct(later, &mut told);
    assert!(matches!(told[0].order, Order::Assign(portion) if portion.max_tokens <= 100));
}

#[test]
fn a_holder_that_does_not_acknowledge_is_closed_and_counts_until_it_has_expired() {
    let now = Timestamp::from_millis(100_000);
    let mut division = Division::new(terms("100/s burst 160", 15), Timestamp::MIN);
    let mut told = Vec::new();
    division.report(1, 1, now);
    division.instruct(now, &mut told);
    let closed = now.after(Duration::from_secs(5));
    told.clear();
    division.instruct(closed, &mut told);
    assert_eq!(told[0].order, Order::Close);
    division.leave(1, closed);
    assert_eq!(division.held().0, 150);
    let gone = closed.after(Duration::from_millis(16_100));
    assert!(!division.is_idle(gone));
    assert_eq!(division.held().0, 0);
}

#[test]
fn a_bucket_that_nobody_asks_for_is_abandoned_and_its_division_ends() {
    let mut world = world::World::new(terms("100/s burst 160", 15), 1);
    world.join(0);
    world.run_for(Duration::from_secs(320), &[Some(0)]);
    assert_eq!(world.division.holders().count(), 0);
    assert!(world.division.is_idle(world.now));
}
