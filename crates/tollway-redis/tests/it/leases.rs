//! Units taken in batches and spent in process, also by processes that are killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use tollway_core::{Policy, Store, Timestamp};
use tollway_redis::{LeaseTerms, PolicySettings, Settings};

use crate::caller::{charge, check, connect, settings};
use crate::faults::until;
use tollway_testkit::servers::{Engine, eventually};

const UNITS_MAX: u64 = 32;

fn leased(time: Duration) -> Settings {
    let lease = Some(LeaseTerms { units_max: UNITS_MAX, time });
    let policy = PolicySettings { lease, ..PolicySettings::default() };
    Settings { policies: [("hot".to_owned(), policy)].into(), ..settings() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hot_key_is_asked_for_in_batches_and_never_beyond_its_quota() {
    for engine in Engine::available() {
        let store = connect(&engine.shared().url(), &leased(Duration::from_secs(60))).await;
        let policy = Policy::parse("hot", "1000/30d").unwrap();
        let mut allowed = 0;
        for _ in 0..1_100 {
            allowed += u64::from(check(&store, &policy, "k").await.unwrap().is_allowed());
        }
        assert_eq!(allowed, 1_000, "{engine:?}");
        let commands = store.status().commands;
        // One, two, four … thirty-two, then thirty-two each time, and a hundred denials.
        assert!(commands < 1_000 / UNITS_MAX + 120, "{commands} commands");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_units_go_back_when_the_lease_ends() {
    for engine in Engine::available() {
        let settings = leased(Duration::from_millis(200));
        let store = connect(&engine.shared().url(), &settings).await;
        let policy = Policy::parse("hot", "1000/30d").unwrap();
        for _ in 0..40 {
            assert!(check(&store, &policy, "k").await.unwrap().is_allowed());
        }
        let unleased = Settings { policies: [].into(), ..settings };
        let plain = connect(&engine.shared().url(), &unleased).await;
        let runtime = tokio::runtime::Handle::current();
        let left = move || {
            let charge = charge(&policy, "k");
            let verdict = runtime.block_on(async { plain.peek(&[charge], Timestamp::MIN).await });
            verdict.unwrap().decisions()[0].snapshot().remaining()
        };
        let wait = move || eventually(Duration::from_secs(20), || left() == 960);
        tokio::task::spawn_blocking(wait).await.unwrap();
        drop(store);
    }
}

/// Two nodes with leases, one of which has the new numbers already; then one node that uses both.
#[tokio::test(flavor = "multi_thread")]
async fn leases_under_old_and_new_numbers_spend_no_more_than_one_limit() {
    for engine in Engine::available() {
        for limits in [(100, 60), (60, 100)] {
            for is_one_node in [false, true] {
                let settings = leased(Duration::from_secs(600));
                let url = engine.shared().url();
                let before = connect(&url, &settings).await;
                let mut after = connect(&url, &settings).await;
                if is_one_node {
                    after = before.clone();
                }
                let policy = |limit| Policy::parse("hot", &format!("{limit}/365d")).unwrap();
                let (old, new) = (policy(limits.0), policy(limits.1));
                let mut granted = 0;
                for round in 0..300 {
                    let nodes = [(&before, &old), (&after, &new)];
                    for (store, policy) in nodes.into_iter().take(1 + round.min(1)) {
                        let verdict = check(store, policy, "k").await.unwrap();
                        granted += u64::from(verdict.is_allowed());
                    }
                }
                assert!((60..=100).contains(&granted), "{engine:?}: {granted} of {limits:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn over_admission_is_at_most_the_units_in_hand() {
    for engine in Engine::available() {
        let settings = leased(Duration::from_secs(600));
        let url = engine.shared().url();
        let holder = connect(&url, &settings).await;
        let policy = Policy::parse("hot", "100/1s burst 50").unwrap();
        // Asked quickly, the batch grows until the holder has units in hand.
        while holder.status().commands < 6 {
            let _ = check(&holder, &policy, "k").await.unwrap();
        }
        let plain = connect(&url, &Settings { policies: [].into(), ..settings.clone() }).await;
        // The worst moment: the bucket is full again, and the units are still in hand.
        until("a full bucket", async || {
            let peek = plain.peek(&[charge(&policy, "k")], Timestamp::MIN).await.unwrap();
            peek.decisions()[0].snapshot().remaining() == 50
        })
        .await;
        let start = std::time::Instant::now();
        let mut admitted = 0;
        for store in [&plain, &holder] {
            while check(store, &policy, "k").await.unwrap().is_allowed() {
                admitted += 1;
                assert!(start.elapsed() < Duration::from_secs(20), "it never denies");
            }
        }
        let refilled = 100.0 * start.elapsed().as_secs_f64();
        let bound = 50.0 + refilled + UNITS_MAX as f64;
        assert!(f64::from(admitted) <= bound, "{engine:?}: {admitted} admitted, bound {bound}");
        assert!(admitted >= 50, "the whole bucket at least");
    }
}

/// What a killed process did, told line by line on its standard output.
fn run_and_kill(url: &str, prefix: &str, after: usize) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "leases::in_a_process_of_its_own", "--ignored", "--nocapture"])
        .env("TOLLWAY_LEASE_URL", url)
        .env("TOLLWAY_LEASE_PREFIX", prefix)
        .stdout(Stdio::piped())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut input = child.stdin.take().unwrap();
    let mut admitted = 0;
    for line in lines.filter(|line| line.contains("admitted")) {
        drop(line);
        admitted += 1;
        if admitted == after {
            break;
        }
        let _ = input.write_all(b"\n");
    }
    // It waits for our word now, with the rest of its batch in hand.
    child.kill().unwrap();
    child.wait().unwrap();
    admitted as u64
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_killed_at_the_worst_moment_lose_at_most_their_units_in_hand() {
    const KILLED: u64 = 3;
    for engine in Engine::available() {
        let settings = leased(Duration::from_secs(600));
        let url = engine.shared().url();
        let mut admitted = 0;
        for _ in 0..KILLED {
            // 1 + 2 + 4 + 8 + 16 are spent one by one: the next is the first of thirty-two.
            let (url, prefix) = (url.clone(), settings.prefix.clone());
            let run = tokio::task::spawn_blocking(move || run_and_kill(&url, &prefix, 32));
            admitted += run.await.unwrap();
        }
        let plain = connect(&url, &Settings { policies: [].into(), ..settings }).await;
        let policy = Policy::parse("hot", "500/30d").unwrap();
        while check(&plain, &policy, "k").await.unwrap().is_allowed() {
            admitted += 1;
        }
        assert!(admitted <= 500, "{engine:?}: never more than the quota, got {admitted}");
        let lost = 500 - admitted;
        assert!(
            lost <= KILLED * UNITS_MAX,
            "{engine:?}: {lost} lost, bound {}",
            KILLED * UNITS_MAX
        );
        assert!(lost > 0, "they were killed with units in hand");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test above, in a process that is killed"]
async fn in_a_process_of_its_own() {
    let Ok(url) = std::env::var("TOLLWAY_LEASE_URL") else { return };
    let prefix = std::env::var("TOLLWAY_LEASE_PREFIX").unwrap();
    let settings = Settings { prefix, ..leased(Duration::from_secs(600)) };
    let store = connect(&url, &settings).await;
    let policy = Policy::parse("hot", "500/30d").unwrap();
    let mut line = String::new();
    while check(&store, &policy, "k").await.unwrap().is_allowed() {
        println!("admitted");
        std::io::stdout().flush().unwrap();
        if std::io::stdin().read_line(&mut line).unwrap() == 0 {
            return;
        }
    }
}
