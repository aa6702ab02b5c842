//! The failure runs of Sharkey, which pass here.
//!
//! Each is a leaky bucket at given times, as Sharkey's own limiter was run; the figures are those
//! of `facts/seeds.md`: what the seed admits, and what is right.

use std::time::Duration;

use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::{Policy, Store, Timestamp};
use tollway_redis::RedisStore;

use crate::caller::{admitted, charge, settings};
use tollway_testkit::servers::Engine;

const START_MS: u64 = 1_700_000_000_000;

/// How many calls at these times, in milliseconds, a bucket admits.
async fn run(
    engine: Engine,
    (size, drip_size, interval_ms): (u64, u64, u64),
    calls_ms: impl IntoIterator<Item = u64>,
) -> u64 {
    let bucket = LeakyBucket::new(size, drip_size, Duration::from_millis(interval_ms)).unwrap();
    let policy = Policy::new("sharkey", bucket).unwrap();
    let url = engine.shared().url();
    let store = RedisStore::connect_with_callers_time(&url, settings()).await.unwrap();
    let mut allowed = 0;
    for call_ms in calls_ms {
        let at = Timestamp::from_millis(START_MS + call_ms);
        let verdict = store.check(&[charge(&policy, "actor")], at).await.unwrap();
        allowed += u64::from(verdict.is_allowed());
    }
    allowed
}

#[tokio::test(flavor = "multi_thread")]
async fn drip_size_gives_throughput() {
    for engine in Engine::available() {
        // A caller who asks 20 times a second for a minute: 10 at once, then 2 a second. The seed
        // admits 70.
        let greedy = (0..60_000).step_by(50);
        assert_eq!(run(engine, (10, 2, 1_000), greedy).await, 10 + 2 * 59, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_time_is_not_banked() {
    for engine in Engine::available() {
        // One call, 9.9 s of idling, then a burst: ten, where the seed admits eighteen.
        let burst = std::iter::once(0).chain(std::iter::repeat_n(9_900, 30));
        assert_eq!(run(engine, (10, 1, 1_000), burst).await, 1 + 10, "{engine:?}");
        // Size 1, interval 100, idle for 950 ms: two in all, where the seed admits ten.
        let burst = std::iter::once(0).chain(std::iter::repeat_n(950, 20));
        assert_eq!(run(engine, (1, 1, 100), burst).await, 2, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn level_and_moment_cannot_part() {
    for engine in Engine::available() {
        // Calls at 0 and 900, then 20 a second for 10 s from 5500 on: the seed loses its timestamp
        // and admits all 202; five at 5500 and one a second from there on are right.
        let calls = [0, 900].into_iter().chain((5_500..15_500).step_by(50));
        assert_eq!(run(engine, (5, 1, 1_000), calls).await, 2 + 5 + 9, "{engine:?}");
        // The same loss under a greedy caller with drip size 5: the seed admits 1155.
        let greedy = (0..60_000).step_by(50);
        assert_eq!(run(engine, (10, 5, 1_000), greedy).await, 10 + 5 * 59, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_at_the_brink_do_not_all_pass() {
    for engine in Engine::available() {
        // Sixty-four at once with one unit left: check-then-increment lets all of them pass.
        let bucket = LeakyBucket::new(1, 1, Duration::from_secs(86_400)).unwrap();
        let policy = Policy::new("brink", bucket).unwrap();
        let allowed = admitted(&engine.shared().url(), &settings(), &policy, 64, 1).await;
        assert_eq!(allowed, 1, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_request_leaves_nothing_to_roll_back() {
    for engine in Engine::available() {
        let settings = settings();
        let server = engine.shared();
        let store = crate::caller::connect(&server.url(), &settings).await;
        let bucket = LeakyBucket::new(2, 1, Duration::from_secs(86_400)).unwrap();
        let roomy = Policy::new("roomy", bucket).unwrap();
        let full =
            Policy::new("full", LeakyBucket::new(1, 1, Duration::from_secs(86_400)).unwrap());
        let full = full.unwrap();
        assert!(crate::caller::check(&store, &full, "k").await.unwrap().is_allowed());
        for _ in 0..10 {
            let charges = [charge(&roomy, "k"), charge(&full, "k")];
            let verdict = store.check(&charges, Timestamp::MIN).await.unwrap();
            assert_eq!(verdict.denied_by(), Some(1));
        }
        // Nothing was taken from the first bucket, so there is not even a key for it, and the one
        // key that there is has a time to live.
        let keys = crate::caller::kept_keys(server, &settings);
        let [name] = &keys[..] else { panic!("{keys:?}") };
        assert!(!server.tell(&["PTTL", name]).starts_with(":-1"), "a key without a time to live");
    }
}
