//! Numbers that change while keys are in use: what was used is carried, in every table.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollway_core::concurrency::Concurrency;
use tollway_core::dice::Dice;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::gcra::Gcra;
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{
    Algorithm, Charge, Cost, Key, OnChange, Policy, Quota, Settlement, State, Timestamp,
};
use tollway_memory::{Capacity, MemoryStore};

const START: Timestamp = Timestamp::from_millis(1_700_000_000_123);

fn is_full() -> bool {
    std::env::var("TOLLWAY_FULL").is_ok_and(|value| value == "1")
}

fn store() -> MemoryStore {
    MemoryStore::new(Capacity::keys(4_096))
}

fn policy(algorithm: impl Into<Algorithm>) -> Policy {
    Policy::new("api", algorithm).unwrap()
}

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

fn charge<'a>(policy: &'a Policy, key: &'a str, units: u64) -> Charge<'a> {
    Charge::new(policy, Key::new(key).unwrap()).cost(Cost::new(units).unwrap())
}

/// Policies of one name in every form of state: one word, two words, cells, permits.
fn of_limit(limit: u64) -> [Policy; 7] {
    let hour = Duration::from_secs(3_600);
    // An hour divided by seven is no whole number of nanoseconds.
    let whole = Quota::with_burst(1, hour / 3_600, limit).unwrap();
    let part = Quota::with_burst(7, hour, limit).unwrap();
    let plain = Quota::new(limit, hour).unwrap();
    [
        policy(whole),
        policy(part),
        policy(LeakyBucket::new(limit, 1, hour / 10).unwrap()),
        policy(FixedWindow::new(plain, Anchor::Epoch)),
        policy(FixedWindow::new(plain, Anchor::FirstRequest)),
        policy(SlidingWindow::new(plain, 10).unwrap()),
        policy(SlidingWindow::exact(plain).unwrap()),
    ]
}

fn left(store: &MemoryStore, policy: &Policy, key: &str) -> u64 {
    store.peek(&charge(policy, key, 1), START).remaining()
}

#[test]
fn what_was_used_stays_used_between_any_two_forms_of_states() {
    for old in of_limit(10) {
        for new in of_limit(20) {
            let store = store();
            assert!(store.check(&charge(&old, "k", 6), START).is_allowed());
            assert_eq!(left(&store, &new, "k"), 14, "a look: {old:?} to {new:?}");
            assert_eq!(left(&store, &old, "k"), 4, "a look changes nothing");
            assert!(store.check(&charge(&new, "k", 14), START).is_allowed());
            assert!(!store.check(&charge(&new, "k", 1), START).is_allowed());
            assert!(!store.check(&charge(&old, "k", 1), START).is_allowed(), "nor by the old ones");
        }
    }
}

#[test]
fn a_request_of_several_charges_carries_each_of_its_keys() {
    for old in of_limit(10) {
        for new in of_limit(20) {
            let store = store();
            let other = Policy::parse("other", "100/1m").unwrap();
            assert!(store.check(&charge(&old, "k", 6), START).is_allowed());
            let request = |units| [charge(&new, "k", units), charge(&other, "k", 1)];
            assert!(!store.check_all(&request(15), START).is_allowed(), "{old:?} to {new:?}");
            assert!(store.check_all(&request(14), START).is_allowed(), "{old:?} to {new:?}");
            assert!(!store.check_all(&request(1), START).is_allowed());
        }
    }
}

#[test]
fn numbers_of_one_name_that_are_asked_together_count_each_for_itself() {
    let [second, hour] = [policy(quota("2/1s")), policy(quota("3/1h"))];
    let store = store();
    let both = [charge(&second, "k", 1), charge(&hour, "k", 1)];
    assert!(store.check_all(&both, START).is_allowed());
    assert!(store.check_all(&both, START).is_allowed());
    assert_eq!(store.check_all(&both, START).denied_by(), Some(0));
    let later = START.after(Duration::from_secs(2));
    assert!(store.check_all(&both, later).is_allowed());
    assert_eq!(store.check_all(&both, later).denied_by(), Some(1));
}

/// redis-cell #54: a call that brings a higher rate is not denied for what a lower one took.
#[test]
fn redis_cell_54_raising_the_rate_of_calls_never_denies() {
    let call = |text: &str| policy(Gcra::per_call(quota(text)));
    let (slow, fast) = (call("1/6s burst 10"), call("10/6s burst 20"));
    let store = store();
    assert!(store.check(&charge(&slow, "k", 10), START).is_allowed());
    assert!(!store.check(&charge(&slow, "k", 1), START).is_allowed());
    assert!(store.check(&charge(&fast, "k", 10), START).is_allowed(), "the difference, at once");
    assert!(!store.check(&charge(&fast, "k", 1), START).is_allowed(), "and nothing more");
    let next = START.after(Duration::from_millis(600));
    assert!(store.check(&charge(&fast, "k", 1), next).is_allowed(), "at the new rate");
}

/// Which numbers others have brought before, for whatever key, makes no difference to a call.
#[test]
fn redis_cell_54_numbers_that_were_used_before_raise_the_rate_again() {
    let call = |text: &str| policy(Gcra::per_call(quota(text)));
    let (slow, fast) = (call("1/6s burst 10"), call("10/6s burst 20"));
    let store = store();
    assert!(store.check(&charge(&fast, "other", 1), START).is_allowed());
    assert!(store.check(&charge(&slow, "k", 10), START).is_allowed());
    assert!(store.check(&charge(&fast, "k", 10), START).is_allowed(), "the difference, at once");
    for _ in 0..3 {
        assert!(!store.check(&charge(&slow, "k", 1), START).is_allowed(), "lowered again");
        assert!(!store.check(&charge(&fast, "k", 1), START).is_allowed(), "nothing twice");
    }
}

/// governor #273: a limiter that is built again with other numbers does not forgive everybody.
#[test]
fn governor_273_a_limiter_built_again_forgives_nobody() {
    let store = store();
    assert!(store.check(&charge(&policy(quota("10/1h")), "k", 10), START).is_allowed());
    let again = policy(quota("12/1h"));
    assert!(store.check(&charge(&again, "k", 2), START).is_allowed());
    assert!(!store.check(&charge(&again, "k", 1), START).is_allowed());
}

/// boulder #8785: a lower limit holds at once, the wait that is told is true, and nobody is locked
/// for longer than one fill of the new limit.
#[test]
fn boulder_8785_a_lower_limit_holds_at_once_and_tells_the_truth() {
    let store = store();
    assert!(store.check(&charge(&policy(quota("1000/1h")), "k", 1_000), START).is_allowed());
    let new = policy(quota("2/1m"));
    let denied = store.check(&charge(&new, "k", 1), START);
    let wait = denied.retry().and_then(|retry| retry.after()).unwrap();
    assert_eq!(wait, Duration::from_secs(30));
    assert!(!store.check(&charge(&new, "k", 1), START.after(wait / 2)).is_allowed());
    assert!(store.check(&charge(&new, "k", 1), START.after(wait)).is_allowed());
}

/// ratelimit #744: from 5 to 6 with 5 used leaves 1.
#[test]
fn ratelimit_744_a_raised_window_leaves_the_difference() {
    let window = |text| policy(FixedWindow::new(quota(text), Anchor::Epoch));
    let store = store();
    assert!(store.check(&charge(&window("5/1h"), "k", 5), START).is_allowed());
    assert!(store.check(&charge(&window("6/1h"), "k", 1), START).is_allowed());
    assert!(!store.check(&charge(&window("6/1h"), "k", 1), START).is_allowed());
}

#[test]
fn each_policy_names_its_rule() {
    for (rule, expected) in
        [(OnChange::AsIs, 14), (OnChange::Proportional, 8), (OnChange::Reset, 20)]
    {
        for old in of_limit(10).map(|policy| policy.on_change(rule)) {
            for new in of_limit(20).map(|policy| policy.on_change(rule)) {
                let store = store();
                assert!(store.check(&charge(&old, "k", 6), START).is_allowed());
                assert_eq!(left(&store, &new, "k"), expected, "{old:?} to {new:?}");
            }
        }
    }
}

#[test]
fn numbers_that_are_renewed_give_the_difference_again() {
    let (narrow, wide) = (policy(quota("10/1h")), policy(quota("100/1h")));
    let store = store();
    assert!(store.check(&charge(&wide, "k", 50), START).is_allowed());
    assert!(!store.check(&charge(&narrow, "k", 1), START).is_allowed());
    // Who asks by the older numbers is decided by the newer ones ...
    assert!(!store.check(&charge(&wide, "k", 1), START).is_allowed());
    assert!(!store.check(&charge(&narrow, "k", 1), START).is_allowed());
    // ... until they are the newer ones again.
    store.renew([&wide], START);
    assert_eq!(left(&store, &wide, "k"), 90);
}

#[test]
fn an_open_reservation_is_settled_under_the_numbers_of_the_day() {
    for old in of_limit(10) {
        for new in of_limit(20) {
            let store = store();
            let open = |units| store.reserve(&[charge(&old, "k", units)], START).reservation;
            let (first, second) = (open(3).unwrap(), open(4).unwrap());
            assert!(store.check(&charge(&new, "k", 1), START).is_allowed());
            assert_eq!(store.cancel(first.id, START), Settlement::Settled);
            assert_eq!(left(&store, &new, "k"), 15, "{old:?} to {new:?}");
            assert_eq!(store.commit(second.id, &[6], START), Settlement::Settled);
            assert_eq!(left(&store, &new, "k"), 13, "{old:?} to {new:?}");
        }
    }
}

#[test]
fn permits_stay_held_and_are_released_once() {
    let permits = |limit| policy(Concurrency::new(limit, Duration::from_secs(3_600)).unwrap());
    let (old, new) = (permits(3), permits(2));
    let store = store();
    let open = || store.reserve(&[charge(&old, "k", 1)], START).reservation.unwrap().id;
    let held = [open(), open(), open()];
    assert!(!store.reserve(&[charge(&new, "k", 1)], START).verdict.is_allowed());
    assert_eq!(left(&store, &new, "k"), 0);
    assert_eq!(store.cancel(held[0], START), Settlement::Settled);
    assert_eq!(store.cancel(held[1], START), Settlement::Settled);
    assert_eq!(left(&store, &new, "k"), 1);
    assert_eq!(store.cancel(held[1], START), Settlement::Unknown);
    assert_eq!(left(&store, &new, "k"), 1);
}

#[test]
fn a_service_that_restarts_with_other_numbers_carries_over() {
    let folder = std::env::temp_dir().join(format!("tollway-changes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("states");
    for old in of_limit(10) {
        for new in of_limit(20) {
            let before = store();
            assert!(before.check(&charge(&old, "k", 6), START).is_allowed());
            before.dump(&file, START).unwrap();
            let after = MemoryStore::restore(&file, Capacity::keys(64)).unwrap();
            assert_eq!(left(&after, &new, "k"), 14, "{old:?} to {new:?}");
            assert!(after.check(&charge(&new, "k", 14), START).is_allowed());
            assert!(!after.check(&charge(&new, "k", 1), START).is_allowed());
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Some threads still hold the old policy, others the new one. Whatever they do in turn, they are
/// granted at least the smaller of both limits and at most the larger.
#[test]
fn old_and_new_numbers_in_hand_at_once_grant_no_more_than_one_of_them() {
    let rounds = if is_full() { 200 } else { 4 };
    for (old_limit, new_limit) in [(300, 40), (40, 300)] {
        let pairs = || {
            let olds = of_limit(old_limit).into_iter();
            olds.flat_map(|old| of_limit(new_limit).map(|new| (old.clone(), new)))
        };
        for (old, new) in (0..rounds).flat_map(|_| pairs()) {
            let granted = granted_in_turn(&old, &new);
            assert!((40..=300).contains(&granted), "{granted} by {old:?} and {new:?}");
        }
    }
}

/// The same in every order that a die makes; and after the last caller of the old numbers, what is
/// granted is what would be left if all had been of the new ones.
#[test]
fn callers_of_old_and_new_numbers_have_together_between_the_one_limit_and_the_other() {
    let rounds = if is_full() { 400 } else { 8 };
    let mut dice = Dice::new(20);
    for round in 0..rounds {
        let mut limit = || 1 + (dice.unit() * 40.0) as u64;
        let limits = (limit(), limit());
        let (least, most) = (limits.0.min(limits.1), limits.0.max(limits.1));
        for (old, new) in of_limit(limits.0)
            .into_iter()
            .flat_map(|old| of_limit(limits.1).map(|new| (old.clone(), new)))
        {
            let store = store();
            store.renew([&old], START);
            store.renew([&new], START);
            let turns: Vec<bool> = (0..3 * most).map(|_| dice.unit() < 0.5).collect();
            let ask = |is_new: &bool| {
                let policy = if *is_new { &new } else { &old };
                u64::from(store.check(&charge(policy, "k", 1), START).is_allowed())
            };
            let with_old = turns.iter().rposition(|is_new| !is_new).map_or(0, |last| last + 1);
            let before: u64 = turns[..with_old].iter().map(ask).sum();
            let after: u64 = turns[with_old..].iter().map(ask).sum();
            let said = format!("round {round}: {before} and {after} by {old:?} and {new:?}");
            assert!((least..=most).contains(&(before + after)), "{said}");
            let left = limits.1.saturating_sub(before);
            assert_eq!(after, left.min((turns.len() - with_old) as u64), "{said}");
        }
    }
}

#[test]
fn whatever_is_asked_by_older_numbers_is_decided_by_the_newer() {
    for old in of_limit(20) {
        for new in of_limit(10) {
            let store = store();
            let other = Policy::parse("other", "100/1m").unwrap();
            store.renew([&old], START);
            store.renew([&new], START);
            assert!(store.check(&charge(&new, "k", 1), START).is_allowed());
            assert_eq!(left(&store, &old, "k"), 9, "a look: {old:?} and {new:?}");
            let both = |units| [charge(&old, "k", units), charge(&other, "k", 1)];
            assert_eq!(store.peek_all(&both(10), START).denied_by(), Some(0));
            assert!(!store.check_all(&both(10), START).is_allowed());
            assert!(store.check_all(&both(2), START).is_allowed());
            let reserved = store.reserve(&[charge(&old, "k", 3)], START).reservation.unwrap();
            assert_eq!(left(&store, &new, "k"), 4, "{old:?} and {new:?}");
            assert_eq!(store.commit(reserved.id, &[1], START), Settlement::Settled);
            assert_eq!(left(&store, &new, "k"), 6, "{old:?} and {new:?}");
            assert_eq!(store.refund(&charge(&old, "k", 2), START).remaining(), 8);
            assert_eq!(store.take(&charge(&old, "k", 30), START).granted, 8);
            assert_eq!(left(&store, &new, "k"), 0, "{old:?} and {new:?}");
        }
    }
}

/// What four threads are granted that hold one of two policies each.
fn granted_in_turn(old: &Policy, new: &Policy) -> u64 {
    let (store, granted) = (store(), AtomicU64::new(0));
    // Which are the newer numbers is said, and not left to the thread that comes first.
    store.renew([old], START);
    store.renew([new], START);
    std::thread::scope(|scope| {
        for policy in [old, new, old, new] {
            let (store, granted) = (&store, &granted);
            scope.spawn(move || {
                for _ in 0..150 {
                    let allowed = store.check(&charge(policy, "k", 1), START);
                    granted.fetch_add(allowed.is_allowed().into(), Ordering::Relaxed);
                }
            });
        }
    });
    granted.into_inner()
}

/// What a store should be: one state for each key, with the numbers that it is kept under.
#[derive(Default)]
struct Model {
    keys: HashMap<usize, (State, usize)>,
    /// Which numbers were seen first.
    seen: Vec<usize>,
}

impl Model {
    /// By which numbers somebody is decided who asks about the key by those.
    fn decides(&self, key: usize, policies: &[Policy], index: usize, now: Timestamp) -> usize {
        let Some((state, kept)) = self.keys.get(&key) else { return index };
        let place = |index| self.seen.iter().position(|seen| *seen == index);
        let is_older =
            place(index).is_some_and(|own| place(*kept).is_some_and(|other| own < other));
        let [own, kept_under] = [index, *kept].map(|index| policies[index].algorithm());
        if is_older && state.keeps_its_numbers(kept_under, own, now) { *kept } else { index }
    }

    fn carried(&self, key: usize, policies: &[Policy], index: usize, now: Timestamp) -> State {
        let new = policies[index].algorithm();
        match self.keys.get(&key) {
            None => State::vacant(new),
            Some((state, from)) if *from == index => state.clone(),
            Some((state, from)) => {
                let rule = policies[index].change_rule();
                state.carry(policies[*from].algorithm(), new, rule, now)
            }
        }
    }
}

/// Random numbers for each operation, on few keys: every decision and every figure is that of the
/// model, so nothing is forgiven or lost.
#[test]
fn a_history_of_changes_is_decided_as_one_state_per_key_would() {
    let steps = if is_full() { 1_000_000 } else { 20_000 };
    for (seed, rule) in [(1, OnChange::AsIs), (2, OnChange::Proportional)] {
        let policies: Vec<Policy> = [3, 10, 11, 60]
            .into_iter()
            .flat_map(of_limit)
            .map(|policy| policy.on_change(rule))
            .collect();
        let (store, mut model, mut dice) = (store(), Model::default(), Dice::new(seed));
        let mut now = START;
        let mut below = |most: usize| (dice.unit() * most as f64) as usize;
        for step in 0..steps {
            let key = below(5);
            let name = format!("key {key}");
            // Often the numbers that the key is kept under, else any.
            let kept = model.keys.get(&key).map(|(_, kept)| *kept);
            let index = kept.filter(|_| below(3) > 0).unwrap_or_else(|| below(policies.len()));
            let policy = &policies[index];
            let mut charge = charge(policy, &name, 1 + below(4) as u64);
            if below(8) == 0 {
                charge = charge.counted();
            }
            let verb = below(10);
            if below(40) == 0 {
                store.renew([policy], now);
                model.seen.retain(|seen| *seen != index);
                model.seen.push(index);
            }
            if verb < 7 && !model.seen.contains(&index) {
                model.seen.push(index);
            }
            let by = model.decides(key, &policies, index, now);
            let mut state = model.carried(key, &policies, by, now);
            let algorithm = policies[by].algorithm();
            match verb {
                0..7 => {
                    let expected =
                        state.charge(&Charge { policy: &policies[by], ..charge }, 0, now);
                    assert_eq!(store.check(&charge, now), expected, "step {step}: {policy:?}");
                    model.keys.insert(key, (state, by));
                }
                7 | 8 => {
                    let expected = state.peek(algorithm, now);
                    assert_eq!(store.peek(&charge, now), expected, "step {step}: {policy:?}");
                }
                _ => {
                    if let Some((state, kept)) = model.keys.get_mut(&key) {
                        let (algorithm, units) = (policies[*kept].algorithm(), charge.cost.get());
                        state.refund(algorithm, units, None, now);
                    }
                    let by = model.decides(key, &policies, index, now);
                    let expected = model.carried(key, &policies, by, now);
                    let expected = expected.peek(policies[by].algorithm(), now);
                    assert_eq!(store.refund(&charge, now), expected, "step {step}: {policy:?}");
                }
            }
            let wait_s = [0, 0, 0, 1, 60, 600, 1_800, 7_200][below(8)];
            now = now.after(Duration::from_secs(wait_s));
        }
    }
}
