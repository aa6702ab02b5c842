//! Denials answered in process: exactly as long as they must be.

use std::time::Duration;

use tollway_core::{Policy, Store, Timestamp};
use tollway_redis::{Denials, Settings};

use crate::caller::{charge, check, connect, cost, settings};
use tollway_testkit::servers::{Engine, eventually};

fn cached(recheck: Duration) -> Settings {
    Settings { denials: Some(Denials { keys_max: 64, recheck }), ..settings() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attacker_costs_the_store_nothing() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &cached(Duration::from_secs(3_600))).await;
        let policy = Policy::parse("api", "1/30d").unwrap();
        assert!(check(&store, &policy, "k").await.unwrap().is_allowed());
        let first = check(&store, &policy, "k").await.unwrap().retry().unwrap();
        let before = store.status().commands;
        for _ in 0..1_000 {
            let retry = check(&store, &policy, "k").await.unwrap().retry().unwrap();
            assert!(retry <= first, "the wait counts down");
        }
        assert_eq!(store.status().commands, before, "a thousand denials, no command");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_ends_when_its_wait_is_over() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &cached(Duration::from_secs(3_600))).await;
        let policy = Policy::parse("api", "1/200ms").unwrap();
        assert!(check(&store, &policy, "k").await.unwrap().is_allowed());
        let asked = tokio::time::Instant::now();
        let denied = check(&store, &policy, "k").await.unwrap();
        let wait = denied.retry().unwrap().after().unwrap();
        while !check(&store, &policy, "k").await.unwrap().is_allowed() {
            assert!(asked.elapsed() < Duration::from_secs(20), "the denial never ends");
            tokio::task::yield_now().await;
        }
        assert!(asked.elapsed() >= wait, "and no sooner than was told");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_under_other_numbers_denies_nobody() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &cached(Duration::from_secs(3_600))).await;
        let policy = |limit| Policy::parse("api", &format!("{limit}/365d")).unwrap();
        let (old, new) = (policy(2), policy(5));
        let allowed =
            async |policy: &Policy| check(&store, policy, "k").await.unwrap().is_allowed();
        assert!(allowed(&old).await && allowed(&old).await && !allowed(&old).await);
        assert!(allowed(&new).await, "a raised limit gives the difference at once");
        assert!(allowed(&old).await, "who asks by the old numbers is decided by the new ones");
        assert!(allowed(&new).await && !allowed(&new).await);
        let before = store.status().commands;
        assert!(!allowed(&new).await);
        assert_eq!(store.status().commands, before, "the denial is known in process");
        assert!(!allowed(&old).await, "and is one for all numbers");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refunds_and_resets_are_respected_at_once_here_and_within_the_bound_elsewhere() {
    for engine in Engine::available() {
        let settings = cached(Duration::from_millis(300));
        let url = engine.shared().url();
        let (here, elsewhere) = (connect(&url, &settings).await, connect(&url, &settings).await);
        let policy = Policy::parse("api", "1/30d").unwrap();
        assert!(check(&here, &policy, "k").await.unwrap().is_allowed());
        for store in [&here, &elsewhere] {
            assert!(!check(store, &policy, "k").await.unwrap().is_allowed());
        }
        here.refund(&charge(&policy, "k"), Timestamp::MIN).await.unwrap();
        assert!(check(&here, &policy, "k").await.unwrap().is_allowed(), "at once");
        here.reset(&charge(&policy, "k"), Timestamp::MIN).await.unwrap();
        let runtime = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || {
            eventually(Duration::from_secs(20), || {
                runtime.block_on(check(&elsewhere, &policy, "k")).unwrap().is_allowed()
            });
        })
        .await
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_smaller_charge_is_not_denied_by_a_larger_one() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &cached(Duration::from_secs(3_600))).await;
        let policy = Policy::parse("api", "10/30d").unwrap();
        let ask = async |units| {
            let charge = charge(&policy, "k").cost(cost(units));
            store.check(&[charge], Timestamp::MIN).await.unwrap().is_allowed()
        };
        assert!(ask(8).await);
        assert!(!ask(5).await);
        assert!(ask(2).await, "two are left");
        assert!(!ask(1).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_denied_keys_stays_within_its_bound_and_is_still_denied() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &cached(Duration::from_secs(3_600))).await;
        let policy = Policy::parse("api", "1/30d").unwrap();
        for number in 0..300 {
            let key = format!("key {number}");
            assert!(check(&store, &policy, &key).await.unwrap().is_allowed());
            assert!(!check(&store, &policy, &key).await.unwrap().is_allowed());
        }
        // The eldest are forgotten here, and known to the store.
        assert!(!check(&store, &policy, "key 0").await.unwrap().is_allowed());
    }
}
