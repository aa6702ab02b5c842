//! Several processes on one bucket: order, wake-ups, windows, cancelled waiters.

use std::collections::BTreeSet;
use std::time::Duration;

use tollway_testkit::servers::{Engine, Server};
use tollway_upstream::budget::{Claim, Ledger as _, Reason};
use tollway_upstream::shared::RedisLedger;

use super::stage::{
    PATIENCE, ROUTE, Stage, World, claim, route, settings, standing, take_all, told, try_claim,
    until,
};

const LONG: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn three_clients_with_twelve_requests_need_four_windows_of_three() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(Duration::from_secs(10))).await;
        let ledgers = [stage.ledger.clone(), stage.process().await, stage.process().await];
        let world = World::new(r#"limit = 3, per = "2s""#);
        let (seen, mut windows) = tokio::sync::mpsc::unbounded_channel();
        for ledger in ledgers.iter().cycle().take(12) {
            let (ledger, world, seen) = (ledger.clone(), world.clone(), seen.clone());
            tokio::spawn(async move {
                let observation = world.call(&ledger).await;
                let reset = observation.readings[0].resets_at.unwrap();
                let _ = seen.send((observation.status, reset.as_millis() / 20));
            });
        }
        let mut resets = BTreeSet::new();
        for _ in 0..12 {
            let next = tokio::time::timeout(PATIENCE, windows.recv()).await;
            let (status, reset) = next.expect("the line moves").unwrap();
            assert_eq!(status, 200, "{engine:?}: no 429");
            resets.insert(reset);
        }
        assert_eq!(resets.len(), 4, "{engine:?}: every window is used up: {resets:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_let_go_in_the_last_window_that_counts_in_this_one_gives_no_place_back() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        claim(&stage.ledger).await.complete(&told(5, 4, 300, 1_000));
        let slow = claim(&stage.ledger).await;
        // The window ends while it is on its way.
        stage.until("the window is over", |left, _| left.is_none()).await;
        let next = claim(&stage.ledger).await;
        assert_eq!(stage.remaining().await, Some(3), "{engine:?}: a place is kept for it");
        next.complete(&told(5, 3, 600_000, 700_000));
        stage.until("the end is known", |_, ttl| ttl > 0).await;
        slow.complete(&told(5, 3, 600_000, 700_000));
        until("it is answered", async || standing(&stage.ledger).await.1 == 0).await;
        assert_eq!(stage.remaining().await, Some(3), "{engine:?}: the upstream has counted both");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_waiters_are_woken_as_there_are_slots() {
    for engine in Engine::available() {
        // A server of its own: its commands are counted.
        let server = Server::start(engine, &[]);
        let stage = Stage::at(&server.url(), settings(LONG)).await;
        let other = stage.process().await;
        let probe = claim(&stage.ledger).await;
        let waiters: Vec<_> = (0..20)
            .map(|index| if index % 2 == 0 { stage.ledger.clone() } else { other.clone() })
            .map(|ledger| tokio::spawn(async move { claim(&ledger).await }))
            .collect();
        until("all stand in line", async || line(&stage).await == 20).await;
        let before = calls(&stage).await;
        probe.complete(&told(6, 5, 600_000, 1_000));
        until("five have gone", async || line(&stage).await == 15).await;
        assert_eq!(stage.remaining().await, Some(0), "{engine:?}");
        // One for the answer, and one claim for each of the two processes; another if its two
        // messages came apart.
        let calls = calls(&stage).await - before;
        assert!(calls <= 8, "{engine:?}: {calls} scripts ran for five waiters");
        waiters.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_gives_up_leaves_the_line_to_the_others() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        let other = stage.process().await;
        let probe = claim(&stage.ledger).await;
        let first = waiter(&stage.ledger);
        until("it stands in line", async || line(&stage).await == 1).await;
        let second = waiter(&other);
        until("both stand in line", async || line(&stage).await == 2).await;
        first.abort();
        until("the first is gone", async || line(&stage).await == 1).await;
        probe.complete(&told(2, 1, 600_000, 1_000));
        second.await.unwrap();
        assert!(try_claim(&stage.ledger).await.is_err(), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_was_never_sent_gives_its_place_back() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        claim(&stage.ledger).await.complete(&told(5, 4, 600_000, 1_000));
        stage.until("the limit is learned", |left, _| left == Some(4)).await;
        let permits = take_all(&stage.ledger, 20).await;
        assert_eq!(permits.len(), 4);
        permits.into_iter().for_each(tollway_upstream::budget::Permit::cancel);
        stage.until("all are back", |left, ttl| left == Some(4) && ttl > 0).await;
        // One that was sent is not.
        drop(claim(&stage.ledger).await);
        until("it is over", async || standing(&stage.ledger).await.1 == 0).await;
        assert_eq!(stage.remaining().await, Some(3), "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_loses_no_wake_up() {
    for engine in Engine::available() {
        // A server of its own: others' connections are not to be cut.
        let server = Server::start(engine, &[]);
        let stage = Stage::at(&server.url(), settings(LONG)).await;
        let other = stage.process().await;
        let probe = claim(&stage.ledger).await;
        let waiting = waiter(&other);
        until("it stands in line", async || line(&stage).await == 1).await;
        // Every connection is cut, the one that carries the messages among them. Whether the
        // answer is learned before or after the others are back, nobody may be left behind.
        let _: i64 = stage.tell("CLIENT KILL TYPE normal SKIPME yes").await;
        let _: i64 = stage.tell("CLIENT KILL TYPE pubsub SKIPME yes").await;
        until("this process is back", async || stage.ledger.is_connected()).await;
        probe.complete(&told(5, 4, 600_000, 1_000));
        let permit = tokio::time::timeout(PATIENCE, waiting).await;
        permit.expect("it is woken").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_wait_is_refused_at_once_and_told_how_long() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        claim(&stage.ledger).await.complete(&told(1, 0, 600_000, 1_000));
        stage.until("the limit is learned", |_, ttl| ttl > 0).await;
        let asked = Claim::new(route()).patience(Duration::from_secs(30));
        let refusal = stage.ledger.claim(asked).await.unwrap_err();
        assert_eq!(refusal.reason, Reason::Patience, "{engine:?}");
        let wait = refusal.wait.unwrap();
        assert!(wait > Duration::from_secs(500) && wait < Duration::from_secs(601), "{wait:?}");
        until("nobody is left in line", async || line(&stage).await == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_request_keeps_its_lease() {
    for engine in Engine::available() {
        let lease = Duration::from_millis(300);
        let stage = Stage::new(engine, settings(lease)).await;
        let other = stage.process().await;
        let slow = claim(&stage.ledger).await;
        // Four leases by the server's clock.
        let _: () = stage.tell(&format!("SET $clock 1 PX {}", 4 * lease.as_millis())).await;
        let mut probes = 0;
        while stage.tell::<i64>("EXISTS $clock").await == 1 {
            probes += usize::from(try_claim(&other).await.is_ok());
        }
        assert_eq!(probes, 0, "{engine:?}: it is alive, nobody goes in its stead");
        slow.complete(&told(5, 4, 600_000, 1_000));
        stage.until("it counts", |left, ttl| left == Some(4) && ttl > 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_can_be_seen_and_unlocked() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        claim(&stage.ledger).await.complete(&told(5, 0, 600_000, 1_000));
        stage.until("the limit is learned", |_, ttl| ttl > 0).await;
        let page = stage.ledger.buckets(0, 10).await.unwrap();
        let [bucket] = &page.buckets[..] else { panic!("one bucket: {page:?}") };
        assert_eq!(bucket.id, ROUTE);
        assert_eq!((bucket.dimensions[0].limit, bucket.dimensions[0].remaining), (5, 0));
        assert!(try_claim(&stage.ledger).await.is_err());
        // Whoever was refused leaves the line in the background, and until then others are behind
        // it.
        until("nobody is left in line", async || line(&stage).await == 0).await;
        assert!(stage.ledger.unlock(ROUTE).await.unwrap(), "{engine:?}");
        assert!(try_claim(&stage.ledger).await.is_ok(), "{engine:?}: its next request is a probe");
        assert!(!stage.ledger.unlock("nothing").await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_line_is_refused() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LONG)).await;
        let _probe = claim(&stage.ledger).await;
        let ledger = stage.ledger.clone();
        let waiting = tokio::spawn(async move { ledger.claim(Claim::new(route())).await });
        until("it stands in line", async || line(&stage).await == 1).await;
        assert_eq!(stage.ledger.drain(ROUTE).await.unwrap(), 1);
        assert_eq!(waiting.await.unwrap().unwrap_err().reason, Reason::Drained);
        until("the store knows", async || line(&stage).await == 0).await;
    }
}

fn waiter(ledger: &RedisLedger) -> tokio::task::JoinHandle<()> {
    let ledger = ledger.clone();
    tokio::spawn(async move { drop(claim(&ledger).await) })
}

async fn line(stage: &Stage) -> usize {
    standing(&stage.ledger).await.0
}

/// Scripts that the server ran so far, for all tests that share it.
async fn calls(stage: &Stage) -> i64 {
    let info: String = stage.tell("INFO commandstats").await;
    let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    let count = line.and_then(|line| line.split(['=', ',']).nth(1));
    count.map_or(0, |count| count.parse().unwrap())
}
