//! A priority, a client and a weight mean the same with and without a store.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollway_testkit::servers::Engine;
use tollway_upstream::budget::{Claim, Ledger, LocalLedger, Priority};

use super::stage::{Stage, profile, route, settings, told, until};

const CLAIMS: usize = 80;

/// Claims of four clients with different weights and of all priorities.
fn claims() -> Vec<Claim> {
    let claim = |index: usize| {
        let client = (index % 4) as u64;
        let priority = match index {
            _ if index.is_multiple_of(10) => Priority::Low,
            _ if index.is_multiple_of(3) => Priority::Normal,
            _ => Priority::High,
        };
        Claim::new(route()).client(client).weight(1 + client as u32).priority(priority)
    };
    (0..CLAIMS).map(claim).collect()
}

/// The order in which claims are served that waited for one probe.
async fn served(ledger: Arc<dyn Ledger>) -> Vec<usize> {
    let probe = ledger.claim(Claim::new(route())).await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiting: Vec<_> = claims()
        .into_iter()
        .enumerate()
        .map(|(index, claim)| {
            let (ledger, order) = (Arc::clone(&ledger), Arc::clone(&order));
            tokio::spawn(async move {
                let permit = ledger.claim(claim).await.unwrap();
                order.lock().unwrap().push(index);
                permit
            })
        })
        .collect();
    until("all wait", async || ledger.buckets(0, 1).await.unwrap().buckets[0].queued == CLAIMS)
        .await;
    probe.complete(&told(200, 199, 600_000, 1_000));
    let mut permits = Vec::new();
    for claim in waiting {
        permits.push(claim.await.unwrap());
    }
    Arc::into_inner(order).unwrap().into_inner().unwrap()
}

// One thread: tasks are then woken in the order in which they are served.
#[tokio::test]
async fn claims_are_served_in_the_same_order_with_and_without_a_store() {
    let local = LocalLedger::new(profile(), tollway_upstream::budget::Settings::default());
    let expected = served(Arc::new(local)).await;
    let first_low = expected.iter().position(|index| index % 10 == 0);
    assert_eq!(first_low, Some(15), "fifteen overtake, not one more: {expected:?}");
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(Duration::from_secs(120))).await;
        assert_eq!(served(Arc::new(stage.ledger.clone())).await, expected, "{engine:?}");
    }
}
