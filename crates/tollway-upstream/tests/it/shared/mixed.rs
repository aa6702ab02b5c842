//! What an old client writes into the shared counter at the wrong time, and the quickest way of a
//! claim, which has its own script beside old clients.

use std::time::Duration;

use tollway_testkit::servers::Engine;

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
        stage.end_counter().await;
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
        // Whoever asks sees it: what a counter showed that nobody looked at is not known.
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}: five are taken");
        stage.end_counter().await;
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

/// Learns of a window whose last request was just answered, and forgets its counter: some old
/// client knew of its end sooner.
async fn over_for_others(stage: &Stage, ms: u64) {
    let _: () = stage.tell(&format!("SET ${ROUTE}:limit 5")).await;
    claim(&stage.ledger).await.complete(&told(5, 0, ms, 1_000));
    stage.until("the window is known", |left, ttl| left == Some(0) && ttl > 0).await;
    stage.end_counter().await;
}

/// Waits until the server's clock has moved on by so much.
async fn pass(stage: &Stage, ms: u64) {
    let _: () = stage.tell(&format!("SET $clock 1 PX {ms}")).await;
    until("time passes", async || stage.tell::<i64>("EXISTS $clock").await == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_window_that_old_clients_have_opened_is_not_opened_again() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        over_for_others(&stage, 400).await;
        for _ in 0..5 {
            assert_eq!(stage.old_claim().await, 0);
        }
        // Whoever looks before our end of the window sees a counter that says what it said before.
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}");
        pass(&stage, 500).await;
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}: five are under way");
        assert_eq!(stage.old_claim().await, 1_000, "{engine:?}: and old clients see it");
        let _: i64 = stage.tell(&format!("PEXPIRE ${ROUTE}:remaining 600000")).await;
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}: they were served");
        assert!(stage.pttl().await > 500_000, "{engine:?}: until their window ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_old_clients_were_told_of_the_next_window_is_believed() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        over_for_others(&stage, 400).await;
        assert_eq!((stage.old_claim().await, stage.old_claim().await), (0, 0));
        let _: i64 = stage.tell(&format!("PEXPIRE ${ROUTE}:remaining 600000")).await;
        assert!(take_all(&stage.ledger, 9).await.len() <= 3, "{engine:?}");
        assert!(stage.pttl().await > 500_000, "{engine:?}: their window goes on");
        pass(&stage, 500).await;
        let _: Vec<_> = take_all(&stage.ledger, 9).await;
        assert_eq!(stage.remaining().await, Some(0), "{engine:?}");
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn old_clients_that_came_one_after_the_other_are_all_counted() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        let _: () = stage.tell(&format!("SET ${ROUTE}:limit 5")).await;
        assert_eq!((stage.old_claim().await, stage.old_claim().await), (0, 0));
        let ours = claim(&stage.ledger).await;
        assert_eq!((stage.old_claim().await, stage.old_claim().await), (0, 0));
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}: five are under way");
        let _: i64 = stage.tell(&format!("PEXPIRE ${ROUTE}:remaining 600000")).await;
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}: and five were served");
        ours.complete(&told(5, 0, TEN_MINUTES_MS, 1_000));
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}");
        assert_eq!(stage.remaining().await, Some(0), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_ours_that_left_later_tells_of_theirs_too() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        let _: () = stage.tell(&format!("SET ${ROUTE}:limit 5")).await;
        assert_eq!((stage.old_claim().await, stage.old_claim().await), (0, 0));
        claim(&stage.ledger).await.complete(&told(5, 2, 400, 1_000));
        stage.until("the window is known", |left, ttl| left.is_some() && ttl > 0).await;
        stage.until("the window is over", |left, _| left.is_none()).await;
        assert_eq!(take_all(&stage.ledger, 9).await.len(), 5, "{engine:?}: nobody is waited for");
    }
}
