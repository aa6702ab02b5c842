//! Many clients at once: never one over.

use std::sync::Arc;
use std::time::Duration;

use tollway_core::concurrency::Concurrency;
use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Algorithm, Policy, Quota, Store, Timestamp};

use crate::caller::{admitted, charge, check, connect, kept_keys, settings};
use tollway_testkit::servers::Engine;

/// Slow enough that nothing comes back while a test runs.
fn algorithms() -> [Algorithm; 6] {
    let quota: Quota = "100/30d".parse().unwrap();
    let day = Duration::from_secs(86_400);
    [
        quota.into(),
        LeakyBucket::new(100, 1, day).unwrap().into(),
        SlidingWindow::new(quota, 10).unwrap().into(),
        FixedWindow::new(quota, Anchor::FirstRequest).into(),
        Concurrency::new(100, day).unwrap().into(),
        tollway_zones::calendar_window("100/year tz Europe/Berlin").unwrap().into(),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_clients_on_one_key_get_exactly_the_limit() {
    for engine in Engine::available() {
        for (number, algorithm) in algorithms().into_iter().enumerate() {
            let policy = Policy::new(format!("race {number}"), algorithm).unwrap();
            let url = engine.shared().url();
            let allowed = admitted(&url, &settings(), &policy, 64, 4).await;
            assert_eq!(allowed, 100, "{engine:?} {algorithm:?}");
        }
    }
}

/// On one key, whose states share a value, and on three keys.
#[tokio::test(flavor = "multi_thread")]
async fn overlapping_requests_of_several_charges_never_take_half() {
    for engine in Engine::available() {
        for keys in [["{t}x", "{t}x", "{t}x"], ["{t}x", "{t}y", "{t}z"]] {
            take_in_pairs(engine, keys).await;
        }
    }
}

async fn take_in_pairs(engine: Engine, keys: [&'static str; 3]) {
    let settings = settings();
    let policies: Arc<Vec<Policy>> = Arc::new(
        [40, 50, 60].map(|n| Policy::parse(format!("p{n}"), &format!("{n}/30d")).unwrap()).into(),
    );
    let mut callers = Vec::new();
    for client in 0..64 {
        let store = connect(&engine.shared().url(), &settings).await;
        let policies = Arc::clone(&policies);
        callers.push(tokio::spawn(async move {
            let mut taken = [0u64; 3];
            for round in 0..4 {
                // Pairs that overlap in every way, in either order.
                let pair = [[0, 1], [1, 2], [2, 0]][(client + round) % 3];
                let charges = pair.map(|n| charge(&policies[n], keys[n]));
                if store.check(&charges, Timestamp::MIN).await.unwrap().is_allowed() {
                    pair.iter().for_each(|n| taken[*n] += 1);
                }
            }
            taken
        }));
    }
    let mut taken = [0u64; 3];
    for caller in callers {
        let more = caller.await.unwrap();
        (0..3).for_each(|n| taken[n] += more[n]);
    }
    // 40 + 50 + 60 units in pairs: all of the smallest two are spent together with the third.
    assert!(taken[0] <= 40 && taken[1] <= 50 && taken[2] <= 60, "{keys:?}: {taken:?}");
    let store = connect(&engine.shared().url(), &settings).await;
    for n in 0..3 {
        let peek = store.peek(&[charge(&policies[n], keys[n])], Timestamp::MIN).await.unwrap();
        let left = peek.decisions()[0].snapshot().remaining();
        let limit = policies[n].algorithm().limit();
        assert_eq!(left, limit - taken[n], "{keys:?}: what was not taken is left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_of_one_process_share_few_round_trips() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        let policy = Arc::new(Policy::parse("api", "1000000/1s").unwrap());
        // The first request notes the numbers of the policy.
        assert!(check(&store, &policy, "k").await.unwrap().is_allowed());
        let before = store.status();
        let callers: Vec<_> = (0..64)
            .map(|_| {
                let (store, policy) = (store.clone(), Arc::clone(&policy));
                tokio::spawn(async move {
                    for _ in 0..100 {
                        assert!(check(&store, &policy, "k").await.unwrap().is_allowed());
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.unwrap();
        }
        let after = store.status();
        assert_eq!(after.requests - before.requests, 6_400);
        let trips = after.round_trips - before.round_trips;
        assert!(trips * 3 < 6_400, "{trips} round trips for 6400 requests");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_one_round_trip_whatever_the_number_of_charges() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        let policies: Vec<Policy> = algorithms()
            .into_iter()
            .enumerate()
            .map(|(n, algorithm)| Policy::new(format!("p{n}"), algorithm).unwrap())
            .collect();
        let charges: Vec<_> = policies.iter().map(|policy| charge(policy, "k")).collect();
        // A caller whose clock is right: it sends the right windows of the calendar.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let now = Timestamp::MIN.after(now);
        // The first makes the script known.
        assert!(store.check(&charges, now).await.unwrap().is_allowed());
        let before = store.status();
        assert!(store.check(&charges, now).await.unwrap().is_allowed());
        let after = store.status();
        assert_eq!(after.round_trips - before.round_trips, 1);
        assert_eq!(after.commands - before.commands, 1);
    }
}

/// Also where the keys have states of other policies in their values.
#[tokio::test(flavor = "multi_thread")]
async fn charges_on_different_keys_are_one_round_trip() {
    for engine in Engine::available() {
        for quota in ["1000/30d", "7/1s burst 1000"] {
            let store = connect(&engine.shared().url(), &settings()).await;
            let policies = ["a", "b"].map(|name| Policy::parse(name, quota).unwrap());
            let [charges, others] = [0, 1].map(|first| {
                let policy = |n: usize| &policies[(first + n) % 2];
                ["k", "l", "m"].iter().enumerate().map(|(n, key)| charge(policy(n), key)).collect()
            });
            let [charges, others]: [Vec<_>; 2] = [charges, others];
            // The first makes the script known.
            assert!(store.check(&charges, Timestamp::MIN).await.unwrap().is_allowed());
            let before = store.status();
            for round in 0..4 {
                let charges = if round % 2 == 0 { &others } else { &charges };
                let verdict = store.check(charges, Timestamp::MIN).await.unwrap();
                assert!(verdict.is_allowed() && !verdict.is_degraded());
            }
            let after = store.status();
            assert_eq!(after.round_trips - before.round_trips, 4, "{engine:?}, {quota}");
            assert_eq!(after.commands - before.commands, 4, "{engine:?}, {quota}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_key_has_a_time_to_live_and_idle_keys_vanish() {
    for engine in Engine::available() {
        let settings = settings();
        let server = engine.shared();
        let store = connect(&server.url(), &settings).await;
        let policy = Policy::parse("brief", "10/1s").unwrap();
        assert!(check(&store, &policy, "k").await.unwrap().is_allowed());
        let all = server.tell(&["KEYS", &format!("{}*", settings.prefix)]);
        for key in all.lines().filter(|line| line.starts_with(&settings.prefix)) {
            assert!(!server.tell(&["PTTL", key]).starts_with(":-"), "{key}");
        }
        let keys = || kept_keys(server, &settings).len();
        assert_eq!(keys(), 1);
        tollway_testkit::servers::eventually(Duration::from_secs(10), || keys() == 0);
    }
}

/// A state that is charged again lives a few seconds longer than it must, so that the next charges
/// change it in place; never shorter.
#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_is_charged_again_outlives_its_need_by_seconds_at_most() {
    for engine in Engine::available() {
        for (quota, unit, keys) in [
            ("100/10s", 100, ["k", "k"]),
            ("30/7s", 233, ["k", "k"]),
            ("100/10s", 100, ["k", "l"]),
            ("30/7s", 233, ["k", "l"]),
        ] {
            let settings = settings();
            let server = engine.shared();
            let store = connect(&server.url(), &settings).await;
            let policies = ["a", "b"].map(|name| Policy::parse(name, quota).unwrap());
            let start = std::time::Instant::now();
            for count in 1..=20 {
                let charges = [0, 1].map(|n| charge(&policies[n], keys[n]));
                assert!(store.check(&charges, Timestamp::MIN).await.unwrap().is_allowed());
                for key in kept_keys(server, &settings) {
                    let answer = server.tell(&["PTTL", &key]);
                    let left: u128 = answer.trim().trim_start_matches(':').parse().unwrap();
                    let need = unit * count;
                    let passed = start.elapsed().as_millis();
                    assert!(left + passed >= need && left < need + 9_000, "{left} of {need} ms");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_large_requests_at_once_are_each_decided_as_a_whole() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &settings()).await;
        let policy = Policy::parse("wide", "40/30d").unwrap();
        let callers: Vec<_> = (0..64)
            .map(|_| {
                let (store, policy) = (store.clone(), policy.clone());
                tokio::spawn(async move {
                    let keys: Vec<String> = (0..256).map(|n| format!("key {n}")).collect();
                    let charges: Vec<_> = keys.iter().map(|key| charge(&policy, key)).collect();
                    store.check(&charges, Timestamp::MIN).await.unwrap().is_allowed()
                })
            })
            .collect();
        let mut allowed = 0;
        for caller in callers {
            allowed += u64::from(caller.await.unwrap());
        }
        assert_eq!(allowed, 40, "{engine:?}: 256 keys each, all or none");
    }
}
