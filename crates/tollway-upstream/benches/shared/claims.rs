//! Claims per second, and the server's CPU time for each.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tollway_testkit::servers::{Engine, Server};
use tollway_upstream::budget::{Claim, Ledger as _};
use tollway_upstream::profile::{Observation, Profile, Reading, Route};
use tollway_upstream::shared::{Fleet, Naming, Prefix, RedisLedger, Settings};

const ROUNDS: usize = 3;
const CALLERS: usize = 50;
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

const KEYS: [&str; 3] = ["x:/b:remaining", "x:/b:limit", "x:global"];

/// Who claims, and how.
#[derive(Clone, Copy)]
enum Contender {
    /// The Spectacles script, on so many connections.
    Spectacles(usize),
    /// The same, and what a client writes when the answer comes.
    SpectaclesWithHeaders,
    /// Claims and answers of so many processes, of so many callers each.
    Ledgers(Naming, usize, usize),
}

const CONTENDERS: [Contender; 7] = [
    Contender::Spectacles(CALLERS),
    Contender::Spectacles(1),
    Contender::SpectaclesWithHeaders,
    Contender::Ledgers(Naming::Learned, 1, CALLERS),
    Contender::Ledgers(Naming::Learned, 3, CALLERS / 3),
    Contender::Ledgers(Naming::Spectacles, 1, CALLERS),
    Contender::Ledgers(Naming::Learned, 1, 1),
];

impl Contender {
    fn name(self) -> String {
        match self {
            Self::Spectacles(1) => "the Spectacles script, one connection".to_owned(),
            Self::Spectacles(_) => "the Spectacles script".to_owned(),
            Self::SpectaclesWithHeaders => "Spectacles, claim and headers (4 commands)".to_owned(),
            Self::Ledgers(naming, processes, callers) => {
                let beside = if naming == Naming::Learned { "" } else { " beside old clients" };
                format!("ours{beside}, claim and headers: {processes} × {callers}")
            }
        }
    }
}

/// One round.
async fn round(
    contender: Contender,
    connections: &[MultiplexedConnection],
    server: &Server,
) -> Figures {
    match contender {
        Contender::Spectacles(count) => {
            // Callers that share a connection send without waiting for each other, as the ledger's
            // do and those of the usual clients.
            let lines = connections[..count].iter().cycle().take(CALLERS);
            let lines: Vec<_> = lines.cloned().collect();
            measure(&lines, spectacles_claim).await
        }
        Contender::SpectaclesWithHeaders => measure(connections, spectacles_with_headers).await,
        Contender::Ledgers(naming, processes, callers) => {
            let mut ledgers = Vec::new();
            for _ in 0..processes {
                ledgers.push(ledger(server, naming).await);
            }
            through_ledgers(&ledgers, callers, &connections[0]).await
        }
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
    for _ in 0..CALLERS {
        connections.push(client.get_multiplexed_async_connection().await.unwrap());
    }
    println!("{engine:?}: {CALLERS} callers, {ROUNDS} rounds of {ROUND:?}, medians");
    println!("{:<58} {:>12} {:>16}", "", "per second", "server µs each");
    let mut rounds = vec![Vec::new(); CONTENDERS.len()];
    for _ in 0..ROUNDS {
        for (contender, results) in CONTENDERS.iter().zip(&mut rounds) {
            refill(&connections[0]).await;
            results.push(round(*contender, &connections, &server).await);
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
    pipe.cmd("SET").arg(KEYS[1]).arg(PLENTY).ignore();
    pipe.cmd("SET").arg(KEYS[0]).arg(PLENTY).arg("PX").arg(HOUR_MS).ignore();
    pipe.query_async::<()>(&mut connection.clone()).await.unwrap();
}

/// Runs calls on every connection at once, one after the other on each.
async fn measure<F>(
    connections: &[MultiplexedConnection],
    call: impl Fn(MultiplexedConnection) -> F + Send + Sync + Clone + 'static,
) -> Figures
where
    F: Future<Output = ()> + Send,
{
    let (before, start) = (cpu(&connections[0]).await, Instant::now());
    let count = Arc::new(AtomicU64::new(0));
    let callers: Vec<_> = connections
        .iter()
        .map(|connection| {
            let (connection, call) = (connection.clone(), call.clone());
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                while start.elapsed() < ROUND {
                    call(connection.clone()).await;
                    count.fetch_add(1, Ordering::Relaxed);
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

async fn ledger(server: &Server, naming: Naming) -> RedisLedger {
    let settings = Settings { naming, ..Settings::default() };
    let fleet = Fleet::connect(&server.url(), settings).await.unwrap();
    let profile = Profile::builtin("ietf-old").unwrap();
    fleet.ledger(Prefix::named("x"), profile).await.unwrap()
}

/// Claims and answers of as many callers in each process.
async fn through_ledgers(
    ledgers: &[RedisLedger],
    callers: usize,
    connection: &MultiplexedConnection,
) -> Figures {
    let (before, start) = (cpu(connection).await, Instant::now());
    let count = Arc::new(AtomicU64::new(0));
    let callers: Vec<_> = ledgers
        .iter()
        .cycle()
        .take(ledgers.len() * callers)
        .map(|ledger| {
            let (ledger, count) = (ledger.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                let reading = Reading {
                    limit: Some(PLENTY),
                    remaining: Some(PLENTY - 1),
                    reset_after: Some(Duration::from_secs(3_600)),
                    resets_at: Some(Duration::from_secs(1_000_000)),
                    ..Reading::default()
                };
                let readings = vec![reading];
                let answer = Observation { readings, ..Observation::default() };
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
