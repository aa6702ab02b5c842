//! Limits that only the documentation states, kept by all processes together.

use std::time::Duration;

use tollway_testkit::servers::Engine;
use tollway_upstream::budget::{Claim, Ledger as _};
use tollway_upstream::profile::{Observation, Profile};
use tollway_upstream::shared::{Fleet, Naming, Prefix, RedisLedger, Settings};

use super::stage::{Stage, settings};

const LONG: Duration = Duration::from_secs(120);

/// How many requests go to each of the targets, by two processes in turns, until one has to wait;
/// and for how long.
async fn go_until_refused(
    engine: Engine,
    name: &str,
    targets: &[(&str, &str)],
) -> Vec<(usize, Duration)> {
    let settings = Settings { naming: Naming::Learned, ..settings(LONG) };
    let stage = Stage::new(engine, settings).await;
    let profile = Profile::builtin(name).expect("it is shipped");
    let mut ledgers: Vec<RedisLedger> = Vec::new();
    for _ in 0..2 {
        let fleet = Fleet::connect(&stage.url, stage.settings.clone()).await.unwrap();
        ledgers.push(fleet.ledger(Prefix::named(&stage.name), profile.clone()).await.unwrap());
    }
    let fine = Observation { status: 200, ..Observation::default() };
    let mut results = Vec::new();
    for (method, target) in targets {
        let mut gone = 0;
        let wait = loop {
            // The second waits for the answer to the first; from then on the bucket is known.
            let patience = if gone < 2 { LONG } else { Duration::ZERO };
            let claim = Claim::new(profile.route(method, target)).patience(patience);
            match ledgers[gone % 2].claim(claim).await {
                Ok(permit) => permit.complete(&fine),
                Err(refusal) => break refusal.wait.expect("it is known when"),
            }
            gone += 1;
            assert!(gone < 1_000, "nothing holds it back");
        };
        results.push((gone, wait));
    }
    assert_eq!(stage.immortal().await, Vec::<String>::new(), "{engine:?}");
    results
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tier_that_a_profile_states_for_a_route_is_shared_by_all_processes() {
    for engine in Engine::available() {
        let targets = [("GET", "/api/users.list"), ("GET", "/api/conversations.history")];
        let results = go_until_refused(engine, "slack", &targets).await;
        for ((gone, wait), limit) in results.into_iter().zip([20, 50]) {
            assert_eq!(gone, limit, "{engine:?}: however many processes there are");
            assert!(wait <= Duration::from_secs(61), "{engine:?}: {wait:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_a_profile_states_for_every_bucket_is_shared_by_all_processes() {
    for engine in Engine::available() {
        let stated = Profile::builtin_text("stripe").expect("it is shipped");
        assert!(stated.contains("\"25/1s\""), "what is counted below");
        let results = go_until_refused(engine, "stripe", &[("GET", "/v1/balance")]).await;
        let (gone, wait) = results[0];
        // A slow machine may see the first ones come back before the last have gone.
        assert!(gone >= 25 && wait <= Duration::from_millis(1_200), "{engine:?}: {gone} {wait:?}");
    }
}
