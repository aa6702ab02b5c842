use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Charge, Cost, Key, Policy, Retry, Timestamp};
use tollway_memory::{Capacity, MemoryStore, Pressure};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);
/// Small enough to be filled many times over.
const CAPACITY: Capacity =
    Capacity { variable_bytes: 1 << 20, reservations: 1_700, ..Capacity::keys(3_000) };

fn gcra(name: &str, quota: &str) -> Policy {
    Policy::parse(name, quota).unwrap()
}

fn fixed(name: &str, quota: &str) -> Policy {
    Policy::new(name, FixedWindow::new(quota.parse().unwrap(), Anchor::Epoch)).unwrap()
}

fn sliding(name: &str, quota: &str) -> Policy {
    Policy::new(name, SlidingWindow::new(quota.parse().unwrap(), 10).unwrap()).unwrap()
}

fn allowed(store: &MemoryStore, policy: &Policy, key: &str, now: Timestamp) -> bool {
    store.check(&Charge::new(policy, Key::new(key).unwrap()), now).is_allowed()
}

/// A flood of exhausted keys under one policy, while another policy's callers come: new ones, and a
/// regular whose state has lapsed each time.
fn a_flood_denies_no_neighbour(flooded: &Policy, neighbour: &Policy) {
    let store = MemoryStore::new(CAPACITY);
    for number in 0..50_000 {
        let _ = allowed(&store, flooded, &format!("flood{number}"), NOW);
    }
    assert!(store.pressure().refused > 30_000, "the flood has filled its table");
    for number in 0..300 {
        let now = NOW.after(Duration::from_secs(2 * number));
        for flood in 0..100 {
            let _ = allowed(&store, flooded, &format!("more{number}-{flood}"), now);
        }
        assert!(allowed(&store, neighbour, &format!("newcomer{number}"), now), "{number}");
        assert!(allowed(&store, neighbour, "regular", now), "{number}");
    }
    assert_eq!(store.pressure_of(neighbour).refused, 0);
}

#[test]
fn a_flood_of_exhausted_keys_under_gcra_denies_no_neighbour() {
    a_flood_denies_no_neighbour(&gcra("flooded", "1/1h"), &gcra("api", "1/1s"));
}

#[test]
fn a_flood_of_exhausted_fixed_windows_denies_no_neighbour() {
    a_flood_denies_no_neighbour(&fixed("flooded", "1/1h"), &fixed("api", "1/1s"));
}

#[test]
fn a_flood_of_exhausted_sliding_windows_denies_no_neighbour() {
    a_flood_denies_no_neighbour(&sliding("flooded", "1/1h"), &sliding("api", "1/1s"));
}

/// Who keeps within its share loses nobody to who does not, whether the flood's keys are exhausted.
#[test]
fn exhausted_keys_within_their_policys_share_are_not_forgiven_in_a_flood_of_another() {
    for make in [gcra, fixed, sliding] {
        for flood_quota in ["1/1h", "1000/1h"] {
            let (strict, flooded) = (make("strict", "1/1h"), make("flooded", flood_quota));
            let store = MemoryStore::new(CAPACITY);
            let names: Vec<String> = (0..800).map(|number| format!("strict{number}")).collect();
            assert!(names.iter().all(|name| allowed(&store, &strict, name, NOW)));
            for number in 0..50_000 {
                let _ = allowed(&store, &flooded, &format!("flood{number}"), NOW);
            }
            let forgiven = names.iter().filter(|name| allowed(&store, &strict, name, NOW)).count();
            assert_eq!(forgiven, 0, "{flood_quota}");
            assert_eq!(store.pressure_of(&strict).forgotten, 0, "{flood_quota}");
            assert!(store.pressure().forgotten + store.pressure().refused > 30_000);
        }
    }
}

/// An operator who changes a limit does not thereby give the policy a second room, nor does a
/// caller who makes up limits.
#[test]
fn policies_of_one_name_have_one_room() {
    let store = MemoryStore::new(CAPACITY);
    let before = gcra("api", "1/1h");
    for number in 0..50_000 {
        let _ = allowed(&store, &before, &format!("flood{number}"), NOW);
    }
    let after = gcra("api", "2/1h");
    let served = (0..300).filter(|number| allowed(&store, &after, &format!("new{number}"), NOW));
    assert_eq!(served.count(), 0, "the room of this name is taken");
}

#[test]
fn one_key_that_reserves_without_end_leaves_places_to_other_keys_and_policies() {
    let store = MemoryStore::new(CAPACITY);
    let (api, other) = (gcra("api", "1000000/1h"), gcra("other", "1000000/1h"));
    let reserve = |policy: &Policy, key: &str| {
        let charge = Charge::new(policy, Key::new(key).unwrap());
        store.reserve(&[charge], NOW)
    };
    let open = |policy: &Policy, key: &str| reserve(policy, key).reservation.is_some();
    let greedy = (0..2_000).filter(|_| open(&api, "greedy")).count();
    assert_eq!(greedy, 1_700 * 4 / 5);
    let keys = (0..2_000).filter(|number| open(&api, &format!("key{number}"))).count();
    assert_eq!(greedy + keys, 1_700 * 16 / 17, "one policy leaves a seventeenth");
    assert!((0..50).all(|number| open(&other, &format!("key{number}"))));
    let refused = reserve(&api, "greedy").verdict;
    assert_eq!(refused.retry(), Some(Retry::After(Duration::from_secs(60))));
    let later = NOW.after(Duration::from_secs(60));
    let charge = Charge::new(&api, Key::new("greedy").unwrap());
    assert!(store.reserve(&[charge], later).reservation.is_some());
}

/// What is part of every request holds a place in every reservation, and must not stand in the way.
#[test]
fn everybodys_limit_is_no_obstacle_to_reservations() {
    let store = MemoryStore::new(CAPACITY);
    let (own, everyone) = (gcra("own", "1000000/1h"), gcra("everyone", "1000000/1h"));
    let reserve = |key: &str| {
        let charges = [(&own, key), (&everyone, "*")];
        let charges = charges.map(|(policy, key)| Charge::new(policy, Key::new(key).unwrap()));
        store.reserve(&charges, NOW).reservation
    };
    let opened: Vec<_> = (0..1_500).filter_map(|number| reserve(&format!("{number}"))).collect();
    assert_eq!(opened.len(), 1_500);
    for reservation in opened {
        store.cancel(reservation.id, NOW);
    }
    let greedy = (0..2_000).filter(|_| reserve("greedy").is_some()).count();
    assert_eq!(greedy, 1_700 * 4 / 5, "places given back are counted back");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A store of one neighbourhood: 128 slots, so that shares are those of the whole.
    #[test]
    fn a_policy_within_its_share_is_decided_exactly_whatever_the_others_do(
        policies in 2..7usize,
        steps in proptest::collection::vec((0..7usize, 0..200u16, 1..3u64), 1..2_000),
    ) {
        let store = MemoryStore::new(Capacity { keys: 96, ..Capacity::default() });
        let policies: Vec<Policy> =
            (0..policies).map(|number| gcra(&format!("policy{number}"), "2/1h")).collect();
        let share = 128 / policies.len();
        let mut taken = vec![HashMap::new(); policies.len()];
        for (step, (which, key, cost)) in steps.into_iter().enumerate() {
            // At one nanosecond, a slot that changes hands may put its new key off by another.
            let now = NOW.after(Duration::from_nanos(step as u64));
            let which = which % policies.len();
            let name = format!("{key}");
            let charge = Charge::new(&policies[which], Key::new(&name).unwrap());
            let allowed = store.check(&charge.cost(Cost::new(cost).unwrap()), now).is_allowed();
            let taken_by_key = taken[which].entry(key).or_insert(0);
            let affordable = *taken_by_key + cost <= 2;
            *taken_by_key += if allowed { cost } else { 0 };
            if taken[which].len() <= share {
                prop_assert_eq!(allowed, affordable, "{} keys", taken[which].len());
                prop_assert_eq!(store.pressure_of(&policies[which]), Pressure::default());
            }
        }
    }
}
