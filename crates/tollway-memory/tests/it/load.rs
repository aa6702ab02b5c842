use std::time::Duration;

use proptest::prelude::*;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Answer, Charge, Cost, Key, Policy, Retry, Store, Timestamp, Verdict};
use tollway_memory::{Capacity, Fill, MemoryStore, WhenFull};

const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

fn policy(quota: &str) -> Policy {
    Policy::parse("api", quota).unwrap()
}

fn charge<'a>(policy: &'a Policy, key: &'a str) -> Charge<'a> {
    Charge::new(policy, Key::new(key).unwrap())
}

/// Ten thousand limited keys, then a flood of new ones far beyond the cap.
#[test]
fn a_flood_of_new_keys_does_not_forgive_a_limited_one() {
    let store = MemoryStore::new(Capacity::keys(30_000));
    let strict = policy("5/1h");
    let names: Vec<String> = (0..10_000).map(|number| format!("limited{number}")).collect();
    for name in &names {
        let all = charge(&strict, name).cost(Cost::new(5).unwrap());
        assert!(store.check(&all, NOW).is_allowed());
    }
    for number in 0..300_000 {
        let _ = store.check(&charge(&strict, &format!("flood{number}")), NOW);
    }
    let forgiven =
        names.iter().filter(|name| store.check(&charge(&strict, name), NOW).is_allowed());
    assert_eq!(forgiven.count(), 0);
    let pressure = store.pressure();
    assert!(pressure.forgotten > 200_000 && pressure.used <= 40_001, "{pressure:?}");
}

/// What operators see of the memory must not depend on how its keys came in.
#[test]
fn keys_of_requests_with_several_charges_are_counted_too() {
    let store = MemoryStore::new(Capacity { keys: 3, ..Capacity::default() });
    let (own, everyone) = (policy("9/1h"), Policy::parse("everyone", "9/1h").unwrap());
    let pairs = |key| [charge(&own, key), charge(&everyone, key)];
    assert!(store.check_all(&pairs("a"), NOW).is_allowed());
    assert!(store.reserve(&[charge(&own, "b")], NOW).reservation.is_some());
    assert_eq!((store.pressure().used, store.pressure().forgotten), (3, 0));
    assert!(store.check_all(&pairs("c"), NOW).is_allowed());
    assert_eq!((store.pressure().used, store.pressure().forgotten), (4, 1));
}

#[test]
fn a_newcomer_among_limited_keys_is_told_truly_when_to_come_back() {
    let capacity = Capacity { keys: 3, ..Capacity::default() };
    for when_full in [WhenFull::Deny, WhenFull::Forget] {
        let store = MemoryStore::new(Capacity { when_full, ..capacity });
        let strict = policy("1/1h");
        for number in 0..4 {
            assert!(store.check(&charge(&strict, &format!("{number}")), NOW).is_allowed());
        }
        let newcomer = store.check(&charge(&strict, "newcomer"), NOW);
        if when_full == WhenFull::Forget {
            assert!(newcomer.is_allowed());
            continue;
        }
        assert_eq!(newcomer.retry(), Some(Retry::After(Duration::from_secs(3_600))));
        let later = NOW.after(Duration::from_secs(3_600));
        assert!(store.check(&charge(&strict, "newcomer"), later).is_allowed());
    }
}

#[test]
fn states_of_variable_size_stay_within_their_bytes() {
    let store = MemoryStore::new(Capacity { variable_bytes: 1 << 20, ..Capacity::default() });
    let window = SlidingWindow::new("1000/1h".parse().unwrap(), 60).unwrap();
    let policy = Policy::new("sliding", window).unwrap();
    for number in 0..50_000u64 {
        let _ = store.check(&charge(&policy, &format!("{number}")), NOW);
    }
    let pressure = store.pressure();
    assert!(pressure.used < 5_000 && pressure.forgotten > 45_000, "{pressure:?}");
    // An hour later all of them say nothing, and every call clears away two.
    let later = NOW.after(Duration::from_secs(7_200));
    for number in 0..10_000u64 {
        let _ = store.check(&charge(&policy, &format!("later{}", number % 200)), later);
    }
    assert_eq!(store.pressure().used, 200);
}

/// An operator who sees it rise has time to act before anybody is forgotten.
#[test]
fn fill_says_how_much_of_each_room_is_taken() {
    let store = MemoryStore::new(Capacity { variable_bytes: 1 << 20, ..Capacity::keys(30_000) });
    assert_eq!(store.fill(NOW), Fill::default());
    let narrow = policy("5/1h");
    let double = Policy::parse("double", "7/1h burst 5").unwrap();
    let window = SlidingWindow::new("5/1h".parse().unwrap(), 60).unwrap();
    let sliding = Policy::new("sliding", window).unwrap();
    for number in 0..20_000 {
        let name = format!("{number}");
        assert!(store.check(&charge(&narrow, &name), NOW).is_allowed());
        if number % 2 == 0 {
            assert!(store.check(&charge(&double, &name), NOW).is_allowed());
        }
        let _ = store.check(&charge(&sliding, &name), NOW);
    }
    // A third more slots than keys are promised.
    let fill = store.fill(NOW);
    assert!((0.45..0.55).contains(&fill.keys), "{fill:?}");
    assert!((0.2..0.3).contains(&fill.wide_keys), "{fill:?}");
    assert!((0.9..1.1).contains(&fill.variable_bytes), "{fill:?}");
    let later = store.fill(NOW.after(Duration::from_secs(7_200)));
    assert!(later.keys < 0.01 && later.wide_keys < 0.01, "{later:?}");
}

/// Half the cap for narrow slots, a quarter for double ones, a quarter for the rest.
#[test]
fn a_cap_in_bytes_is_kept() {
    let cap = 64 << 20;
    let capacity = Capacity::bytes(cap);
    assert!(capacity.keys > 1_000_000 && capacity.wide_keys > 250_000);
    let bytes = capacity.keys * 4 / 3 * 69 / 4 + capacity.wide_keys * 4 / 3 * 133 / 4;
    assert!(bytes + capacity.variable_bytes <= cap);
}

proptest! {
    #[test]
    fn a_batch_decides_as_single_checks_do(
        steps in proptest::collection::vec((0..20u8, 1..4u64, 0..2usize), 1..200),
    ) {
        let policies = [policy("7/s burst 5"), policy("10/s burst 5")];
        let [batched, single] = [100, 100].map(|keys| MemoryStore::new(Capacity::keys(keys)));
        let names: Vec<String> = steps.iter().map(|(key, ..)| format!("key{key}")).collect();
        let charges: Vec<_> = steps
            .iter()
            .zip(&names)
            .map(|((_, cost, which), name)| {
                charge(&policies[*which], name).cost(Cost::new(*cost).unwrap())
            })
            .collect();
        let mut decisions = Vec::new();
        batched.check_batch(&charges, NOW, &mut decisions);
        let one_by_one: Vec<_> = charges.iter().map(|charge| single.check(charge, NOW)).collect();
        prop_assert_eq!(decisions, one_by_one);
    }
}

proptest! {
    #[test]
    fn an_admission_takes_what_a_check_takes_and_reports_denials_alike(
        steps in proptest::collection::vec((0..6u8, 1..7u64, 0..3usize, 0..2_000u64), 1..200),
    ) {
        let window = SlidingWindow::new("7/2s".parse().unwrap(), 4).unwrap();
        let policies =
            [policy("7/s burst 5"), policy("10/s burst 5"), Policy::new("api", window).unwrap()];
        let [admitting, checking] = [(); 2].map(|()| MemoryStore::new(Capacity::keys(100)));
        let mut now = NOW;
        for (key, cost, which, wait_ms) in steps {
            now = now.after(Duration::from_millis(wait_ms));
            let key = format!("key{key}");
            let charge = charge(&policies[which], &key).cost(Cost::new(cost).unwrap());
            let decision = checking.check(&charge, now);
            let denial = (!decision.is_allowed()).then(|| Verdict::one(decision));
            let admitted = admitting.admit(&charge, now).map(|answer| match answer {
                Answer::Ready(verdict) => verdict.unwrap(),
                _ => panic!("memory answers at once"),
            });
            prop_assert_eq!(admitted, denial);
        }
    }
}

#[test]
fn an_empty_or_huge_key_is_denied_for_ever_and_costs_nothing() {
    let limiter = tollway_memory::Limiter::new("5/1m").unwrap();
    for key in [&b""[..], &vec![b'x'; 65_537]] {
        assert_eq!(limiter.check(key).retry(), Some(Retry::Never));
        assert!(limiter.reserve(key, Cost::ONE).reservation.is_none());
    }
    assert_eq!(limiter.store().pressure().used, 0);
    assert!(limiter.check(vec![b'x'; 65_536]).is_allowed());
}

#[test]
fn more_reservations_than_there_is_room_for_are_denied_until_the_first_expires() {
    let store = MemoryStore::new(Capacity { reservations: 1, ..Capacity::default() });
    let policy = policy("5/1m");
    assert!(store.reserve(&[charge(&policy, "a")], NOW).reservation.is_some());
    let refused = store.reserve(&[charge(&policy, "b")], NOW);
    assert_eq!(refused.verdict.retry(), Some(Retry::After(Duration::from_secs(60))));
    let later = NOW.after(Duration::from_secs(60));
    assert!(store.reserve(&[charge(&policy, "b")], later).reservation.is_some());
}

/// Denied requests give their promised place back.
#[test]
fn a_denied_reservation_takes_no_place() {
    let store = MemoryStore::new(Capacity { reservations: 1, ..Capacity::default() });
    let policy = policy("1/1m");
    let too_much = charge(&policy, "a").cost(Cost::new(2).unwrap());
    for _ in 0..3 {
        assert_eq!(store.reserve(&[too_much], NOW).verdict.retry(), Some(Retry::Never));
    }
    assert!(store.reserve(&[charge(&policy, "a")], NOW).reservation.is_some());
}
