//! A real 3+3 cluster: the same answers, slots, failover.

use tollgate_core::{ErrorKind, Policy, Store, Timestamp};
use tollgate_redis::{PolicySettings, RedisStore, Settings};
use tollgate_sim::conformance::{run, scenarios};
use tollgate_sim::oracle::history;

use crate::caller::{admitted, charge, check, connect, settings};
use crate::conformance::{OnServer, single_charges};
use crate::faults::{fail_over, hasty};
use tollgate_sim::servers::{Cluster, Engine, full};

/// The engines on which clusters are tried: Redis always, Valkey where it is.
#[test]
fn conformance_file_and_histories_hold_on_a_cluster() {
    for engine in Engine::available() {
        let mut subject = OnServer::new(&Cluster::shared(engine).url()).with_one_tag();
        let report = run(&mut subject, &scenarios().unwrap());
        assert!(report.passed(), "{engine:?}: {report}");
        let histories = if full() { 1_000 } else { 50 };
        let scenarios: Vec<_> =
            (0..histories).map(|seed| history(seed, &single_charges())).collect();
        let report = run(&mut subject, &scenarios);
        assert!(report.passed(), "{engine:?}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn charges_across_slots_are_refused_unless_the_policies_allow_it() {
    for engine in Engine::available() {
        let url = Cluster::shared(engine).url();
        let settings = settings();
        let store = connect(&url, &settings).await;
        let [a, b] = ["a", "b"].map(|name| Policy::parse(name, "10/30d").unwrap());
        let apart = [charge(&a, "one"), charge(&b, "two")];
        let error = store.check(&apart, Timestamp::MIN).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misuse, "{error}");
        assert!(error.to_string().contains("hash tag"), "{error}");
        let together = [charge(&a, "one{t}"), charge(&b, "two{t}")];
        assert!(store.check(&together, Timestamp::MIN).await.unwrap().is_allowed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_across_slots_takes_all_or_rolls_back() {
    for engine in Engine::available() {
        let across = PolicySettings { across_slots: true, ..PolicySettings::default() };
        let policies = ["a", "b"].map(|name| (name.to_owned(), across));
        let settings = Settings { policies: policies.into(), ..settings() };
        let url = Cluster::shared(engine).url();
        let a = Policy::parse("a", "100/30d").unwrap();
        let b = Policy::parse("b", "30/30d").unwrap();
        let mut callers = Vec::new();
        for _ in 0..16 {
            let (store, a, b) = (connect(&url, &settings).await, a.clone(), b.clone());
            callers.push(tokio::spawn(async move {
                let mut allowed = 0;
                for _ in 0..5 {
                    let charges = [charge(&a, "one"), charge(&b, "two")];
                    let verdict = store.check(&charges, Timestamp::MIN).await.unwrap();
                    allowed += u64::from(verdict.is_allowed());
                }
                allowed
            }));
        }
        let mut allowed = 0;
        for caller in callers {
            allowed += caller.await.unwrap();
        }
        assert!(allowed <= 30, "{engine:?}: never one over, got {allowed}");
        let store = connect(&url, &settings).await;
        for (policy, key, limit) in [(&a, "one", 100), (&b, "two", 30)] {
            let verdict = store.peek(&[charge(policy, key)], Timestamp::MIN).await.unwrap();
            let left = verdict.decisions()[0].snapshot().remaining();
            assert_eq!(left, limit - allowed, "{engine:?}: what was not taken was rolled back");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_on_a_cluster_get_exactly_the_limit() {
    for engine in Engine::available() {
        let policy = Policy::parse("race", "100/30d").unwrap();
        let url = Cluster::shared(engine).url();
        assert_eq!(admitted(&url, &settings(), &policy, 16, 16).await, 100, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_to_one_node_share_round_trips() {
    for engine in Engine::available() {
        let store = connect(&Cluster::shared(engine).url(), &settings()).await;
        let policy = Policy::parse("api", "1000000/1s").unwrap();
        let before = store.status();
        let callers: Vec<_> = (0..64)
            .map(|caller| {
                let (store, policy) = (store.clone(), policy.clone());
                tokio::spawn(async move {
                    for request in 0..20 {
                        let key = format!("key {}", caller * 20 + request);
                        assert!(check(&store, &policy, &key).await.unwrap().is_allowed());
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        let after = store.status();
        let trips = after.round_trips - before.round_trips;
        assert!(trips * 2 < 1_280, "{engine:?}: {trips} round trips for 1280 requests");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_is_replaced_and_at_most_its_limit_is_admitted_again() {
    for engine in Engine::available() {
        let cluster = Cluster::start(engine);
        let store = connect(&cluster.url(), &hasty()).await;
        fail_over(engine, "cluster", &store, || cluster.primary_of("hot").kill()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_a_cluster_without_enough_nodes_still_starts_if_told_to() {
    let settings = Settings { start_without: true, ..hasty() };
    let store = RedisStore::connect("redis+cluster://127.0.0.1:1", settings).await.unwrap();
    let policy = Policy::parse("api", "1/s").unwrap();
    let verdict = check(&store, &policy, "k").await.unwrap();
    assert!(verdict.is_degraded() && !verdict.is_allowed());
}
