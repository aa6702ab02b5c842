//! Many callers in one process: coalesced by the store, and one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollway_core::{Charge, Key, Policy, Store, Timestamp};
use tollway_redis::{Denials, RedisStore, Settings};

use tollway_testkit::servers::Server;

use crate::contenders::cpu_us;
use crate::targets::{Bound, Target};

const CALLERS: usize = 64;
const TIME: Duration = Duration::from_secs(2);

pub(crate) fn run(server: &Server) -> Vec<Target> {
    println!(
        "\n| {CALLERS} callers in one process | requests/s | p50 µs | p99 µs | server CPU µs/request | requests per command | commands per round trip |"
    );
    println!("|---|---|---|---|---|---|---|");
    let alone = Settings { batch_max: 1, in_flight_max: 1, ..Settings::default() };
    let denied = Settings { denials: Some(Denials::default()), ..Settings::default() };
    let many = "10/1s burst 1000000000";
    let mut measured = Vec::new();
    for (name, settings, quota, keys) in [
        ("one caller, alone", Settings::default(), many, 1_000),
        ("one request at a time", Settings { queue_max: CALLERS, ..alone.clone() }, many, 1_000),
        ("coalesced, 1000 keys", Settings::default(), many, 1_000),
        ("coalesced, one hot key", Settings::default(), many, 1),
        ("denied, with the denial cache", denied, "1/10d", 1_000),
    ] {
        let prefix = format!("c{}:", name.len());
        measured.push(report(server, name, Settings { prefix, ..settings }, quota, keys));
    }
    let [alone, one_by_one, coalesced, _, denied] = &measured[..] else { return Vec::new() };
    let target = |name: &str, ratio, bound| Target { name: name.to_owned(), ratio, bound };
    vec![
        target("round trips per request", alone.trips, Bound::AtMost(1.0)),
        target("store commands per denied request", denied.commands, Bound::AtMost(0.001)),
        target("coalesced to one by one", coalesced.rate / one_by_one.rate, Bound::AtLeast(3.0)),
    ]
}

/// What a run came to: requests per second, and commands and round trips per request.
struct Measured {
    rate: f64,
    commands: f64,
    trips: f64,
}

fn report(server: &Server, name: &str, settings: Settings, quota: &str, keys: usize) -> Measured {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let policy = Arc::new(Policy::parse("api", quota).unwrap());
    let sequential = settings.batch_max == 1;
    let callers = if name.starts_with("one caller") { 1 } else { CALLERS };
    runtime.block_on(async {
        let store = RedisStore::connect(&server.url(), settings).await.unwrap();
        call(callers, &store, &policy, keys, Duration::from_millis(300), sequential).await;
        let (before, cpu) = (store.status(), cpu_us(server));
        let start = Instant::now();
        let mut latencies = call(callers, &store, &policy, keys, TIME, sequential).await;
        let elapsed = start.elapsed();
        let (after, cpu) = (store.status(), cpu_us(server) - cpu);
        latencies.sort_unstable();
        let count = latencies.len();
        let at = |share: f64| latencies[((count - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        let commands = (after.commands - before.commands) as f64;
        let trips = (after.round_trips - before.round_trips) as f64;
        println!(
            "| {name} | {:.0} | {:.0} | {:.0} | {:.2} | {:.1} | {:.2} |",
            count as f64 / elapsed.as_secs_f64(),
            at(0.5),
            at(0.99),
            cpu / count as f64,
            count as f64 / commands,
            commands / trips,
        );
        Measured {
            rate: count as f64 / elapsed.as_secs_f64(),
            commands: commands / count as f64,
            trips: trips / count as f64,
        }
    })
}

async fn call(
    callers: usize,
    store: &RedisStore,
    policy: &Arc<Policy>,
    keys: usize,
    time: Duration,
    sequential: bool,
) -> Vec<Duration> {
    let next = Arc::new(AtomicU64::new(0));
    let turn = Arc::new(tokio::sync::Mutex::new(()));
    let callers: Vec<_> = (0..callers)
        .map(|_| {
            let (store, policy) = (store.clone(), Arc::clone(policy));
            let (next, turn) = (Arc::clone(&next), Arc::clone(&turn));
            tokio::spawn(async move {
                let start = Instant::now();
                let mut latencies = Vec::new();
                while start.elapsed() < time {
                    let number = next.fetch_add(1, Ordering::Relaxed) as usize % keys;
                    let key = format!("user:{number:06}");
                    let charge = Charge::new(&policy, Key::new(&key).unwrap());
                    let asked = Instant::now();
                    let alone = if sequential { Some(turn.lock().await) } else { None };
                    let _ = store.check(&[charge], Timestamp::MIN).await.unwrap();
                    drop(alone);
                    latencies.push(asked.elapsed());
                }
                latencies
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for caller in callers {
        latencies.extend(caller.await.unwrap());
    }
    latencies
}
