//! Queues on Redis or Valkey, shared by several machines: every call is one run of one script.
//!
//! ```text
//!   enqueue, settle ──> batching ──┐
//!   lease, heartbeat, ... ─────────┴──> repeating_client ──> script ──> answer   (one connection)
//!   changed ──> watch ──> BZPOPMIN on the marker                        (one more per queue)
//! ```
//!
//! The scripts are the schedule of this crate over again, in the server: the same limits, the same
//! ring and heap of groups, the same places. What they store is drawn in `scripts/layout.lua`.
//!
//! **Invariants.** The server's clock decides, so machines whose clocks differ agree. A script is
//! safe to run twice (it remembers what it answered), so a broken connection or a failover loses no
//! answer; see [`RedisSettings::patience`]. Whatever is not a waiting or running job, a setting or
//! a recurring job has a TTL. Scripts read and write bounded ranges; a change of the kind of a
//! limit reads every lease once.
//!
//! **Cluster.** All keys of a namespace carry one hash tag and live in one slot, so that limits can
//! be shared between queues and a job's limits be taken all or none. To spread queues over a
//! cluster, give them different namespaces: several backends.
//!
//! **Bounds of what is kept.** A write that the server had acknowledged is as safe as the server
//! makes it: with `appendfsync always` after a power cut, with `everysec` but for a second; after a
//! failover but for what the replica had not received. A job is then at worst run again, or
//! enqueued again by a producer that uses an idempotency key.

mod batch_runs;
mod batching;
mod decode;
mod encode;
mod estimate;
mod leases;
mod manage;
mod operations;
mod queue_settings;
mod recurring;
mod repeating_client;
mod script;
mod views;
mod watch;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;
use tokio::runtime::Handle;
use tollway_core::{StoreError, Timestamp, explained};
use tollway_redis::connection::{Client, ClientSettings, Dialer, Probe, Script};

use self::batch_runs::runner;
use self::batching::ScriptBatcher;
use self::encode::micros_at;
use self::repeating_client::RepeatingClient;
use self::watch::Watch;
use crate::error::{Error, ErrorKind};
use crate::{EndWatch, QueueName, QueueSettings, Reply, WaitingLine};

/// How often it is looked whether other processes have ended jobs that somebody waits for here.
const LOOK_FOR_ENDS: Duration = Duration::from_millis(250);
/// How long jobs that end here are gathered before it is looked which they are.
const GATHER_ENDS: Duration = Duration::from_millis(5);

/// What a backend on Redis is told when it is made.
#[derive(Clone, Debug)]
pub struct RedisSettings {
    /// Which queues these are: those of one namespace know each other's shared limits, and live in
    /// one slot of a cluster. Letters, digits, `.`, `_`, `-` or `:`.
    pub namespace: QueueName,
    /// How long one answer of the server may take.
    pub answer_timeout: Duration,
    /// How long a call is repeated while the server is away: restarted, failing over, moved; at
    /// least [`Self::answer_timeout`]. At most half of the minute for which the server remembers
    /// what it answered. Once it has been away for longer, a call tries once.
    pub patience: Duration,
    /// How to connect: prefix of keys, certificates, time to connect.
    pub connection: tollway_redis::Settings,
    /// Whether the caller's time counts in place of the server's: for simulations and tests.
    pub use_callers_time: bool,
}

impl Default for RedisSettings {
    fn default() -> Self {
        Self {
            namespace: QueueName::new("queues").expect("a plain word is a name"),
            answer_timeout: Duration::from_secs(2),
            patience: Duration::from_secs(15),
            connection: tollway_redis::Settings::default(),
            use_callers_time: false,
        }
    }
}

/// Queues on Redis or Valkey.
///
/// Cheap to clone. It lives on the runtime on which it was made, whichever calls it.
#[derive(Clone)]
pub struct RedisBackend {
    inner: Arc<Inner>,
}

struct Inner {
    url: String,
    settings: RedisSettings,
    runtime: Handle,
    client: RepeatingClient,
    /// What the keys that all queues share begin with.
    base: String,
    queues: Mutex<HashMap<QueueName, Arc<QueueContext>>>,
    requests: AtomicU64,
    /// What names this process among all that ever ask: requests are counted from here.
    seed: u64,
    /// By how much the server's clock is ahead of the caller's, as last seen, in nanoseconds.
    ahead_ns: AtomicI64,
}

/// What a process keeps of one queue.
struct QueueContext {
    /// What the keys of the queue begin with.
    base: Vec<u8>,
    enqueue: ScriptBatcher<Reply>,
    settle: ScriptBatcher<Reply>,
    watch: Arc<Watch>,
    line: Arc<WaitingLine>,
    ends: Arc<EndWatch>,
    /// The longest result that it takes, as last read.
    result_max: AtomicU32,
    /// Its settings as last read, and their version.
    settings: Mutex<Option<(u64, Arc<QueueSettings>)>>,
}

impl RedisBackend {
    /// Connects to the Redis, Valkey, sentinels or cluster at `url`; see `tollway_redis`.
    ///
    /// # Errors
    ///
    /// If the URL is not valid, the server refuses the credentials, or it cannot be reached and
    /// [`tollway_redis::Settings::start_without`] of the connection is off. Without a server calls
    /// fail until it is found, which every call tries, and the backend by itself if nobody calls.
    pub async fn connect(url: &str, settings: RedisSettings) -> Result<Self, Error> {
        let base = format!("{}{{{}}}:", settings.connection.prefix, settings.namespace);
        let runtime = Handle::current();
        let seed = std::hash::BuildHasher::hash_one(
            &std::hash::RandomState::new(),
            (std::process::id(), std::time::SystemTime::now()),
        );
        let dialer = dialer(url, &base, &settings)?;
        // The removal of a key that is never there shows that the server takes writes: what the
        // scripts are answered does not, since not every script writes.
        let probe = Some(Probe::Write(format!("{base}~w").into_bytes()));
        let client_settings = ClientSettings { probe, ..client_settings(&settings) };
        let start_without = settings.connection.start_without;
        let client =
            Client::start(dialer, client_settings, start_without).await.map_err(refused)?;
        let inner = Inner {
            url: url.to_owned(),
            client: RepeatingClient::new(client, &settings),
            settings,
            runtime,
            base,
            queues: Mutex::default(),
            requests: AtomicU64::new(0),
            seed,
            ahead_ns: AtomicI64::new(0),
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

fn refused(error: StoreError) -> Error {
    let kind = if error.is_transient() { ErrorKind::Unavailable } else { ErrorKind::Misuse };
    Error::new(kind, explained(&error))
}

fn dialer(url: &str, base: &str, settings: &RedisSettings) -> Result<Dialer, Error> {
    let misuse = |error| Error::new(ErrorKind::Misuse, "the URL is not valid").caused_by(error);
    Dialer::new(url, base.as_bytes(), &settings.connection).map_err(misuse)
}

fn client_settings(settings: &RedisSettings) -> ClientSettings {
    let settings = ClientSettings::new(settings.answer_timeout, &settings.connection);
    ClientSettings { waits_for_connection: true, may_be_full: true, ..settings }
}

impl Inner {
    /// What this process keeps of a queue.
    fn context(self: &Arc<Self>, queue: &QueueName) -> Result<Arc<QueueContext>, Error> {
        let mut queues = self.lock();
        if let Some(context) = queues.get(queue) {
            return Ok(Arc::clone(context));
        }
        let base = self.queue_base(queue);
        let dialer = dialer(&self.url, &self.base, &self.settings)?;
        let blocking = Client::on_demand(&self.runtime, dialer, client_settings(&self.settings));
        let marker = [&base[..], b"m"].concat();
        let watch = Watch::start(&self.runtime, blocking, marker);
        let context = Arc::new_cyclic(|context: &std::sync::Weak<QueueContext>| QueueContext {
            enqueue: ScriptBatcher::start(&self.runtime, runner(self, context.clone(), true)),
            settle: ScriptBatcher::start(&self.runtime, runner(self, context.clone(), false)),
            base,
            watch,
            line: Arc::default(),
            ends: Arc::new(EndWatch::shared(LOOK_FOR_ENDS, GATHER_ENDS)),
            result_max: AtomicU32::new(0),
            settings: Mutex::default(),
        });
        queues.insert(queue.clone(), Arc::clone(&context));
        Ok(context)
    }

    /// What the keys of a queue begin with.
    fn queue_base(&self, queue: &QueueName) -> Vec<u8> {
        // A colon ends the name: one within it would make another queue's key.
        format!("{}{}:", self.base, queue.as_str().replace(':', "/")).into_bytes()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<QueueName, Arc<QueueContext>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time that a script is told: none, unless the caller's counts.
    fn time(&self, now: Timestamp) -> Vec<u8> {
        if self.settings.use_callers_time {
            micros_at(now).to_string().into_bytes()
        } else {
            Vec::new()
        }
    }

    fn request_id(&self) -> Vec<u8> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}{number:x}", self.seed).into_bytes()
    }

    /// Runs a script that changes something, under an id of its own.
    async fn change(
        &self,
        script: &Script,
        (base, now): (&[u8], Timestamp),
        arguments: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<Value, Error> {
        self.run(script, base, [self.time(now), self.request_id()], arguments).await
    }

    /// Runs a script that only looks, or that may as well run twice: its answer is not remembered.
    async fn query(
        &self,
        script: &Script,
        (base, now): (&[u8], Timestamp),
        arguments: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<Value, Error> {
        self.run(script, base, [self.time(now), Vec::new()], arguments).await
    }

    async fn run(
        &self,
        script: &Script,
        base: &[u8],
        first: [Vec<u8>; 2],
        arguments: impl IntoIterator<Item = Vec<u8>>,
    ) -> Result<Value, Error> {
        let all: Vec<Vec<u8>> = first.into_iter().chain(arguments).collect();
        self.client.run(script, &[base, self.base.as_bytes()], &all).await
    }

    /// Notes how far the server's clock is ahead of the caller's, who asked at `asked` and said
    /// that it was `now`.
    fn compare_clocks(&self, now: Timestamp, asked: Instant, server: Timestamp) {
        let local = i128::from(now.as_nanos()) + asked.elapsed().as_nanos() as i128;
        let ahead = i128::from(server.as_nanos()) - local;
        self.ahead_ns
            .store(ahead.clamp(i64::MIN.into(), i64::MAX.into()) as i64, Ordering::Relaxed);
    }

    /// A moment of the server's clock by the caller's.
    fn by_caller(&self, moment: Timestamp) -> Timestamp {
        if self.settings.use_callers_time {
            return moment;
        }
        let ahead = self.ahead_ns.load(Ordering::Relaxed);
        let by = Duration::from_nanos(ahead.unsigned_abs());
        if ahead >= 0 { moment.before(by) } else { moment.after(by) }
    }
}

impl std::fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may hold a password.
        let namespace = &self.inner.settings.namespace;
        f.debug_struct("RedisBackend").field("namespace", namespace).finish_non_exhaustive()
    }
}
