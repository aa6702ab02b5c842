//! Random histories of a fleet on real servers, beside one process that has all the requests. Both
//! are judged by a truthful upstream on the real clock, with windows of each kind.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::Instant;
use tollway_testkit::servers::{Engine, full};
use tollway_upstream::budget::{self, Ledger, LocalLedger};
use tollway_upstream::shared::{Naming, Settings};

use super::stage::{Stage, World, profile, settings, spec};

/// Longer than a history takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
const PROCESSES: usize = 3;
/// One route for each kind of window.
const WINDOWS: [&str; 4] = [
    r#"limit = 8, per = "300ms", window = "fixed""#,
    r#"limit = 5, per = "200ms", window = "clock""#,
    r#"limit = 10, per = "400ms", window = "sliding""#,
    r#"limit = 3, per = "150ms", window = "fixed""#,
];

/// A request: when it is asked for, by which process, where it goes, how long it travels.
#[derive(Clone, Copy)]
struct Call {
    at: Duration,
    process: usize,
    route: usize,
    there: Duration,
    back: Duration,
}

/// Requests in crowds and one by one, over all routes.
fn history(seed: u64, count: usize) -> Vec<Call> {
    let mut dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut roll = |sides: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % sides
    };
    let mut at_ms = 0;
    (0..count)
        .map(|_| {
            at_ms += if roll(8) == 0 { roll(120) } else { 0 };
            let longest_ms = if roll(5) == 0 { 150 } else { 20 };
            Call {
                at: Duration::from_millis(at_ms),
                process: roll(PROCESSES as u64) as usize,
                route: roll(WINDOWS.len() as u64) as usize,
                there: Duration::from_millis(roll(longest_ms)),
                back: Duration::from_millis(roll(longest_ms)),
            }
        })
        .collect()
}

fn upstream() -> Arc<World> {
    let buckets = (0..WINDOWS.len()).map(|route| format!("b{route} = {{ {} }}", WINDOWS[route]));
    let buckets: Vec<String> = buckets.collect();
    let routes = (0..WINDOWS.len())
        .map(|route| format!("[[routes]]\npath = \"/kind{route}\"\nbucket = \"b{route}\"\n"));
    let text = spec("LIMIT");
    let head = text.split("[buckets]").next().unwrap();
    World::of(&format!("{head}[buckets]\n{}\n{}", buckets.join("\n"), routes.collect::<String>()))
}

/// Plays a history, of which the upstream must refuse nothing. How long it takes is printed, and
/// judged where time is virtual (`replicas`).
async fn play(what: &str, ledgers: &[Arc<dyn Ledger>], calls: &[Call]) {
    let (world, start) = (upstream(), Instant::now());
    let call = |call: Call| {
        let (world, ledger) = (Arc::clone(&world), &ledgers[call.process % ledgers.len()]);
        async move {
            tokio::time::sleep_until(start + call.at).await;
            let target = format!("/kind{}", call.route);
            world.call_to(&target, &**ledger, [call.there, call.back]).await;
        }
    };
    let all = join_all(calls.iter().copied().map(call));
    tokio::time::timeout(PATIENCE, all).await.expect("nobody waits for ever");
    let took = start.elapsed();
    let counters = world.counters();
    let served = counters.requests;
    println!(
        "| history {what} | {served} requests | {} refused | {took:?} |",
        counters.limited_all()
    );
    assert_eq!(served, calls.len() as u64, "{what}");
    assert_eq!(counters.limited_all(), 0, "{what}: {:?}", counters.arrivals);
}

/// One history, by a fleet on the store and by one process.
async fn judge(engine: Engine, seed: u64, count: usize) {
    let calls = history(seed, count);
    let settings = Settings { naming: Naming::Learned, ..settings(Duration::from_secs(5)) };
    let stage = Stage::new(engine, settings).await;
    let mut fleet: Vec<Arc<dyn Ledger>> = vec![Arc::new(stage.ledger.clone())];
    while fleet.len() < PROCESSES {
        fleet.push(Arc::new(stage.process().await));
    }
    let alone = LocalLedger::new(profile(), budget::Settings::default());
    let alone: [Arc<dyn Ledger>; 1] = [Arc::new(alone)];
    let (one, many) = (format!("{seed}, one process"), format!("{seed}, three on {engine:?}"));
    join(play(&one, &alone, &calls), play(&many, &fleet, &calls)).await;
}

/// At full size a hundred thousand requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_on_a_store_is_refused_as_little_as_one_process() {
    let (histories, count) = if full() { (25, 2_000) } else { (2, 120) };
    for engine in Engine::available() {
        join_all((0..histories).map(|seed| judge(engine, seed, count))).await;
    }
}
