use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tollway_upstream::budget::{Claim, Ledger, LocalLedger, Permit, Reason, Settings};
use tollway_upstream::profile::{Observation, Profile, Reading};

fn ledger() -> Arc<dyn Ledger> {
    let profile = Profile::builtin("discord").expect("it is shipped");
    Arc::new(LocalLedger::new(profile, Settings::default()))
}

fn claim() -> Claim {
    let profile = Profile::builtin("discord").expect("it is shipped");
    Claim::new(profile.route("GET", "/api/v10/channels/1/messages"))
}

fn left(remaining: u64, reset_ms: u64) -> Observation {
    let reading = Reading {
        limit: Some(3),
        remaining: Some(remaining),
        reset_after: Some(Duration::from_millis(reset_ms)),
        told_after: true,
        ..Reading::default()
    };
    Observation { readings: vec![reading], ..Observation::default() }
}

async fn soon(ledger: &Arc<dyn Ledger>) -> Permit {
    timeout(Duration::from_millis(1), ledger.claim(claim()))
        .await
        .expect("at once")
        .expect("granted")
}

#[tokio::test(start_paused = true)]
async fn waiters_are_woken_by_the_answer_in_order_and_then_by_the_clock() {
    let ledger = ledger();
    let probe = soon(&ledger).await;
    let (sender, mut went) = mpsc::unbounded_channel();
    let start = Instant::now();
    for task in 0..4 {
        let (ledger, sender) = (Arc::clone(&ledger), sender.clone());
        tokio::spawn(async move {
            let permit = ledger.claim(claim()).await.expect("granted");
            sender.send((task, start.elapsed().as_millis())).expect("the test listens");
            permit.complete(&left(0, 400));
        });
        // Lets the task reach the line before the next one is started.
        tokio::task::yield_now().await;
    }
    probe.complete(&left(2, 500));
    let mut order = Vec::new();
    for _ in 0..4 {
        order.push(
            timeout(Duration::from_secs(9), went.recv()).await.expect("it goes on").expect("open"),
        );
    }
    assert_eq!(order.iter().map(|(task, _)| *task).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!((order[0].1, order[1].1), (0, 0), "two were left");
    assert!((400..=501).contains(&order[2].1), "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_permit_lets_the_next_one_probe() {
    let ledger = ledger();
    let probe = soon(&ledger).await;
    let waiting = tokio::spawn({
        let ledger = Arc::clone(&ledger);
        async move { ledger.claim(claim()).await.is_ok() }
    });
    tokio::task::yield_now().await;
    drop(probe);
    assert!(timeout(Duration::from_millis(1), waiting).await.expect("at once").expect("no panic"));
}

#[tokio::test(start_paused = true)]
async fn whoever_gives_up_leaves_the_line_to_the_next() {
    let ledger = ledger();
    let probe = soon(&ledger).await;
    let gives_up = timeout(Duration::from_millis(5), ledger.claim(claim())).await;
    assert!(gives_up.is_err());
    assert_eq!(ledger.buckets(0, 10).await.expect("local").buckets[0].queued, 0);
    probe.complete(&left(1, 60_000));
    let _last = soon(&ledger).await;
    assert!(timeout(Duration::from_secs(1), ledger.claim(claim())).await.is_err(), "one was left");
}

#[tokio::test(start_paused = true)]
async fn who_cannot_wait_is_refused_at_once_or_when_its_time_is_over() {
    let ledger = ledger();
    soon(&ledger).await.complete(&left(0, 10_000));
    let start = Instant::now();
    let refused = ledger.claim(claim().patience(Duration::from_secs(5))).await;
    assert_eq!(refused.expect_err("too long").reason, Reason::Patience);
    assert_eq!(start.elapsed(), Duration::ZERO);
    let other = Claim::new(
        Profile::builtin("discord").expect("it is shipped").route("GET", "/api/v10/gateway"),
    );
    let _probe = ledger.claim(other.clone()).await.expect("granted");
    let refused = ledger.claim(other.patience(Duration::from_secs(2))).await;
    assert_eq!(refused.expect_err("the probe hangs").reason, Reason::Patience);
    assert_eq!(start.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_drained_line_is_refused_and_an_unlocked_bucket_probes() {
    let ledger = ledger();
    soon(&ledger).await.complete(&left(0, 3_600_000));
    let waiting = tokio::spawn({
        let ledger = Arc::clone(&ledger);
        async move { ledger.claim(claim()).await.map(drop) }
    });
    tokio::task::yield_now().await;
    let bucket = ledger.buckets(0, 1).await.expect("local").buckets[0].id.clone();
    assert_eq!(ledger.drain(&bucket).await.expect("local"), 1);
    let refused = waiting.await.expect("no panic").expect_err("it was drained");
    assert_eq!(refused.reason, Reason::Drained);
    assert!(ledger.unlock(&bucket).await.expect("local"));
    let _probe = soon(&ledger).await;
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_was_never_used_counts_for_nothing() {
    let ledger = ledger();
    soon(&ledger).await.complete(&left(1, 60_000));
    soon(&ledger).await.cancel();
    let _still_there = soon(&ledger).await;
}
