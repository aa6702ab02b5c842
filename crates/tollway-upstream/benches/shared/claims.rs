//! Claims per second, and the server's CPU time for each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tollway_testkit::servers::{Engine, Server};
use tollway_upstream::budget::{Claim, Ledger as _};
use tollway_upstream::profile::{Observation, Profile, Reading, Route};
use tollway_upstream::shared::{Fleet, Prefix, RedisLedger, Settings};

const ROUNDS: usize = 3;
const CONNECTIONS: usize = 50;
const ROUND: Duration = Duration::from_millis(1_500);
/// More than any run can claim.
const PLENTY: u64 = 90_000_000;
const HOUR_MS: u64 = 3_600_000;

/// The claim of Spectacles' first version.
const SPECTACLES: &str = r"
local held = redis.call('pttl', KEYS[3])
if held > 0 then return held end
local left = tonumber(redis.call('get', KEYS[1]))
if left == nil then
  local limit = tonumber(redis.call('get', KEYS[2]))
  if limit == nil then limit = 1 end
  redis.call('set', KEYS[1], limit - 1)
  return 0
end
local ttl = redis.call('pttl', KEYS[1])
if left <= 0 then
  if ttl < 0 then return tonumber(ARGV[1]) else return ttl end
end
redis.call('set', KEYS[1], left - 1)
if ttl > 0 then redis.call('pexpire', KEYS[1], ttl) end
return 0";

const CLAIM: &str = concat!(
    include_str!("../../src/shared/scripts/claim_short.lua"),
    include_str!("../../src/shared/scripts/bucket.lua"),
    include_str!("../../src/shared/scripts/meters.lua"),
    include_str!("../../src/shared/scripts/claim.lua"),
);
const QUICK: &str = include_str!("../../src/shared/scripts/claim_quick.lua");
const BESIDE: &str = include_str!("../../src/shared/scripts/claim_beside.lua");

/// The keys of the bucket `b` of the credential `x`, in the order of the scripts.
const KEYS: [&str; 16] = [
    "x:b:remaining",
    "x:b:limit",
    "x:global",
    "x:b:tollway:leases",
    "x:b:tollway:window",
    "x:b:tollway:waiting",
    "x:b:tollway:alive",
    "x:b:tollway:block:GET /b",
    "x:b:tollway:quick",
    "x:b:tollway:meters",
    "x:tollway:meters",
    "x:tollway:flights",
    "x:b:tollway:low",
    "x:b:tollway:foreign",
    "x:tollway:waiting",
    "x:tollway:alive",
];

/// Who claims, and how.
#[derive(Clone, Copy)]
enum Contender {
    /// One claim a call, on as many connections as callers, or on one that they share.
    Lone(Way, usize),
    /// Sixteen claims a call.
    Sixteen,
    /// Spectacles' claim and what it writes when the answer comes.
    SpectaclesWithHeaders,
    /// Claim and answer, as a process does it.
    Ledger,
}

/// The script of a lone claim.
#[derive(Clone, Copy)]
enum Way {
    Spectacles,
    /// Where there is plenty, which is where the Spectacles script is quick too.
    Quick,
    /// The same where old clients write the same keys.
    Beside,
    /// What is left of that where the limit is small.
    BesideShort,
    /// What is left of that where something is out of the ordinary.
    BesideLong,
}

const CONTENDERS: [Contender; 11] = [
    Contender::Lone(Way::Spectacles, CONNECTIONS),
    Contender::Lone(Way::Quick, CONNECTIONS),
    Contender::Lone(Way::Beside, CONNECTIONS),
    Contender::Lone(Way::BesideShort, CONNECTIONS),
    Contender::Lone(Way::BesideLong, CONNECTIONS),
    Contender::Lone(Way::Spectacles, 1),
    Contender::Lone(Way::Quick, 1),
    Contender::Lone(Way::Beside, 1),
    Contender::Sixteen,
    Contender::SpectaclesWithHeaders,
    Contender::Ledger,
];

impl Contender {
    fn name(self) -> String {
        let what = match self {
            Self::Lone(Way::Spectacles, _) => "the Spectacles script",
            Self::Lone(Way::Quick, _) => "ours",
            Self::Lone(Way::Beside, _) => "ours beside old clients",
            Self::Lone(Way::BesideShort, _) => "ours beside old clients, small limit",
            Self::Lone(Way::BesideLong, _) => "ours beside old clients, the long way",
            Self::Sixteen => return "ours, sixteen claims a call".to_owned(),
            Self::SpectaclesWithHeaders => {
                return "Spectacles, claim and headers (4 commands)".to_owned();
            }
            Self::Ledger => return "ours, claim and headers, through the ledger".to_owned(),
        };
        let Self::Lone(_, connections) = self else { return what.to_owned() };
        format!("{what}{}", if connections == 1 { ", one connection" } else { "" })
    }
}

/// One round.
async fn round(
    contender: Contender,
    connections: &[MultiplexedConnection],
    ledger: &RedisLedger,
) -> Figures {
    match contender {
        Contender::Lone(way, count) => {
            // Callers that share a connection send without waiting for each other, as the ledger's
            // do and those of the usual clients.
            let lines = connections[..count].iter().cycle().take(CONNECTIONS);
            let lines: Vec<_> = lines.cloned().collect();
            measure(&lines, 1, move |c, n| lone_claim(c, way, n)).await
        }
        Contender::Sixteen => measure(connections, 16, |c, n| our_claim(c, "wait", n, 16)).await,
        Contender::SpectaclesWithHeaders => {
            measure(connections, 1, |c, _| spectacles_with_headers(c)).await
        }
        Contender::Ledger => through_the_ledger(ledger, &connections[0]).await,
    }
}

/// What one round of a contender came to.
#[derive(Clone, Copy)]
struct Figures {
    per_second: f64,
    cpu_us: f64,
}

pub(crate) async fn run(engine: Engine) {
    let server = Server::start(engine, &[]);
    let client = redis::Client::open(server.url()).unwrap();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(client.get_multiplexed_async_connection().await.unwrap());
    }
    let ledger = ledger(&server).await;
    println!("{engine:?}: {CONNECTIONS} callers, {ROUNDS} rounds of {ROUND:?}, medians");
    println!("{:<58} {:>12} {:>16}", "", "per second", "server µs each");
    let mut rounds = vec![Vec::new(); CONTENDERS.len()];
    for _ in 0..ROUNDS {
        for (contender, results) in CONTENDERS.iter().zip(&mut rounds) {
            refill(&connections[0]).await;
            results.push(round(*contender, &connections, &ledger).await);
        }
    }
    for (contender, mut results) in CONTENDERS.iter().zip(rounds) {
        let name = contender.name();
        results.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
        let Figures { per_second, cpu_us } = results[ROUNDS / 2];
        println!("{name:<58} {per_second:>12.0} {cpu_us:>16.2}");
    }
    println!();
}

async fn refill(connection: &MultiplexedConnection) {
    let mut pipe = redis::pipe();
    pipe.cmd("FLUSHALL").ignore();
    // The quickest way is open, as after the first claims on a bucket that has plenty.
    pipe.cmd("XADD").arg(KEYS[8]).arg("*").arg("").arg("").ignore();
    pipe.cmd("PEXPIRE").arg(KEYS[8]).arg(HOUR_MS).ignore();
    pipe.cmd("SET").arg(KEYS[12]).arg(PLENTY).arg("PX").arg(HOUR_MS).ignore();
    for bucket in ["b", "b:"] {
        pipe.cmd("SET").arg(format!("x:{bucket}:limit")).arg(PLENTY).ignore();
        let counter = format!("x:{bucket}:remaining");
        pipe.cmd("SET").arg(counter).arg(PLENTY).arg("PX").arg(HOUR_MS).ignore();
    }
    pipe.query_async::<()>(&mut connection.clone()).await.unwrap();
}

/// Runs calls on every connection at once, one after the other on each.
async fn measure<F>(
    connections: &[MultiplexedConnection],
    claims: u64,
    call: impl Fn(MultiplexedConnection, u64) -> F + Send + Sync + Clone + 'static,
) -> Figures
where
    F: Future<Output = ()> + Send,
{
    let (before, start) = (cpu(&connections[0]).await, Instant::now());
    let count = Arc::new(AtomicU64::new(0));
    let callers: Vec<_> = connections
        .iter()
        .enumerate()
        .map(|(index, connection)| {
            let (connection, call) = (connection.clone(), call.clone());
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                while start.elapsed() < ROUND {
                    call(connection.clone(), index as u64).await;
                    count.fetch_add(claims, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    figures(&count, start, before, cpu(&connections[0]).await)
}

fn figures(count: &AtomicU64, start: Instant, before: f64, after: f64) -> Figures {
    let count = count.load(Ordering::Relaxed) as f64;
    let per_second = count / start.elapsed().as_secs_f64();
    Figures { per_second, cpu_us: (after - before) * 1e6 / count }
}

async fn lone_claim(connection: MultiplexedConnection, way: Way, caller: u64) {
    match way {
        Way::Spectacles => spectacles_claim(connection).await,
        Way::Quick => our_quick_claim(connection, QUICK, &[0, 8, 2, 5, 7]).await,
        Way::Beside => our_quick_claim(connection, BESIDE, &[0, 8, 2, 5, 7, 12, 13]).await,
        Way::BesideShort => our_claim(connection, "beside", caller, 1).await,
        // Asked so, the script tries no shorter way.
        Way::BesideLong => our_claim(connection, "try", caller, 1).await,
    }
}

async fn spectacles_claim(mut connection: MultiplexedConnection) {
    static SCRIPT: LazyLock<redis::Script> = LazyLock::new(|| redis::Script::new(SPECTACLES));
    let mut call = SCRIPT.prepare_invoke();
    call.key(KEYS[0]).key(KEYS[1]).key(KEYS[2]).arg(1_000);
    let wait: i64 = call.invoke_async(&mut connection).await.unwrap();
    assert_eq!(wait, 0);
}

async fn spectacles_with_headers(mut connection: MultiplexedConnection) {
    spectacles_claim(connection.clone()).await;
    let mut pipe = redis::pipe();
    pipe.cmd("PEXPIRE").arg(KEYS[0]).arg(HOUR_MS).ignore();
    pipe.cmd("SET").arg(KEYS[1]).arg(PLENTY).ignore();
    pipe.cmd("SET").arg(KEYS[0]).arg(PLENTY).arg("NX").ignore();
    pipe.query_async::<()>(&mut connection).await.unwrap();
}

/// What a process does for a lone claim where there is plenty.
async fn our_quick_claim(
    mut connection: MultiplexedConnection,
    source: &'static str,
    keys: &[usize],
) {
    static SCRIPTS: LazyLock<[redis::Script; 2]> =
        LazyLock::new(|| [QUICK, BESIDE].map(redis::Script::new));
    let mut call = SCRIPTS[usize::from(source == BESIDE)].prepare_invoke();
    for key in keys {
        call.key(KEYS[*key]);
    }
    let permit: Option<String> = call.invoke_async(&mut connection).await.unwrap();
    assert!(permit.is_some(), "the way is open");
}

async fn our_claim(
    mut connection: MultiplexedConnection,
    mode: &'static str,
    caller: u64,
    claims: u64,
) {
    static SCRIPT: LazyLock<redis::Script> = LazyLock::new(|| redis::Script::new(CLAIM));
    let mut call = SCRIPT.prepare_invoke();
    for key in KEYS {
        call.key(key);
    }
    call.arg(10_000).arg("x:tollway:wake:").arg("b").arg(mode);
    for claim in 0..claims {
        call.arg(format!("0123456789abcdef.1{caller}0{claim}"));
    }
    let _: redis::Value = call.invoke_async(&mut connection).await.unwrap();
}

async fn ledger(server: &Server) -> RedisLedger {
    let fleet = Fleet::connect(&server.url(), Settings::default()).await.unwrap();
    let profile = Profile::builtin("ietf-old").unwrap();
    fleet.ledger(Prefix::named("x"), profile).await.unwrap()
}

/// Claims and answers of as many callers in one process.
async fn through_the_ledger(ledger: &RedisLedger, connection: &MultiplexedConnection) -> Figures {
    let (before, start) = (cpu(connection).await, Instant::now());
    let count = Arc::new(AtomicU64::new(0));
    let callers: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let (ledger, count) = (ledger.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                let reading = Reading {
                    limit: Some(PLENTY),
                    remaining: Some(PLENTY - 1),
                    reset_after: Some(Duration::from_secs(3_600)),
                    resets_at: Some(Duration::from_secs(1_000_000)),
                    ..Reading::default()
                };
                let bucket = Some("b".into());
                let readings = vec![reading];
                let answer = Observation { bucket, readings, ..Observation::default() };
                let route = Route::new("GET", "/b", "");
                while start.elapsed() < ROUND {
                    let permit = ledger.claim(Claim::new(route.clone())).await.unwrap();
                    permit.complete(&answer);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    figures(&count, start, before, cpu(connection).await)
}

/// Seconds of CPU time that the server has used.
async fn cpu(connection: &MultiplexedConnection) -> f64 {
    let info: String =
        redis::cmd("INFO").arg("cpu").query_async(&mut connection.clone()).await.unwrap();
    let seconds = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').parse().unwrap()
    };
    seconds("used_cpu_sys") + seconds("used_cpu_user")
}
