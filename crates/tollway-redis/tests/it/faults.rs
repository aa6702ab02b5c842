//! Faults with load running: no panic, no hang, the policy's outcome, the bound.
//!
//! Every run prints what it counted: `cargo test faults -- --nocapture` shows it.

use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollway_core::{ErrorKind, OnStoreError, Policy, Store, Timestamp};
use tollway_redis::{RedisStore, Settings};

use crate::caller::{check, connect, settings};
use tollway_testkit::servers::{Engine, LossyWay, Server};

const BUDGET: Duration = Duration::from_millis(200);
/// A busy machine may let a task wait; a hang takes longer.
const HANG: Duration = Duration::from_secs(5);
const LIMIT: u64 = 200;

/// What callers were told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) degraded_allowed: u64,
    pub(crate) degraded_denied: u64,
    pub(crate) slowest: Duration,
}

impl Tally {
    fn add(&mut self, more: Self) {
        self.allowed += more.allowed;
        self.denied += more.denied;
        self.degraded_allowed += more.degraded_allowed;
        self.degraded_denied += more.degraded_denied;
        self.slowest = self.slowest.max(more.slowest);
    }
}

/// Callers that ask without a pause until they are stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    callers: Vec<tokio::task::JoinHandle<Tally>>,
}

impl Load {
    pub(crate) fn start(store: &RedisStore, policy: &Policy, callers: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let callers = (0..callers)
            .map(|_| {
                let (store, policy) = (store.clone(), policy.clone());
                let stop = Arc::clone(&stop);
                tokio::spawn(async move {
                    let mut tally = Tally::default();
                    while !stop.load(Ordering::Relaxed) {
                        let asked = Instant::now();
                        let verdict = check(&store, &policy, "hot").await.unwrap();
                        tally.slowest = tally.slowest.max(asked.elapsed());
                        match (verdict.is_allowed(), verdict.is_degraded()) {
                            (true, false) => tally.allowed += 1,
                            (false, false) => tally.denied += 1,
                            (true, true) => tally.degraded_allowed += 1,
                            (false, true) => tally.degraded_denied += 1,
                        }
                        tokio::task::yield_now().await;
                    }
                    tally
                })
            })
            .collect();
        Self { stop, callers }
    }

    pub(crate) async fn stop(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        let mut tally = Tally::default();
        for caller in self.callers {
            tally.add(caller.await.unwrap());
        }
        assert!(tally.slowest < HANG, "no call hangs: {tally:?}");
        tally
    }
}

pub(crate) fn hasty() -> Settings {
    Settings {
        timeout: BUDGET,
        connect_timeout: Duration::from_millis(500),
        backoff_max: Duration::from_millis(200),
        ..settings()
    }
}

fn policy(on_store_error: OnStoreError) -> Policy {
    let policy = Policy::parse("fault", &format!("{LIMIT}/30d")).unwrap();
    policy.on_store_error(on_store_error)
}

/// Waits until the store answers as asked, or fails.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < Duration::from_secs(30), "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_degraded(store: &RedisStore, policy: &Policy) {
    until("a degraded answer", async || check(store, policy, "probe").await.unwrap().is_degraded())
        .await;
}

/// Waits until the store was sent so many more requests.
pub(crate) async fn until_asked(store: &RedisStore, more: u64) {
    let before = store.status().requests;
    until("more load", async || store.status().requests > before + more).await;
}

async fn until_recovered(store: &RedisStore, policy: &Policy) {
    until("recovery", async || !check(store, policy, "probe").await.unwrap().is_degraded()).await;
}

/// Kills a primary under load, and waits until another has taken over.
pub(crate) async fn fail_over(engine: Engine, what: &str, store: &RedisStore, kill: impl FnOnce()) {
    let policy = policy(OnStoreError::Deny);
    let load = Load::start(store, &policy, 8);
    until("load", async || store.status().requests > 100).await;
    kill();
    let is_degraded = async || check(store, &policy, "hot").await.unwrap().is_degraded();
    until("degraded answers", is_degraded).await;
    until("failover", async || !is_degraded().await).await;
    let tally = load.stop().await;
    told(engine, &format!("{what} failover"), tally, 2 * LIMIT);
    assert_eq!(tally.degraded_allowed, 0, "{tally:?}");
}

/// Prints and bounds what the store admitted beyond the limit. What was allowed without it is the
/// policy's, and bounded by the test.
fn told(engine: Engine, fault: &str, tally: Tally, bound: u64) {
    let over = tally.allowed.saturating_sub(LIMIT);
    let over_max = bound.saturating_sub(LIMIT);
    println!("{engine:?}, {fault}: {over} over the limit, at most {over_max}; {tally:?}");
    assert!(tally.allowed <= bound, "{engine:?}, {fault}: {tally:?} exceeds {bound}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_dies_and_comes_back_empty_admits_its_limit_once_more() {
    for engine in Engine::available() {
        let mut server = Server::start(engine, &[]);
        let store = connect(&server.url(), &hasty()).await;
        let policy = policy(OnStoreError::Deny);
        let load = Load::start(&store, &policy, 8);
        until("load", async || store.status().requests > 300).await;
        server.kill();
        until_degraded(&store, &policy).await;
        server.restart();
        until_recovered(&store, &policy).await;
        until_asked(&store, 300).await;
        let tally = load.stop().await;
        told(engine, "kill -9, restart empty", tally, 2 * LIMIT);
        assert!(tally.allowed > LIMIT, "an empty store has forgotten: {tally:?}");
        assert_eq!(tally.degraded_allowed, 0, "deny means deny");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_store_costs_microseconds_not_timeouts() {
    let server = Server::start(Engine::Redis, &[]);
    let store = connect(&server.url(), &hasty()).await;
    let policy = policy(OnStoreError::Deny);
    server.kill();
    until_degraded(&store, &policy).await;
    let mut fastest = Duration::MAX;
    for _ in 0..1_000 {
        let asked = Instant::now();
        assert!(check(&store, &policy, "hot").await.unwrap().is_degraded());
        fastest = fastest.min(asked.elapsed());
    }
    assert!(fastest < BUDGET / 10, "no call waits for a store known to be dead: {fastest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn forgotten_scripts_are_sent_again_unnoticed() {
    for engine in Engine::available() {
        let server = Server::start(engine, &[]);
        let store = connect(&server.url(), &settings()).await;
        let load = Load::start(&store, &policy(OnStoreError::Deny), 8);
        for round in 1..20 {
            until("load", async || store.status().requests > round * 50).await;
            server.tell(&["SCRIPT", "FLUSH"]);
        }
        let tally = load.stop().await;
        told(engine, "SCRIPT FLUSH", tally, LIMIT);
        assert_eq!((tally.allowed, tally.degraded_denied), (LIMIT, 0), "{tally:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_connection_is_an_unknown_outcome_and_never_a_second_charge() {
    for engine in Engine::available() {
        let server = Server::start(engine, &[]);
        let store = connect(&server.url(), &hasty()).await;
        let load = Load::start(&store, &policy(OnStoreError::Deny), 8);
        for round in 1..10 {
            until("load", async || store.status().requests > round * 50).await;
            server.tell(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
        until_asked(&store, 600).await;
        let tally = load.stop().await;
        told(engine, "CLIENT KILL", tally, LIMIT);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_asked_again_is_charged_once() {
    for engine in Engine::available() {
        let server = Server::start(engine, &[]);
        let again = Settings { ask_again: true, timeout: Duration::from_secs(20), ..hasty() };
        let store = connect(&server.url(), &again).await;
        let load = Load::start(&store, &policy(OnStoreError::Deny), 8);
        for round in 1..10 {
            until("load", async || store.status().requests > round * 20).await;
            server.tell(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
        until_asked(&store, 600).await;
        let tally = load.stop().await;
        told(engine, "CLIENT KILL with request names", tally, LIMIT);
        assert_eq!(tally.allowed, LIMIT, "every charge is known: {tally:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_lost_on_the_way_is_found_again_under_the_requests_name() {
    for engine in Engine::available() {
        let server = Server::start(engine, &[]);
        let way = LossyWay::to(&server);
        let url = format!("redis://127.0.0.1:{}", way.port);
        let policy = policy(OnStoreError::Deny);
        for (ask_again, degrades) in [(true, false), (false, true)] {
            let settings = Settings { ask_again, ..settings() };
            let store = connect(&url, &settings).await;
            assert!(check(&store, &policy, "k").await.unwrap().is_allowed());
            way.lose_next();
            let verdict = check(&store, &policy, "k").await.unwrap();
            assert_eq!(verdict.is_degraded(), degrades, "{engine:?}, asks again: {ask_again}");
            assert_eq!(verdict.is_allowed(), ask_again);
            until_recovered(&store, &policy).await;
            let charges = [crate::caller::charge(&policy, "k")];
            let peek = tollway_core::Store::peek(&store, &charges, Timestamp::MIN).await.unwrap();
            let left = peek.decisions()[0].snapshot().remaining();
            assert_eq!(left, LIMIT - 2, "{engine:?}: charged once each, known or not");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_store_is_noticed_within_the_budget_and_used_again_afterwards() {
    for engine in Engine::available() {
        let server = Server::start(engine, &[]);
        let store = connect(&server.url(), &hasty()).await;
        let policy = policy(OnStoreError::Local { shares: 4 });
        let load = Load::start(&store, &policy, 8);
        until("load", async || store.status().requests > 50).await;
        server.pause();
        until_degraded(&store, &policy).await;
        until("local answers", async || store.status().failures > 500).await;
        server.resume();
        until_recovered(&store, &policy).await;
        let tally = load.stop().await;
        told(engine, "SIGSTOP", tally, LIMIT);
        let share = LIMIT / 4;
        assert!(tally.degraded_allowed <= share, "this process's share is {share}: {tally:?}");
        assert!(tally.degraded_allowed > 0, "{tally:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn latency_of_seconds_is_answered_by_the_policy_within_the_budget() {
    for engine in Engine::available() {
        let server = Server::start(engine, &[]);
        let store = connect(&server.url(), &hasty()).await;
        let at_most = Duration::from_millis(700);
        let policy = policy(OnStoreError::Allow { at_most });
        let load = Load::start(&store, &policy, 4);
        until("load", async || store.status().requests > 50).await;
        server.tell(&["CLIENT", "PAUSE", "3000", "ALL"]);
        until_degraded(&store, &policy).await;
        until("the end of allowing", async || {
            let verdict = check(&store, &policy, "probe").await.unwrap();
            verdict.is_degraded() && !verdict.is_allowed()
        })
        .await;
        until_recovered(&store, &policy).await;
        let tally = load.stop().await;
        told(engine, "latency of 3 s", tally, LIMIT);
        assert!(
            tally.degraded_allowed > 0 && tally.degraded_denied > 0,
            "first allowed, then denied"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_by_the_store_ends_an_outage_as_any_decision_does() {
    for engine in Engine::available() {
        let server = Server::start(engine, &[]);
        let hasty = hasty();
        let patient = Settings { timeout: Duration::from_secs(20), ..hasty.clone() };
        let policy = Policy::parse("spent", "1/30d").unwrap();
        let first = connect(&server.url(), &patient).await;
        assert!(check(&first, &policy, "hot").await.unwrap().is_allowed());
        let store = connect(&server.url(), &hasty).await;
        let is_degraded = async || {
            let verdict = check(&store, &policy, "hot").await.unwrap();
            assert!(!verdict.is_allowed());
            verdict.is_degraded()
        };
        server.pause();
        until("a degraded answer", is_degraded).await;
        assert!(store.outage().is_some());
        server.resume();
        until("recovery", async || !is_degraded().await).await;
        assert_eq!(store.outage(), None, "{engine:?}: failures of before do not count after it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_is_noticed_by_those_who_do_not_ask() {
    for engine in Engine::available() {
        let server = Server::start(engine, &[]);
        let store = connect(&server.url(), &hasty()).await;
        until("it answers", async || store.outage().is_none()).await;
        server.pause();
        until("the pause is noticed", async || store.outage().is_some()).await;
        server.resume();
        until("it answers", async || store.status().servers_up == 1).await;
        server.kill();
        until("the end is noticed", async || store.status().servers_up == 0).await;
        let outage = store.outage().unwrap();
        assert!(!outage.reason.is_empty(), "{engine:?}: {outage:?}");
    }
}

/// What waits for the answers to others would be answered when nobody waits any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_sent_although_as_many_as_allowed_are_under_way() {
    let server = Server::start(Engine::Redis, &[]);
    let way = LossyWay::to(&server);
    let settings = Settings { in_flight_max: 1, ..settings() };
    let store = connect(&format!("redis://127.0.0.1:{}", way.port), &settings).await;
    let policy = policy(OnStoreError::Deny);
    assert!(check(&store, &policy, "k").await.unwrap().is_allowed());
    let before = store.status().round_trips;
    way.hold(true);
    let call = |number: u64| {
        let (store, policy) = (store.clone(), policy.clone());
        (number, tokio::spawn(async move { check(&store, &policy, "k").await.unwrap() }))
    };
    // The first is under way before the others ask: together they would share one round trip.
    let mut callers = vec![call(1)];
    until("a round trip", async || store.status().round_trips > before).await;
    callers.extend([call(2), call(3)]);
    until("two round trips at once", async || store.status().round_trips >= before + 2).await;
    way.hold(false);
    for (number, caller) in callers {
        let verdict = caller.await.unwrap();
        assert!(verdict.is_allowed() && !verdict.is_degraded(), "caller {number}");
    }
}

/// No Redis does so; what is asked must be bounded all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_always_answers_nil_is_not_asked_for_ever() {
    let asked = Arc::new(AtomicU64::new(0));
    let port = answer_nil(Arc::clone(&asked));
    let store = connect(&format!("redis://127.0.0.1:{port}"), &settings()).await;
    let verdict = check(&store, &policy(OnStoreError::Deny), "k").await.unwrap();
    assert!(verdict.is_degraded() && !verdict.is_allowed());
    assert_eq!(verdict.store_failure(), Some(ErrorKind::Refused));
    // Three for the request, and one that notes the numbers of its policy.
    assert!(asked.load(Ordering::Relaxed) <= 4, "{asked:?} scripts for one request");
}

/// A server that greets as a primary does and answers nil to every script, which it counts.
fn answer_nil(asked: Arc<AtomicU64>) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let asked = Arc::clone(&asked);
            std::thread::spawn(move || {
                let mut reader = BufReader::new(&stream);
                while let Some(words) = number(&mut reader) {
                    let command: Vec<_> = (0..words).map_while(|_| word(&mut reader)).collect();
                    let answer: &[u8] = match command.first().map(|name| &name[..]) {
                        Some(b"ROLE") => b"*1\r\n$6\r\nmaster\r\n",
                        Some(b"EVALSHA" | b"EVAL") => {
                            asked.fetch_add(1, Ordering::Relaxed);
                            b"$-1\r\n"
                        }
                        _ => b"+OK\r\n",
                    };
                    if (&stream).write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// The number in a line such as `*3` or `$5`.
fn number(reader: &mut impl BufRead) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.get(1..)?.trim_end().parse().ok()
}

fn word(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut word = vec![0; number(reader)? + 2];
    reader.read_exact(&mut word).ok()?;
    word.truncate(word.len() - 2);
    Some(word)
}

#[tokio::test(flavor = "multi_thread")]
async fn allowing_is_followed_by_this_processs_share_where_the_policy_says_so() {
    for engine in Engine::available() {
        let mut server = Server::start(engine, &[]);
        let store = connect(&server.url(), &hasty()).await;
        let at_most = Duration::from_millis(300);
        let policy = policy(OnStoreError::AllowThenLocal { at_most, shares: 4 });
        assert!(check(&store, &policy, "hot").await.unwrap().is_allowed());
        server.kill();
        let down_at = Instant::now();
        let mut allowed = 0;
        let denial = loop {
            assert!(down_at.elapsed() < Duration::from_secs(30), "the share does not end");
            let verdict = check(&store, &policy, "hot").await.unwrap();
            if !verdict.is_allowed() {
                break verdict;
            }
            allowed += 1;
            tokio::task::yield_now().await;
        };
        let share = LIMIT / 4;
        assert!(down_at.elapsed() >= at_most && allowed > share, "{engine:?}: first without limit");
        assert_eq!(
            denial.decisions()[0].snapshot().limit(),
            share,
            "{engine:?}: then by the share"
        );
        assert!(denial.is_degraded());
        println!("{engine:?}, kill -9, then this process's share: {allowed} without the store");
        server.restart();
        until_recovered(&store, &policy).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_is_answered_by_the_policy_and_changes_nothing() {
    for engine in Engine::available() {
        let server = Server::start(engine, &["--maxmemory-policy", "noeviction"]);
        let store = connect(&server.url(), &hasty()).await;
        let policy = policy(OnStoreError::Deny);
        assert!(check(&store, &policy, "hot").await.unwrap().is_allowed());
        server.tell(&["CONFIG", "SET", "maxmemory", "1"]);
        let load = Load::start(&store, &policy, 4);
        until("failures", async || store.status().failures > 100).await;
        server.tell(&["CONFIG", "SET", "maxmemory", "0"]);
        until_recovered(&store, &policy).await;
        until_asked(&store, 600).await;
        let tally = load.stop().await;
        told(engine, "maxmemory, noeviction", tally, LIMIT - 1);
        assert_eq!(tally.allowed, LIMIT - 1, "nothing was lost: {tally:?}");
        assert!(tally.degraded_denied >= 100 && tally.degraded_allowed == 0, "{tally:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_becomes_a_replica_is_answered_by_the_policy() {
    for engine in Engine::available() {
        let (primary, server) = (Server::start(engine, &[]), Server::start(engine, &[]));
        let store = connect(&server.url(), &hasty()).await;
        let policy = policy(OnStoreError::Deny);
        let load = Load::start(&store, &policy, 4);
        until("load", async || store.status().requests > 50).await;
        server.tell(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
        until_degraded(&store, &policy).await;
        let required = Settings { start_without: false, ..hasty() };
        let replica = RedisStore::connect(&server.url(), required).await.unwrap_err();
        assert_eq!(replica.kind(), ErrorKind::Unavailable, "it may be promoted: {replica}");
        assert!(replica.to_string().contains("read-only replica"), "{replica}");
        server.tell(&["REPLICAOF", "NO", "ONE"]);
        until_recovered(&store, &policy).await;
        let tally = load.stop().await;
        // A replica takes its primary's data, which was empty.
        told(engine, "read-only replica", tally, 2 * LIMIT);
        assert_eq!(tally.degraded_allowed, 0, "{tally:?}");
    }
}
