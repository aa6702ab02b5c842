//! What an old client writes into the shared counter at the wrong time, and the quickest way of a
//! claim, which has its own script beside old clients.

use std::time::Duration;

use tollway_testkit::servers::Engine;
use tollway_upstream::profile::Observation;
use tollway_upstream::shared::{Naming, Settings};

use super::stage::{ROUTE, Stage, claim, settings, take_all, told, try_claim, until};

/// So long that nothing in a test happens because it is over.
const LONG: Duration = Duration::from_secs(120);
const TEN_MINUTES_MS: u64 = 600_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_counter_written_anew_in_a_window_that_goes_on_opens_no_second_one() {
    for engine in Engine::available() {
        let stage = Stage::of_five(engine, LONG).await;
        let _permits = take_all(&stage.ledger, 20).await;
        // An answer of the last window that comes late: PEXPIRE ends this one, and the next late
        // answer writes what the last window had left.
        let _: i64 = stage.tell(&format!("PEXPIRE ${ROUTE}:remaining 1")).await;
        stage.until("the key is gone", |left, _| left.is_none()).await;
        let _: () = stage.tell(&format!("SET ${ROUTE}:remaining 4 NX")).await;
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}: all five are taken");
        assert_eq!(stage.remaining().await, Some(0), "{engine:?}: and everybody is told so");
        assert!(stage.pttl().await > 500_000, "{engine:?}: until the window ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_first_answer_of_a_window_nothing_reopens_it_either() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        let _: () = stage.tell(&format!("SET ${ROUTE}:limit 5")).await;
        let permits = take_all(&stage.ledger, 3).await;
        assert_eq!(permits.len(), 3);
        // Two of the five are taken by an old client, and its answer of the last window comes late.
        assert_eq!((stage.old_claim().await, stage.old_claim().await), (0, 0));
        let _: i64 = stage.tell(&format!("PEXPIRE ${ROUTE}:remaining 1")).await;
        stage.until("the key is gone", |left, _| left.is_none()).await;
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}: five are under way");
        let _: () = stage.tell(&format!("SET ${ROUTE}:remaining 3")).await;
        assert!(take_all(&stage.ledger, 20).await.len() <= 2, "{engine:?}: ours are three");
        for permit in permits {
            permit.complete(&told(5, 0, TEN_MINUTES_MS, 601_000));
        }
        stage.until("the window is known", |left, ttl| left == Some(0) && ttl > 500_000).await;
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_window_that_an_old_client_opened_ours_take_no_more_than_it_showed() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        let _: () = stage.tell(&format!("SET ${ROUTE}:limit 5")).await;
        assert_eq!(stage.old_claim().await, 0);
        let first = take_all(&stage.ledger, 2).await;
        let _: () = stage.tell(&format!("SET ${ROUTE}:remaining 4")).await;
        let second = take_all(&stage.ledger, 20).await;
        assert_eq!((first.len(), second.len()), (2, 2), "{engine:?}: four were left at first");
    }
}

/// An answer of a bucket of a thousand, which the upstream calls `abc`.
fn of_plenty(left: u64, window_ms: u64, reset_at_ms: u64) -> Observation {
    Observation { bucket: Some("abc".into()), ..told(1_000, left, window_ms, reset_at_ms) }
}

/// A fleet without old clients that has learned of it, with the quickest way open.
async fn plenty(engine: Engine, lease: Duration, window_ms: u64) -> Stage {
    let stage = Stage::new(engine, Settings { naming: Naming::Learned, ..settings(lease) }).await;
    claim(&stage.ledger).await.complete(&of_plenty(999, window_ms, 1_000));
    until("the limit is learned", async || left(&stage).await == Some(999)).await;
    // A claim that had to wait does not open it, so it may take more than one.
    until("the way is open", async || {
        claim(&stage.ledger).await.complete(&of_plenty(998, window_ms, 1_000));
        stage.tell::<i64>("EXISTS $abc:81384788765712384:tollway:quick").await == 1
    })
    .await;
    until("nothing is under way", async || leases(&stage).await == (0, 0)).await;
    stage
}

async fn left(stage: &Stage) -> Option<i64> {
    stage.tell("GET $abc:81384788765712384:remaining").await
}

/// Leases of the usual way and of the quickest.
async fn leases(stage: &Stage) -> (i64, i64) {
    let usual = stage.tell("ZCARD $abc:81384788765712384:tollway:leases").await;
    (usual, stage.tell("XLEN $abc:81384788765712384:tollway:quick").await)
}

#[tokio::test(flavor = "multi_thread")]
async fn where_there_is_plenty_a_claim_takes_the_quickest_way_and_is_counted() {
    for engine in Engine::available() {
        let stage = plenty(engine, LONG, TEN_MINUTES_MS).await;
        let before = left(&stage).await.unwrap();
        let permits = [claim(&stage.ledger).await, claim(&stage.ledger).await];
        assert_eq!(left(&stage).await, Some(before - 2), "{engine:?}");
        assert_eq!(leases(&stage).await, (0, 2), "{engine:?}: both have a lease");
        assert_eq!(stage.immortal().await, Vec::<String>::new(), "{engine:?}");
        let [first, second] = permits;
        first.complete(&of_plenty(900, TEN_MINUTES_MS, 1_000));
        until("the answer is learned", async || left(&stage).await == Some(899)).await;
        second.cancel();
        until("nothing is under way", async || leases(&stage).await == (0, 0)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_quickest_way_let_go_counts_in_the_next_window_until_it_is_answered() {
    for engine in Engine::available() {
        let stage = plenty(engine, LONG, 300).await;
        let under_way = [claim(&stage.ledger).await, claim(&stage.ledger).await];
        until("the window is over", async || left(&stage).await.is_none()).await;
        let next = claim(&stage.ledger).await;
        assert_eq!(left(&stage).await, Some(1_000 - 2 - 1), "{engine:?}");
        drop((under_way, next));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quickest_way_is_renewed_while_its_request_lasts_and_closed_to_those_behind_a_line() {
    for engine in Engine::available() {
        let stage = plenty(engine, Duration::from_millis(300), TEN_MINUTES_MS).await;
        let slow = claim(&stage.ledger).await;
        until("it stands beside the others", async || leases(&stage).await == (1, 0)).await;
        slow.complete(&of_plenty(800, TEN_MINUTES_MS, 1_000));
        until("it is answered", async || leases(&stage).await == (0, 0)).await;
        assert_eq!(left(&stage).await, Some(800), "{engine:?}");
        let _: i64 = stage.tell("ZADD $abc:81384788765712384:tollway:waiting 1 other.11").await;
        let _: i64 = stage.tell("PEXPIRE $abc:81384788765712384:tollway:waiting 60000").await;
        let _permit = claim(&stage.ledger).await;
        assert_eq!(leases(&stage).await.1, 0, "{engine:?}: it went the long way");
    }
}
