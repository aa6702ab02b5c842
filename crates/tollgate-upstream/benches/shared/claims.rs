//! Claims per second, and the server's CPU time for each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tollgate_sim::servers::{Engine, Server};
use tollgate_upstream::budget::{Claim, Ledger as _};
use tollgate_upstream::profile::{Observation, Profile, Reading, Route};
use tollgate_upstream::shared::{Fleet, Prefix, RedisLedger, Settings};

const ROUNDS: usize = 3;
const CONNECTIONS: usize = 50;
const ROUND: Duration = Duration::from_millis(1_500);
/// More than any run can claim.
const PLENTY: u64 = 90_000_000;

/// The claim of seed 003's first version.
const SEED: &str = r"
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
const LONG: &str = concat!(
    include_str!("../../src/shared/scripts/bucket.lua"),
    include_str!("../../src/shared/scripts/meters.lua"),
    include_str!("../../src/shared/scripts/claim.lua"),
);
const QUICK: &str = include_str!("../../src/shared/scripts/claim_quick.lua");

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
    println!("{:<46} {:>12} {:>16}", "", "per second", "server µs each");
    let contenders = [
        "seed 003's script, one claim a call",
        "ours, one claim a call",
        "ours beside old clients, one claim a call",
        "ours, sixteen claims a call",
        "seed 003, claim and headers (4 commands)",
        "ours, claim and headers, through the ledger",
    ];
    let mut rounds = vec![Vec::new(); contenders.len()];
    for _ in 0..ROUNDS {
        for (index, results) in rounds.iter_mut().enumerate() {
            refill(&connections[0]).await;
            results.push(match index {
                0 => measure(&connections, 1, |c, n| seed_claim(c, n, false)).await,
                1 => measure(&connections, 1, |c, _| our_quick_claim(c)).await,
                2 => measure(&connections, 1, |c, n| our_claim(c, LONG, n, 1)).await,
                3 => measure(&connections, 16, |c, n| our_claim(c, CLAIM, n, 16)).await,
                4 => measure(&connections, 1, |c, n| seed_claim(c, n, true)).await,
                _ => through_the_ledger(&ledger, &connections[0]).await,
            });
        }
    }
    for (name, mut results) in contenders.iter().zip(rounds) {
        results.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
        let Figures { per_second, cpu_us } = results[ROUNDS / 2];
        println!("{name:<46} {per_second:>12.0} {cpu_us:>16.2}");
    }
    println!();
}

async fn refill(connection: &MultiplexedConnection) {
    let mut pipe = redis::pipe();
    pipe.cmd("FLUSHALL").ignore();
    // The quickest way is open, as after the first claims on a bucket that has plenty.
    pipe.cmd("XADD").arg("x:b:s").arg("*").arg("").arg("").ignore();
    pipe.cmd("PEXPIRE").arg("x:b:s").arg(3_600_000).ignore();
    for bucket in ["b", "b:"] {
        pipe.cmd("SET").arg(format!("x:{bucket}:limit")).arg(PLENTY).ignore();
        let counter = format!("x:{bucket}:remaining");
        pipe.cmd("SET").arg(counter).arg(PLENTY).arg("PX").arg(3_600_000).ignore();
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

async fn seed_claim(mut connection: MultiplexedConnection, _: u64, headers: bool) {
    static SCRIPT: LazyLock<redis::Script> = LazyLock::new(|| redis::Script::new(SEED));
    let mut call = SCRIPT.prepare_invoke();
    call.key("x:b:remaining").key("x:b:limit").key("x:global").arg(1_000);
    let wait: i64 = call.invoke_async(&mut connection).await.unwrap();
    assert_eq!(wait, 0);
    if headers {
        let mut pipe = redis::pipe();
        pipe.cmd("PEXPIRE").arg("x:b:remaining").arg(3_600_000).ignore();
        pipe.cmd("SET").arg("x:b:limit").arg(PLENTY).ignore();
        pipe.cmd("SET").arg("x:b:remaining").arg(PLENTY).arg("NX").ignore();
        pipe.query_async::<()>(&mut connection).await.unwrap();
    }
}

/// What a process does for a lone claim where there is plenty.
async fn our_quick_claim(mut connection: MultiplexedConnection) {
    static SCRIPT: LazyLock<redis::Script> = LazyLock::new(|| redis::Script::new(QUICK));
    let mut call = SCRIPT.prepare_invoke();
    for key in ["x:b:remaining", "x:b:s", "x:global", "x:b:q", "x:b:x"] {
        call.key(key);
    }
    let _: String = call.invoke_async(&mut connection).await.unwrap();
}

async fn our_claim(
    mut connection: MultiplexedConnection,
    source: &'static str,
    caller: u64,
    claims: u64,
) {
    static SCRIPTS: LazyLock<[redis::Script; 2]> =
        LazyLock::new(|| [CLAIM, LONG].map(redis::Script::new));
    let mut call = SCRIPTS[usize::from(source == LONG)].prepare_invoke();
    let of_bucket = ["remaining", "limit", "", "l", "w", "q", "a", "x", "s", "m", "", ""];
    let of_all = ["", "", "x:global", "", "", "", "", "", "", "", "x:m", "x:f"];
    for (own, all) in of_bucket.iter().zip(of_all) {
        call.key(if all.is_empty() { format!("x:b:{own}") } else { all.to_owned() });
    }
    call.arg(10_000).arg("x:tollgate:wake:").arg("b").arg("wait");
    for claim in 0..claims {
        call.arg(format!("0123456789abcdef.1{caller}-{claim}").replace('-', "0"));
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
