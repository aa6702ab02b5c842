//! Numbers that change while keys are in use: what was used is carried, by every process alike.

use std::sync::Arc;
use std::time::Duration;

use tollway_core::concurrency::Concurrency;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::gcra::Gcra;
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Algorithm, Charge, OnChange, Policy, Quota, Settlement, Store, Timestamp};
use tollway_redis::RedisStore;
use tollway_testkit::conformance::{Capabilities, Verb, run};
use tollway_testkit::oracle::{Kind, Mix, history, judge};
use tollway_testkit::servers::{Engine, full};

use crate::caller::{charge, check, connect, cost, settings};
use crate::conformance::{OnServer, single_charges};
use crate::faults::until;

const HOUR: Duration = Duration::from_secs(3_600);

fn policy(algorithm: impl Into<Algorithm>) -> Policy {
    Policy::new("api", algorithm).unwrap()
}

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

fn units<'a>(policy: &'a Policy, units: u64) -> Charge<'a> {
    charge(policy, "k").cost(cost(units))
}

async fn is_allowed(store: &RedisStore, charge: Charge<'_>) -> bool {
    let verdict = store.check(&[charge], Timestamp::MIN).await.unwrap();
    assert!(!verdict.is_degraded());
    verdict.is_allowed()
}

async fn left(store: &RedisStore, policy: &Policy) -> u64 {
    let verdict = store.peek(&[units(policy, 1)], Timestamp::MIN).await.unwrap();
    verdict.decisions()[0].snapshot().remaining()
}

/// Policies of one name in every form of state. None gives anything back while a test runs.
fn of_limit(limit: u64) -> [Policy; 6] {
    let year = Duration::from_secs(31_536_000);
    let plain = Quota::new(limit, year).unwrap();
    let part = Quota::with_burst(limit + 1, year, limit).unwrap();
    [
        policy(plain),
        policy(part),
        policy(LeakyBucket::new(limit, 1, year / limit as u32).unwrap()),
        policy(FixedWindow::new(plain, Anchor::FirstRequest)),
        policy(SlidingWindow::new(plain, 10).unwrap()),
        policy(SlidingWindow::exact(plain).unwrap()),
    ]
}

/// Every server, with every pair of a policy of the old limit and one of the new.
fn on_each_server(old: u64, new: u64) -> Vec<(String, Policy, Policy)> {
    let pairs =
        || of_limit(old).into_iter().flat_map(|old| of_limit(new).map(|new| (old.clone(), new)));
    let on = |engine: Engine| {
        let url = engine.shared().url();
        pairs().map(move |(old, new)| (url.clone(), old, new)).collect::<Vec<_>>()
    };
    Engine::available().into_iter().flat_map(on).collect()
}

/// Histories under changing numbers. An expired reservation gives back as of the next look at its
/// key, and as of the next operation at all in the oracle: where a window has ended in between,
/// these are two answers, and so windows are played without reservations.
fn mixes(rule: OnChange) -> [Mix; 2] {
    const NO_RESERVATIONS: &[Verb] =
        &[Verb::Check, Verb::Peek, Verb::Take, Verb::Refund, Verb::Reset];
    const NO_WINDOWS: &[Kind] =
        &[Kind::Gcra, Kind::LeakyBucket, Kind::SlidingWindow, Kind::Concurrency];
    let mix = Mix { changes: Some(rule), ..single_charges() };
    let capabilities = Capabilities { verbs: NO_RESERVATIONS, ..mix.capabilities.clone() };
    [Mix { capabilities, ..mix.clone() }, Mix { kinds: NO_WINDOWS, ..mix }]
}

/// Every step may be under other numbers, periods, algorithms and plans of the same policy: what
/// was used is carried, and none of it is forgiven or lost.
#[test]
fn histories_of_changing_numbers_are_answered_as_the_oracle_answers_them() {
    let histories: u64 = if full() { 2_100 } else { 40 };
    for engine in Engine::available() {
        let mut subject = OnServer::new(&engine.shared().url()).settling_elsewhere();
        for rule in [OnChange::AsIs, OnChange::Proportional, OnChange::Reset] {
            for (mix, seed) in
                mixes(rule).iter().flat_map(|mix| (0..histories).map(move |seed| (mix, seed)))
            {
                judge(&mut subject, &history(seed, mix))
                    .unwrap_or_else(|difference| panic!("{engine:?}, {rule:?}: {difference}"));
            }
        }
    }
}

#[test]
fn the_oldest_supported_redis_carries_alike() {
    let Some(engine) = Engine::oldest() else { return };
    let mut subject = OnServer::new(&engine.shared().url());
    let mixes = mixes(OnChange::AsIs);
    let histories: Vec<_> =
        mixes.iter().flat_map(|mix| (0..20).map(move |seed| history(seed, mix))).collect();
    let report = run(&mut subject, &histories);
    assert!(report.passed(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_used_stays_used_between_any_two_forms_of_states() {
    for (url, old, new) in on_each_server(10, 20) {
        let settings = settings();
        // Two nodes of a fleet, each with numbers of its own.
        let [before, after] = [connect(&url, &settings).await, connect(&url, &settings).await];
        assert!(is_allowed(&before, units(&old, 6)).await);
        assert_eq!(left(&after, &new).await, 14, "a look: {old:?} to {new:?}");
        assert_eq!(left(&before, &old).await, 4, "a look changes nothing");
        assert!(is_allowed(&after, units(&new, 14)).await, "{old:?} to {new:?}");
        assert!(!is_allowed(&after, units(&new, 1)).await, "{old:?} to {new:?}");
        assert!(!is_allowed(&before, units(&old, 1)).await, "nor by the old ones");
        assert!(!is_allowed(&after, units(&new, 1)).await, "nor by the new ones after that");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_policy_names_its_rule() {
    for engine in Engine::available() {
        let url = engine.shared().url();
        let rules = [(OnChange::AsIs, 14), (OnChange::Proportional, 8), (OnChange::Reset, 20)];
        for (rule, expected) in rules {
            let store = connect(&url, &settings()).await;
            let [old, new] = [10, 20].map(|limit| of_limit(limit)[0].clone().on_change(rule));
            assert!(is_allowed(&store, units(&old, 6)).await);
            assert_eq!(left(&store, &new).await, expected, "{rule:?}");
        }
    }
}

/// redis-cell #54: a call that brings a higher rate is not denied for what a lower one took.
#[tokio::test(flavor = "multi_thread")]
async fn redis_cell_54_raising_the_rate_of_calls_never_denies() {
    let call = |text: &str| policy(Gcra::per_call(quota(text)));
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        let (slow, fast) = (call("1/1d burst 10"), call("10/1d burst 20"));
        assert!(is_allowed(&store, units(&slow, 10)).await);
        assert!(!is_allowed(&store, units(&slow, 1)).await);
        assert!(is_allowed(&store, units(&fast, 10)).await, "the difference, at once");
        assert!(!is_allowed(&store, units(&fast, 1)).await, "and nothing more");
        let verdict = check(&store, &fast, "k").await.unwrap();
        let wait = verdict.retry().and_then(|retry| retry.after()).unwrap();
        assert!(wait <= Duration::from_secs(8_640), "at the new rate: {wait:?}");
    }
}

/// governor #273: a limiter that is built again with other numbers does not forgive everybody.
#[tokio::test(flavor = "multi_thread")]
async fn governor_273_a_limiter_built_again_forgives_nobody() {
    for engine in Engine::available() {
        let (url, settings) = (engine.shared().url(), settings());
        let before = connect(&url, &settings).await;
        assert!(is_allowed(&before, units(&policy(quota("10/1d")), 10)).await);
        drop(before);
        let (again, new) = (connect(&url, &settings).await, policy(quota("12/1d")));
        assert!(is_allowed(&again, units(&new, 2)).await);
        assert!(!is_allowed(&again, units(&new, 1)).await);
    }
}

/// boulder #8785: a lower limit holds at once, the wait that is told is true, and nobody is locked
/// for longer than one fill of the new limit.
#[tokio::test(flavor = "multi_thread")]
async fn boulder_8785_a_lower_limit_holds_at_once_and_tells_the_truth() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        assert!(is_allowed(&store, units(&policy(quota("1000/1h")), 1_000)).await);
        let new = policy(quota("2/2s"));
        let denied = check(&store, &new, "k").await.unwrap();
        let wait = denied.retry().and_then(|retry| retry.after()).unwrap();
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
        let asked = tokio::time::Instant::now();
        while !is_allowed(&store, units(&new, 1)).await {
            assert!(asked.elapsed() < Duration::from_secs(20), "the denial never ends");
        }
        assert!(asked.elapsed() + Duration::from_millis(5) >= wait, "no sooner than was told");
    }
}

/// ratelimit #744: from 5 to 6 with 5 used leaves 1.
#[tokio::test(flavor = "multi_thread")]
async fn ratelimit_744_a_raised_window_leaves_the_difference() {
    let window = |text| policy(FixedWindow::new(quota(text), Anchor::FirstRequest));
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        assert!(is_allowed(&store, units(&window("5/1d"), 5)).await);
        assert!(is_allowed(&store, units(&window("6/1d"), 1)).await);
        assert!(!is_allowed(&store, units(&window("6/1d"), 1)).await);
    }
}

/// Numbers that go there and back by the rules of a service give the difference both times.
#[tokio::test(flavor = "multi_thread")]
async fn numbers_that_are_put_in_force_again_are_the_newest_again() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        let (narrow, wide) = (policy(quota("10/365d")), policy(quota("100/365d")));
        store.renew(&[&wide], Timestamp::MIN);
        assert!(is_allowed(&store, units(&wide, 50)).await);
        store.renew(&[&narrow], Timestamp::MIN);
        assert!(!is_allowed(&store, units(&narrow, 1)).await);
        // By the older numbers there is no more to be had than by the newer ones ...
        assert!(!is_allowed(&store, units(&wide, 1)).await);
        assert!(!is_allowed(&store, units(&narrow, 1)).await);
        // ... until they are the newer ones again.
        store.renew(&[&wide], Timestamp::MIN);
        until("the difference", async || left(&store, &wide).await == 90).await;
    }
}

/// A node with old numbers that starts again in the middle of a rollout does not make them newer.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_again_with_old_numbers_grants_no_more_than_the_new_ones() {
    for engine in Engine::available() {
        let (url, settings) = (engine.shared().url(), settings());
        for (number, wide) in of_limit(1_000).into_iter().enumerate() {
            let narrow = policy(quota("10/365d"));
            let key = format!("key {number}");
            let all = |policy: &Policy, units| {
                let (policy, key) = (policy.clone(), key.clone());
                async move |store: &RedisStore| {
                    let charge = charge(&policy, &key).cost(cost(units));
                    store.check(&[charge], Timestamp::MIN).await.unwrap().is_allowed()
                }
            };
            let old = connect(&url, &settings).await;
            assert!(all(&wide, 1_000)(&old).await);
            let new = connect(&url, &settings).await;
            assert!(!all(&narrow, 1)(&new).await);
            for _ in 0..3 {
                let restarted = connect(&url, &settings).await;
                assert!(!all(&wide, 1)(&restarted).await, "{wide:?}");
                assert!(!all(&narrow, 1)(&new).await, "{wide:?}");
            }
        }
    }
}

/// Three nodes, one of which has the new numbers already: whatever they do in turn, no more is
/// granted than the larger of both limits.
#[tokio::test(flavor = "multi_thread")]
async fn old_and_new_numbers_in_use_at_once_grant_no_more_than_one_of_them() {
    for (url, old, new) in on_each_server(60, 20) {
        let settings = settings();
        let nodes = [&old, &old, &new].map(|policy| Arc::new(policy.clone()));
        let mut callers = Vec::new();
        for policy in nodes {
            let store = connect(&url, &settings).await;
            callers.push(tokio::spawn(async move {
                let mut granted = 0;
                for _ in 0..40 {
                    granted += u64::from(is_allowed(&store, units(&policy, 1)).await);
                }
                granted
            }));
        }
        let mut granted = 0;
        for caller in callers {
            granted += caller.await.unwrap();
        }
        assert!((1..=60).contains(&granted), "{granted} by {old:?} and {new:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_reservation_is_settled_under_the_numbers_of_the_day() {
    for (url, old, new) in on_each_server(10, 20) {
        let settings = settings();
        let [before, after] = [connect(&url, &settings).await, connect(&url, &settings).await];
        let mut open = Vec::new();
        for count in [3, 4] {
            let reserved = before.reserve(&[units(&old, count)], Timestamp::MIN).await.unwrap();
            open.push(reserved.reservation.unwrap().id);
        }
        assert!(is_allowed(&after, units(&new, 1)).await);
        // One by the process that made it, one by another.
        let settled = before.cancel(open[0], Timestamp::MIN).await.unwrap();
        assert_eq!(settled, Settlement::Settled);
        assert_eq!(left(&after, &new).await, 15, "{old:?} to {new:?}");
        let settled = after.commit(open[1], &[2], Timestamp::MIN).await.unwrap();
        assert_eq!(settled, Settlement::Settled);
        assert_eq!(left(&after, &new).await, 17, "{old:?} to {new:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_stay_held_and_are_released_once() {
    let permits = |limit| policy(Concurrency::new(limit, HOUR).unwrap());
    for engine in Engine::available() {
        let (old, new) = (permits(3), permits(2));
        let store = connect(&engine.shared().url(), &settings()).await;
        let mut held = Vec::new();
        for _ in 0..3 {
            let reserved = store.reserve(&[units(&old, 1)], Timestamp::MIN).await.unwrap();
            held.push(reserved.reservation.unwrap().id);
        }
        let denied = store.reserve(&[units(&new, 1)], Timestamp::MIN).await.unwrap();
        assert!(!denied.verdict.is_allowed());
        assert_eq!(left(&store, &new).await, 0);
        for id in &held[..2] {
            let settled = store.cancel(*id, Timestamp::MIN).await.unwrap();
            assert_eq!(settled, Settlement::Settled);
        }
        assert_eq!(left(&store, &new).await, 1);
        let again = store.cancel(held[1], Timestamp::MIN).await.unwrap();
        assert_eq!(again, Settlement::Unknown);
        assert_eq!(left(&store, &new).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_of_one_name_that_are_asked_together_count_each_for_itself() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        let [day, month] = [policy(quota("2/1d")), policy(quota("3/30d"))];
        let both = [units(&day, 1), units(&month, 1)];
        for _ in 0..2 {
            assert!(store.check(&both, Timestamp::MIN).await.unwrap().is_allowed());
        }
        let denied = store.check(&both, Timestamp::MIN).await.unwrap();
        assert_eq!(denied.denied_by(), Some(0));
    }
}

/// Requests of many callers are gathered; those under other numbers must not disturb the rest.
#[tokio::test(flavor = "multi_thread")]
async fn callers_under_different_numbers_share_a_connection() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        let policies = of_limit(30).map(Arc::new);
        let callers: Vec<_> = (0..24)
            .map(|number| {
                let (store, policies) = (store.clone(), policies.clone());
                tokio::spawn(async move {
                    let mut granted = 0;
                    for step in 0..5 {
                        let policy = &policies[(number + step) % policies.len()];
                        granted += u64::from(is_allowed(&store, units(policy, 1)).await);
                        let other = charge(policy, "other");
                        let _ = store.check(&[other], Timestamp::MIN).await.unwrap();
                    }
                    granted
                })
            })
            .collect();
        let mut granted = 0;
        for caller in callers {
            granted += caller.await.unwrap();
        }
        assert_eq!(granted, 30, "{engine:?}");
    }
}

/// A policy that never changes is asked about in one round trip each time but the first.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_never_changes_costs_no_round_trip() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        for policy in of_limit(1_000) {
            let policy = Policy::new(policy.algorithm().label(), *policy.algorithm()).unwrap();
            assert!(is_allowed(&store, units(&policy, 1)).await);
            let before = store.status().commands;
            for _ in 0..20 {
                assert!(is_allowed(&store, units(&policy, 1)).await);
            }
            assert_eq!(store.status().commands - before, 20, "{policy:?}");
        }
    }
}
