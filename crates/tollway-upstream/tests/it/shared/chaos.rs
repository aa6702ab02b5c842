//! Crashes, restarts, renames, late answers: no stall beyond one lease, one 429 per cause.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tollway_sim::fake_api::Fault;
use tollway_testkit::servers::{Engine, Server};
use tollway_upstream::shared::{Naming, RedisLedger, Settings};

use super::stage::{
    PATIENCE, Stage, World, claim, join, settings, standing, take_all, told, try_claim, until,
};

const LEASE: Duration = Duration::from_millis(600);

/// A process of its own, killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_killed_in_mid_burst_stalls_the_others_for_one_lease_at_most() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(LEASE)).await;
        let other = stage.process().await;
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shared::chaos::in_a_process_of_its_own", "--ignored", "--nocapture"])
            .env("TOLLWAY_CHILD_URL", &stage.url)
            .env("TOLLWAY_CHILD_PREFIX", &stage.name)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Process(child);
        let out = child.0.stdout.take().unwrap();
        let holds = tokio::task::spawn_blocking(move || {
            let mut lines = BufReader::new(out).lines().map_while(Result::ok);
            lines.any(|line| line.contains("holds"))
        });
        assert!(holds.await.unwrap(), "the child has the only permit, and tickets in the line");
        // Ours stand behind its tickets.
        let waiting: Vec<_> = [&stage.ledger, &other, &stage.ledger]
            .map(Clone::clone)
            .into_iter()
            .map(|ledger| {
                tokio::spawn(async move {
                    claim(&ledger).await.complete(&told(100, 90, 600_000, 1_000));
                })
            })
            .collect();
        until("all stand in line", async || standing(&stage.ledger).await.0 == 5).await;
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        for waiter in waiting {
            let done = tokio::time::timeout(PATIENCE, waiter).await;
            done.expect("nobody is stuck behind the dead").unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test above, in a process that is killed"]
async fn in_a_process_of_its_own() {
    let Ok(url) = std::env::var("TOLLWAY_CHILD_URL") else { return };
    let name = std::env::var("TOLLWAY_CHILD_PREFIX").unwrap();
    let ledger = join(&url, &name, &settings(LEASE)).await;
    let _permit = claim(&ledger).await;
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let ledger = ledger.clone();
            tokio::spawn(async move { claim(&ledger).await })
        })
        .collect();
    until("both stand in line", async || standing(&ledger).await.0 == 2).await;
    println!("holds");
    for waiter in waiters {
        let _ = waiter.await;
    }
}

/// There may be thousands of credentials: those that do nothing must not keep the store busy.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_requests_are_done_says_seldom_that_it_is_alive_and_often_again_later() {
    for engine in Engine::available() {
        let stage = Stage::of_five(engine, LEASE).await;
        let believed_ms = async || {
            let scores: Vec<(String, i64)> =
                stage.tell("ZRANGE $tollway:processes 0 -1 WITHSCORES").await;
            let (seconds, micros): (i64, i64) = stage.tell("TIME").await;
            let until = scores.into_iter().map(|(_, score)| score).max().unwrap_or_default();
            until - (seconds * 1_000 + micros / 1_000)
        };
        until("it rests", async || believed_ms().await > 10_000).await;
        let _permit = claim(&stage.ledger).await;
        until("it would soon be missed", async || believed_ms().await <= 600).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_store_is_gone_each_process_keeps_to_its_part() {
    for engine in Engine::available() {
        let server = Server::start(engine, &[]);
        let settings =
            Settings { processes_min: 4, timeout: Duration::from_millis(300), ..settings(LEASE) };
        let stage = Stage::at(&server.url(), settings).await;
        assert_eq!(stage.ledger.processes(), 4);
        server.kill();
        until("the loss is noticed", async || !stage.ledger.is_connected()).await;
        // The first is a probe; then a quarter of the limit, less what the probe has taken.
        claim(&stage.ledger).await.complete(&told(20, 19, 600_000, 1_000));
        let taken = take_all(&stage.ledger, 50).await.len();
        assert!((1..=5).contains(&taken), "{engine:?}: {taken} of 20 by one of four");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_store_is_back_it_is_told_what_was_let_go_and_everybody_waits_there_again() {
    for engine in Engine::available() {
        let mut server = Server::start(engine, &[]);
        let settings = Settings { timeout: Duration::from_millis(300), ..settings(LEASE) };
        let stage = Stage::at(&server.url(), settings).await;
        server.kill();
        until("the loss is noticed", async || !stage.ledger.is_connected()).await;
        // Alone: one is answered, two are under way, and one waits here for the end of the window.
        claim(&stage.ledger).await.complete(&told(3, 2, 600_000, 1_000));
        let under_way = take_all(&stage.ledger, 9).await;
        assert_eq!(under_way.len(), 2, "{engine:?}");
        let waiting = {
            let ledger = stage.ledger.clone();
            tokio::spawn(async move { claim(&ledger).await })
        };
        tokio::task::yield_now().await;
        server.restart();
        until("whoever waits waits in the store", async || {
            stage.ledger.is_connected() && standing(&stage.ledger).await == (1, 2)
        })
        .await;
        let other = stage.process().await;
        assert!(try_claim(&other).await.is_err(), "{engine:?}: all three are told of");
        under_way.into_iter().for_each(tollway_upstream::budget::Permit::cancel);
        let permit = tokio::time::timeout(PATIENCE, waiting).await.expect("it is woken").unwrap();
        permit.complete(&told(3, 1, 600_000, 1_000));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_store_is_used_again_and_learns_anew() {
    for engine in Engine::available() {
        let mut server = Server::start(engine, &[]);
        let settings = Settings { timeout: Duration::from_millis(300), ..settings(LEASE) };
        let stage = Stage::at(&server.url(), settings.clone()).await;
        claim(&stage.ledger).await.complete(&told(5, 4, 600_000, 1_000));
        stage.until("the limit is learned", |left, _| left == Some(4)).await;
        let under_way = take_all(&stage.ledger, 2).await;
        let waiting = {
            let _rest = take_all(&stage.ledger, 9).await;
            let ledger = stage.ledger.clone();
            tokio::spawn(async move { claim(&ledger).await })
        };
        server.kill();
        server.restart();
        until("it is connected again", async || stage.ledger.is_connected()).await;
        // Empty now: the scripts are unknown, the documents gone. The process tells what is under
        // way, whose answers teach the store anew, and nobody who waited is lost.
        for permit in under_way {
            permit.complete(&told(5, 4, 600_000, 2_000));
        }
        let permit = tokio::time::timeout(PATIENCE, waiting).await.expect("no stall").unwrap();
        permit.complete(&told(5, 4, 600_000, 2_000));
        until("claims go on", async || try_claim(&stage.ledger).await.is_ok()).await;
    }
}

/// So many calls at once, by the processes in turn: what they were answered.
async fn burst(world: &Arc<World>, processes: [&RedisLedger; 2], count: usize) -> Vec<u16> {
    let calls: Vec<_> = (0..count)
        .map(|index| {
            let (world, ledger) = (Arc::clone(world), processes[index % 2].clone());
            tokio::spawn(async move { world.call(&ledger).await.status })
        })
        .collect();
    let mut statuses = Vec::with_capacity(count);
    for call in calls {
        statuses.push(tokio::time::timeout(PATIENCE, call).await.expect("no stall").unwrap());
    }
    statuses
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_delayed_past_the_reset_bring_no_429() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(Duration::from_secs(5))).await;
        let other = stage.process().await;
        let world = World::new(r#"limit = 4, per = "150ms""#);
        world.call(&stage.ledger).await;
        // Every other answer comes after the window it is from.
        for _ in 0..3 {
            world.inject(Fault::Late { count: 3, by: Duration::from_millis(220) });
            let statuses = burst(&world, [&stage.ledger, &other], 10).await;
            assert_eq!(statuses, [200; 10], "{engine:?}");
        }
        assert_eq!(world.counters().limited_all(), 0, "{engine:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_gets_another_name_costs_one_429_at_most() {
    for engine in Engine::available() {
        let learned = Settings { naming: Naming::Learned, ..settings(Duration::from_secs(5)) };
        let stage = Stage::new(engine, learned).await;
        let other = stage.process().await;
        let world = World::new(r#"limit = 4, per = "300ms""#);
        let processes = [&stage.ledger, &other];
        burst(&world, processes, 8).await;
        assert_eq!(world.counters().limited_all(), 0, "{engine:?}: before");
        world.inject(Fault::RenameBuckets);
        burst(&world, processes, 12).await;
        let refused = world.counters().limited_all();
        assert!(refused <= 1, "{engine:?}: {refused} for one change");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_html_in_front_of_the_upstream_stops_everybody_once() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(Duration::from_secs(5))).await;
        let other = stage.process().await;
        let world = World::new(r#"limit = 50, per = "600s""#);
        world.call(&stage.ledger).await;
        stage.until("the limit is learned", |_, ttl| ttl > 0).await;
        world.inject(Fault::Html { count: 1 });
        world.call(&other).await;
        until("all are stopped", async || stage.tell::<i64>("EXISTS $global").await == 1).await;
        for ledger in [&stage.ledger, &other] {
            assert!(try_claim(ledger).await.is_err(), "{engine:?}");
        }
        world.call(&stage.ledger).await;
        assert_eq!(world.counters().html, 1, "{engine:?}: once, and all go on after it");
    }
}
