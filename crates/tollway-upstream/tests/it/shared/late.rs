//! What comes late or in the wrong order: messages, names, answers under another name, ends. No
//! request under way is forgotten, and nothing is sent into a window that is known to be full.

use std::time::Duration;

use tollway_testkit::servers::Engine;
use tollway_upstream::budget::Permit;
use tollway_upstream::profile::{Observation, Route};
use tollway_upstream::shared::{Naming, RedisLedger, Settings};

use super::stage::{PATIENCE, Stage, World, claim_on, settings, standing, told, until};

/// So long that nothing in a test happens because it is over.
const LONG: Duration = Duration::from_secs(120);
const TEN_MINUTES_MS: u64 = 600_000;

/// A fleet that goes by the upstream's own names.
async fn learning(engine: Engine) -> Stage {
    Stage::new(engine, Settings { naming: Naming::Learned, ..settings(LONG) }).await
}

fn get() -> Route {
    Route::new("GET", "/x/1", "1")
}

async fn take_all_of(ledger: &RedisLedger) -> Vec<Permit> {
    use tollway_upstream::budget::{Claim, Ledger as _};
    let mut permits = Vec::new();
    while let Ok(permit) = ledger.claim(Claim::new(get()).patience(Duration::ZERO)).await {
        permits.push(permit);
    }
    permits
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_under_way_moves_with_the_name_of_its_bucket() {
    for engine in Engine::available() {
        let stage = learning(engine).await;
        let other = stage.process().await;
        // One of six is answered, and five are under way under the route's own name.
        claim_on(&stage.ledger, get()).await.complete(&told(6, 5, TEN_MINUTES_MS, 1_000));
        until("the limit is learned", async || standing(&stage.ledger).await.1 == 0).await;
        let mut permits = take_all_of(&stage.ledger).await;
        assert_eq!(permits.len(), 5, "{engine:?}");
        let second = told(6, 4, TEN_MINUTES_MS, 1_000);
        permits.remove(1).complete(&Observation { bucket: Some("abc".into()), ..second });
        until("the answer is learned", async || standing(&stage.ledger).await.1 == 4).await;
        assert!(take_all_of(&other).await.is_empty(), "{engine:?}: six of six");
        permits.remove(0).cancel();
        until("it comes back", async || standing(&stage.ledger).await.1 == 3).await;
        assert_eq!(take_all_of(&other).await.len(), 1, "{engine:?}: under the new name too");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_whose_bucket_has_two_names_in_turn_does_not_stand_still() {
    for engine in Engine::available() {
        let stage = learning(engine).await;
        let ledgers = [stage.ledger.clone(), stage.process().await];
        for round in 0..20_u64 {
            let permit = claim_on(&ledgers[round as usize % 2], get()).await;
            let bucket = Some(if round % 2 == 0 { "new" } else { "old" }.into());
            permit.complete(&Observation { bucket, ..told(50, 40, TEN_MINUTES_MS, 1_000) });
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_whose_answers_name_two_buckets_in_turn_is_served_to_the_end() {
    for engine in Engine::available() {
        let stage = learning(engine).await;
        let calls: Vec<_> = (0..24_u64)
            .map(|index| {
                let ledger = stage.ledger.clone();
                tokio::spawn(async move {
                    let permit = claim_on(&ledger, get()).await;
                    let bucket = Some(if index % 2 == 0 { "new" } else { "old" }.into());
                    let left = 4 - index / 2 % 5;
                    permit.complete(&Observation { bucket, ..told(5, left, 50, 1_000 + index) });
                })
            })
            .collect();
        for call in calls {
            tokio::time::timeout(PATIENCE, call).await.expect("no stall").unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn however_long_requests_and_answers_are_under_way_no_window_gets_more_than_its_limit() {
    for engine in Engine::available() {
        for naming in [Naming::Learned, Naming::Spectacles] {
            let stage = Stage::new(engine, Settings { naming, ..settings(LONG) }).await;
            let ledgers = [stage.ledger.clone(), stage.process().await, stage.process().await];
            let world = World::new(r#"limit = 4, per = "60ms""#);
            // Up to one and a half windows each way, so answers of three windows come mixed.
            let mut dice = 1_u64;
            let mut delay = || {
                dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                Duration::from_millis((dice >> 33) % 4 * 30)
            };
            let calls: Vec<_> = (0..60)
                .map(|index| {
                    let (world, ledger) = (world.clone(), ledgers[index % 3].clone());
                    let (there, back) = (delay(), delay());
                    tokio::spawn(async move { world.call_slowly(&ledger, there, back).await })
                })
                .collect();
            for call in calls {
                tokio::time::timeout(PATIENCE, call).await.expect("no stall").unwrap();
            }
            assert_eq!(world.counters().limited_all(), 0, "{engine:?} {naming:?}");
        }
    }
}
