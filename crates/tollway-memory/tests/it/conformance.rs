//! The memory store answers as the scenarios say and as the oracle does.

use std::sync::Arc;

use tollway_core::{Charge, Cost, Key, OnChange, Policy, Store, Timestamp};
use tollway_memory::{Capacity, MemoryStore};
use tollway_testkit::conformance::{OnStore, run, scenarios};
use tollway_testkit::oracle::{Kind, Mix, history, judge};

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(Capacity::keys(1_000)))
}

#[test]
fn the_store_answers_every_scenario() {
    let scenarios = scenarios().unwrap();
    let report = run(&mut OnStore::new(store), &scenarios);
    assert!(report.passed(), "{report}");
    let is_set_back = |tag: &String| tag == "clock-steps-back";
    let declined =
        scenarios.iter().filter(|scenario| scenario.tags.iter().any(is_set_back)).count();
    assert_eq!(report.ran.len(), scenarios.len() - declined);
}

#[test]
fn the_store_answers_random_histories_as_the_oracle_does() {
    let full = std::env::var("TOLLWAY_FULL").is_ok_and(|value| value == "1");
    let mix = Mix::default();
    for seed in 0..if full { 5_000 } else { 100 } {
        let verdict = judge(&mut OnStore::new(store), &history(seed, &mix));
        verdict.unwrap_or_else(|difference| panic!("{difference}"));
    }
}

/// Every step may be under other numbers of the same policy: then what was used is carried, and
/// none of it is forgiven or lost.
#[test]
fn the_store_answers_histories_of_changing_numbers_as_the_oracle_does() {
    let full = std::env::var("TOLLWAY_FULL").is_ok_and(|value| value == "1");
    for rule in [OnChange::AsIs, OnChange::Proportional, OnChange::Reset] {
        let mix = Mix { changes: Some(rule), ..Mix::default() };
        for seed in 0..if full { 4_200 } else { 80 } {
            let verdict = judge(&mut OnStore::new(store), &history(seed, &mix));
            verdict.unwrap_or_else(|difference| panic!("{difference}"));
        }
    }
}

/// Among plain policies, with reservations, takes, refunds and resets.
#[test]
fn the_store_answers_trees_of_owners_as_the_oracle_does() {
    let full = std::env::var("TOLLWAY_FULL").is_ok_and(|value| value == "1");
    let kinds: [&'static [Kind]; 2] =
        [&[Kind::Shares], &[Kind::Shares, Kind::Gcra, Kind::SlidingWindow, Kind::Concurrency]];
    for kinds in kinds {
        let mix = Mix { kinds, keys: 4, ..Mix::default() };
        for seed in 0..if full { 5_000 } else { 25 } {
            let verdict = judge(&mut OnStore::new(store), &history(seed, &mix));
            verdict.unwrap_or_else(|difference| panic!("{difference}"));
        }
    }
}

/// One kind and one key at a time: then what the late are told depends on nothing else.
#[test]
fn the_store_answers_late_callers_as_the_oracle_does() {
    let full = std::env::var("TOLLWAY_FULL").is_ok_and(|value| value == "1");
    let kinds: [&'static [Kind]; 6] = [
        &[Kind::Gcra],
        &[Kind::LeakyBucket],
        &[Kind::SlidingWindow],
        &[Kind::FixedWindow],
        &[Kind::Concurrency],
        &[Kind::CalendarWindow],
    ];
    for kinds in kinds {
        let mix = Mix { kinds, keys: 1, late: true, ..Mix::default() };
        for seed in 0..if full { 1_000 } else { 60 } {
            let verdict = judge(&mut OnStore::new(store), &history(seed, &mix));
            verdict.unwrap_or_else(|difference| panic!("{difference}"));
        }
    }
}

/// A counted charge on an empty bucket takes nothing, so there is nothing to give back.
#[test]
fn a_counted_reservation_gives_back_no_more_than_it_took() {
    let store = MemoryStore::new(Capacity::keys(1_000));
    let policy = Policy::parse("api", "5/1h").unwrap();
    let one = Charge::new(&policy, Key::new("alice").unwrap());
    let now = Timestamp::from_millis(1_000);
    assert!(store.check(&one.cost(Cost::new(5).unwrap()), now).is_allowed());
    let reserved = store.reserve(&[one.cost(Cost::new(3).unwrap()).counted()], now);
    store.cancel(reserved.reservation.unwrap().id, now);
    assert!(!store.check(&one, now).is_allowed());
}
