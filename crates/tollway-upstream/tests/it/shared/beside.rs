//! The quick and the short way of a claim beside old clients, which write the same keys.

use std::time::Duration;

use tollway_testkit::servers::Engine;

use super::stage::{ROUTE, Stage, claim, settings, take_all, told, try_claim, until};

/// So long that nothing in a test happens because it is over.
const LONG: Duration = Duration::from_secs(120);
const TEN_MINUTES_MS: u64 = 600_000;
/// A mixed fleet that knows of a limit of 200, with the quickest way open.
async fn plenty(engine: Engine) -> Stage {
    let stage = Stage::new(engine, settings(LONG)).await;
    claim(&stage.ledger).await.complete(&told(200, 199, TEN_MINUTES_MS, 1_000));
    stage.until("the limit is learned", |left, ttl| left == Some(199) && ttl > 0).await;
    stage
}

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_written_anew_gives_the_quick_ways_no_more_than_the_window_has() {
    for engine in Engine::available() {
        let stage = plenty(engine).await;
        let known = stage.remaining().await.expect("it is there");
        let first = take_all(&stage.ledger, 60).await;
        assert_eq!(first.len(), 60, "{engine:?}");
        // A late answer of theirs ends the window early, and the next one writes a full counter.
        stage.end_counter().await;
        let _: () = stage.tell(&format!("SET ${ROUTE}:remaining 200 PX 600000 NX")).await;
        let second = take_all(&stage.ledger, 400).await;
        let taken = (first.len() + second.len()) as i64;
        assert!(taken <= known, "{engine:?}: {taken} of {known}");
        assert!(taken > known - 5, "{engine:?}: {taken} of {known}: nor less");
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_nothing_is_put_right_although_the_way_is_quick() {
    for engine in Engine::available() {
        let stage = plenty(engine).await;
        let _: () = stage.tell(&format!("SET ${ROUTE}:limit 0")).await;
        until("the limit is written again", async || {
            claim(&stage.ledger).await.cancel();
            stage.tell::<i64>(&format!("GET ${ROUTE}:limit")).await == 200
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_old_client_takes_is_not_taken_again() {
    for engine in Engine::available() {
        let stage = Stage::of_five(engine, LONG).await;
        let _first = claim(&stage.ledger).await;
        assert_eq!(stage.old_claim().await, 0);
        let _second = claim(&stage.ledger).await;
        assert_eq!(stage.remaining().await, Some(1), "{engine:?}: one of four went to the other");
        let immortal = stage.immortal().await;
        assert_eq!(immortal, Vec::<String>::new(), "{engine:?}");
    }
}
