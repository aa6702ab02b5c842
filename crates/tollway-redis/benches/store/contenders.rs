//! Single requests, one script or command each: what the server pays for them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tollway_core::{Charge, Key, Policy, Store, Timestamp};
use tollway_redis::{RedisStore, Settings};

use tollway_testkit::servers::Server;

use crate::targets::{Bound, Target};
use crate::wire::{Ask, Until, command, drive, record};

/// Few enough that they come back, one request at a time, before a unit of their quota has passed.
const KEYS: usize = 1_000;
const ROUNDS: usize = 5;
/// Each key so often before a round: made, given a time to live for more, changed in place.
const WARM: Until = Until { time: Duration::ZERO, turns: 3 };
const ROUND: Until = Until { time: Duration::from_millis(400), turns: 0 };

/// The least that a correct single-key GCRA takes: server time, one key, a TTL.
const PLAIN_GCRA: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local tat = tonumber(redis.call('GET', KEYS[1]) or now)
if tat < now then tat = now end
local new = tat + interval
if new - now > burst then return {0, tat - now} end
redis.call('SET', KEYS[1], string.format('%.0f', new), 'PX', math.ceil((new - now) / 1000))
return {1, new - now}";

/// Ten per second with room for a billion: keys that come back find their state, and none is
/// denied.
const RETURNING: &str = "10/1s burst 1000000000";
/// States that are gone when their key comes back, as for keys that come once.
const NEW: &str = "1000000/1s burst 100000000";
/// A unit that is no whole number of microseconds.
const FINE: &str = "7/1s burst 1000000000";
/// The same tag, so that the keys share a slot.
const THREE_KEYS: [&str; 3] = ["", "team", "all"];

pub(crate) fn run(server: &Server, shapes: &[(usize, usize)]) -> Vec<Target> {
    let plain = |interval: &str, burst: &str| scripted(server, PLAIN_GCRA, &[interval, burst]);
    let contenders = [
        ("INCR", incr()),
        ("INCR + EXPIRE", incr_expire()),
        ("EVALSHA constant", scripted(server, "return 1", &[])),
        ("plain GCRA", plain("100000", "100000000000000")),
        ("plain GCRA, new keys", plain("1", "100000000")),
        ("plain GCRA, denied", plain("864000000000", "864000000000")),
        ("ours, one charge", ours(server, 1, RETURNING)),
        ("ours, one charge, new keys", ours(server, 1, NEW)),
        ("ours, one charge, fine", ours(server, 1, FINE)),
        ("ours, one charge, denied", ours(server, 1, "1/10d")),
        ("ours, three charges", ours(server, 3, RETURNING)),
        ("ours, three charges, new keys", ours(server, 3, NEW)),
        ("ours, three charges, fine", ours(server, 3, FINE)),
        ("ours, three keys", ours_on(server, &THREE_KEYS, RETURNING)),
        ("ours, three keys, new keys", ours_on(server, &THREE_KEYS, NEW)),
        ("ours, three keys, fine", ours_on(server, &THREE_KEYS, FINE)),
    ];
    println!(
        "| request | connections × depth | requests/s | p50 µs | p99 µs | server CPU µs/request | bytes sent |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut targets = Vec::new();
    for (connections, depth) in shapes {
        targets.extend(compare(server, &contenders, *connections, *depth));
    }
    bytes_per_key(server);
    targets
}

/// What is held to what, and to how many times its cost.
const RATIOS: [(&str, &str, f64); 10] = [
    ("ours, one charge", "plain GCRA", 1.3),
    ("ours, one charge, new keys", "plain GCRA, new keys", 1.3),
    ("ours, one charge, fine", "plain GCRA", 1.3),
    ("ours, one charge, denied", "plain GCRA, denied", 1.3),
    ("ours, three charges", "ours, one charge", 1.6),
    ("ours, three charges, new keys", "ours, one charge, new keys", 1.6),
    ("ours, three charges, fine", "ours, one charge, fine", 1.6),
    ("ours, three keys", "ours, one charge", 1.6),
    ("ours, three keys, new keys", "ours, one charge, new keys", 1.6),
    ("ours, three keys, fine", "ours, one charge, fine", 1.6),
];

/// All of them in turn, several times over: what else runs on the machine disturbs all alike and
/// only adds, so the round in which the server needed least is the one to compare.
fn compare(
    server: &Server,
    contenders: &[(&str, Vec<Ask>)],
    connections: usize,
    depth: usize,
) -> Vec<Target> {
    let mut rounds: Vec<Vec<Figures>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..ROUNDS {
        for ((_, asks), figures) in contenders.iter().zip(&mut rounds) {
            figures.push(measure(server, asks, connections, depth));
        }
    }
    let mut least = HashMap::new();
    for ((name, asks), figures) in contenders.iter().zip(rounds) {
        let best = figures.into_iter().min_by(|a, b| a.cpu_us.total_cmp(&b.cpu_us)).unwrap();
        let Figures { rate, p50_us, p99_us, cpu_us } = best;
        let bytes = asks[0].bytes.len();
        println!(
            "| {name} | {connections} × {depth} | {rate:.0} | {p50_us:.0} | {p99_us:.0} | \
             {cpu_us:.2} | {bytes} |"
        );
        least.insert(*name, cpu_us);
    }
    let ratio = |(a, b, at_most): &(&str, &str, f64)| Target {
        name: format!("{a} to {b}, {connections} × {depth}"),
        ratio: least[a] / least[b],
        bound: Bound::AtMost(*at_most),
    };
    RATIOS.iter().map(ratio).collect()
}

struct Figures {
    rate: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
}

fn measure(server: &Server, asks: &[Ask], connections: usize, depth: usize) -> Figures {
    drive(server.port, asks, connections, depth, WARM);
    let before = cpu_us(server);
    let mut run = drive(server.port, asks, connections, depth, ROUND);
    let cpu = cpu_us(server) - before;
    run.latencies.sort_unstable();
    let at = |share: f64| {
        run.latencies[((run.latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6
    };
    Figures {
        rate: run.requests as f64 / run.elapsed.as_secs_f64(),
        p50_us: at(0.5),
        p99_us: at(0.99),
        cpu_us: cpu / run.requests as f64,
    }
}

/// CPU time of the server as it counts it itself, to the microsecond.
pub(crate) fn cpu_us(server: &Server) -> f64 {
    let info = server.tell(&["INFO", "cpu"]);
    let field = |name: &str| -> f64 {
        info.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
    };
    (field("used_cpu_user:") + field("used_cpu_sys:")) * 1e6
}

fn key(number: usize) -> String {
    format!("user:{number:06}")
}

fn incr() -> Vec<Ask> {
    let one =
        |n| Ask { bytes: command(&[b"INCR", format!("i:{}", key(n)).as_bytes()]), answers: 1 };
    (0..KEYS).map(one).collect()
}

fn incr_expire() -> Vec<Ask> {
    let one = |n| {
        let key = format!("e:{}", key(n));
        let mut bytes = command(&[b"INCR", key.as_bytes()]);
        bytes.extend(command(&[b"EXPIRE", key.as_bytes(), b"60"]));
        Ask { bytes, answers: 2 }
    };
    (0..KEYS).map(one).collect()
}

fn scripted(server: &Server, source: &str, arguments: &[&str]) -> Vec<Ask> {
    let answer = server.tell(&["SCRIPT", "LOAD", source]);
    let sha = answer.lines().nth(1).unwrap().to_owned();
    let one = |n| {
        let key = format!("g{}:{}", arguments.concat(), key(n));
        let mut words: Vec<&[u8]> = vec![b"EVALSHA", sha.as_bytes(), b"1", key.as_bytes()];
        words.extend(arguments.iter().map(|argument| argument.as_bytes()));
        Ask { bytes: command(&words), answers: 1 }
    };
    (0..KEYS).map(one).collect()
}

/// Requests of so many charges on one key.
fn ours(server: &Server, charges: usize, quota: &str) -> Vec<Ask> {
    ours_on(server, &vec![""; charges], quota)
}

/// What the store really sends for requests with a charge per prefix, on a key with that prefix and
/// a tag that all of them share, recorded.
fn ours_on(server: &Server, prefixes: &[&str], quota: &str) -> Vec<Ask> {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (port, recorded) = record(server.port);
    let policy = |n| Policy::parse(format!("policy {n}"), quota).unwrap();
    let policies: Vec<Policy> = (0..prefixes.len()).map(policy).collect();
    runtime.block_on(async {
        let url = format!("redis://127.0.0.1:{port}");
        let settings = Settings { prefix: own_prefix(), ..Settings::default() };
        let store = RedisStore::connect(&url, settings).await.unwrap();
        let check = async |number: usize| {
            let tagged = |prefix: &&str| match *prefix {
                "" => key(number),
                prefix => format!("{prefix}{{{}}}", key(number)),
            };
            let keys: Vec<String> = prefixes.iter().map(tagged).collect();
            let charge = |(policy, key)| Charge::new(policy, Key::new(key).unwrap());
            let charges: Vec<_> = policies.iter().zip(&keys).map(charge).collect();
            let _ = store.check(&charges, Timestamp::MIN).await.unwrap();
        };
        // The first makes the script known, so that the recording is of the usual case.
        check(0).await;
        let mut asks = Vec::with_capacity(KEYS);
        for number in 0..KEYS {
            recorded.lock().unwrap().clear();
            check(number).await;
            asks.push(Ask { bytes: recorded.lock().unwrap().clone(), answers: 1 });
        }
        asks
    })
}

/// As long as the default, and no other contender's: the states of one key share a value, and one
/// contender's would make another's longer.
fn own_prefix() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(b'a');
    format!("t{}:", char::from(NEXT.fetch_add(1, Ordering::Relaxed)))
}

fn bytes_per_key(server: &Server) {
    println!("\n| state of one key | bytes by MEMORY USAGE |\n|---|---|");
    let usage = |key: &str| -> u64 {
        let answer = server.tell(&["MEMORY", "USAGE", key]);
        answer.trim().trim_start_matches(':').parse().unwrap_or(0)
    };
    server.tell(&["SET", "rl_user:000000_api_c", "10", "EX", "60"]);
    server.tell(&["SET", "rl_user:000000_api_t", "1700000000000", "EX", "60"]);
    let seed = usage("rl_user:000000_api_c") + usage("rl_user:000000_api_t");
    println!("| Sharkey's two integer keys | {seed} |");
    server.tell(&["SET", &format!("gcra:{}", key(0)), "1700000000000000", "PX", "60000"]);
    println!("| plain GCRA's one key | {} |", usage(&format!("gcra:{}", key(0))));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (what, quota, charges) in
        [("one charge", "1/1h", 1), ("charged again", "100/1h", 3), ("fine", "7/1h", 3)]
    {
        let prefix = format!("m{charges}{}:", what.len());
        let settings = Settings { prefix: prefix.clone(), ..Settings::default() };
        let policy = Policy::parse("api", quota).unwrap();
        runtime.block_on(async {
            let store = RedisStore::connect(&server.url(), settings).await.unwrap();
            for _ in 0..charges {
                let charge = Charge::new(&policy, Key::new("user:000000").unwrap());
                let _ = store.check(&[charge], Timestamp::MIN).await.unwrap();
            }
        });
        let keys = server.tell(&["KEYS", &format!("{prefix}*")]);
        let ours = keys.lines().find(|line| line.starts_with(&prefix)).unwrap_or_default();
        println!("| ours, GCRA, {what} (`{ours}`) | {} |", usage(ours));
    }
}
