//! Ledgers, raw keys and a truthful upstream, as the tests need them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};
use tollway_core::Timestamp;
use tollway_core::fields::Lines;
use tollway_sim::fake_api::{Counters, Fault, Request, Spec, Upstream};
use tollway_testkit::servers::Engine;
use tollway_upstream::budget::{self, Claim, Ledger as _, Permit, Refusal};
use tollway_upstream::pace::Outcome;
use tollway_upstream::profile::{Observation, Profile, Reading, Response, Route, Scope};
use tollway_upstream::shared::{Fleet, Naming, Prefix, RedisLedger, Settings};

/// How long anything that should happen may take: never what is measured.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// The route that most tests use, as Spectacles clients write it.
pub(crate) const ROUTE: &str = "/channels/81384788765712384/messages";

/// A server, a prefix of its own, a process, and a plain connection.
pub(crate) struct Stage {
    pub(crate) url: String,
    pub(crate) name: String,
    pub(crate) settings: Settings,
    pub(crate) ledger: RedisLedger,
    raw: MultiplexedConnection,
}

/// Settings with a short lease, and names as old clients write them.
pub(crate) fn settings(lease: Duration) -> Settings {
    let naming = Naming::Spectacles;
    let timeout = Duration::from_secs(5);
    // So long that nothing in a test happens because it is over.
    let bounds =
        budget::Settings { lease: Duration::from_secs(120), ..budget::Settings::default() };
    Settings { lease, naming, timeout, bounds, ..Settings::default() }
}

/// A bare profile: without a limit over all routes, which most tests do not want.
pub(crate) fn profile() -> Arc<Profile> {
    let text = Profile::builtin_text("discord").unwrap();
    let without_global = text.replace("[global]\nlimit = \"50/1s\"\njitter = \"100ms\"\n", "");
    assert_ne!(text, without_global);
    Arc::new(Profile::parse(&without_global).unwrap())
}

impl Stage {
    pub(crate) async fn new(engine: Engine, settings: Settings) -> Self {
        Self::at(&engine.shared().url(), settings).await
    }

    pub(crate) async fn at(url: &str, settings: Settings) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let ledger = join(url, &name, &settings).await;
        let client = redis::Client::open(url).unwrap();
        let raw = client.get_multiplexed_async_connection().await.unwrap();
        Self { url: url.to_owned(), name, settings, ledger, raw }
    }

    /// One that has learned that four of five are left, for ten minutes.
    pub(crate) async fn of_five(engine: Engine, lease: Duration) -> Self {
        let stage = Self::new(engine, settings(lease)).await;
        claim(&stage.ledger).await.complete(&told(5, 4, 600_000, 1_000));
        stage.until("the limit is learned", |left, ttl| left == Some(4) && ttl > 0).await;
        stage
    }

    /// The ledger of another process.
    pub(crate) async fn process(&self) -> RedisLedger {
        join(&self.url, &self.name, &self.settings).await
    }

    /// Sends a command; `$` stands for the prefix.
    pub(crate) async fn tell<T: FromRedisValue>(&self, command: &str) -> T {
        let mut words =
            command.split(' ').map(|word| word.replace('$', &format!("{}:", self.name)));
        let mut cmd = redis::cmd(&words.next().unwrap());
        words.for_each(|word| {
            cmd.arg(word);
        });
        cmd.query_async(&mut self.raw.clone()).await.unwrap()
    }

    pub(crate) async fn remaining(&self) -> Option<i64> {
        self.tell(&format!("GET ${ROUTE}:remaining")).await
    }

    pub(crate) async fn pttl(&self) -> i64 {
        self.tell(&format!("PTTL ${ROUTE}:remaining")).await
    }

    /// Waits for a condition on what the counter says: its value and its PTTL.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(Option<i64>, i64) -> bool) {
        until(what, async || condition(self.remaining().await, self.pttl().await)).await;
    }

    /// A late answer to an old client ends the counter. As often as it takes: who looks in its last
    /// millisecond writes it anew.
    pub(crate) async fn end_counter(&self) {
        until("the key is gone", async || {
            let _: i64 = self.tell(&format!("PEXPIRE ${ROUTE}:remaining 1")).await;
            self.remaining().await.is_none()
        })
        .await;
    }

    /// A claim of a client of the first Spectacles version: 0, or the time to wait.
    pub(crate) async fn old_claim(&self) -> i64 {
        const SCRIPT: &str = r"
            local held = redis.call('PTTL', KEYS[3])
            if held > 0 then return held end
            local left = tonumber(redis.call('GET', KEYS[1]))
            if not left then
              redis.call('SET', KEYS[1], (tonumber(redis.call('GET', KEYS[2])) or 1) - 1)
              return 0
            end
            local ttl = redis.call('PTTL', KEYS[1])
            if left <= 0 then return ttl < 0 and 1000 or ttl end
            redis.call('SET', KEYS[1], left - 1)
            if ttl > 0 then redis.call('PEXPIRE', KEYS[1], ttl) end
            return 0";
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(SCRIPT).arg(3);
        for key in [&format!("{ROUTE}:remaining"), &format!("{ROUTE}:limit"), "global"] {
            cmd.arg(format!("{}:{key}", self.name));
        }
        cmd.query_async(&mut self.raw.clone()).await.unwrap()
    }

    /// Every key of this stage that never expires.
    pub(crate) async fn immortal(&self) -> Vec<String> {
        let keys: Vec<String> = self.tell("KEYS $*").await;
        let mut immortal = Vec::new();
        for key in keys {
            let ttl: Value =
                redis::cmd("PTTL").arg(&key).query_async(&mut self.raw.clone()).await.unwrap();
            if ttl == Value::Int(-1) {
                immortal.push(key);
            }
        }
        immortal
    }
}

pub(crate) async fn join(url: &str, name: &str, settings: &Settings) -> RedisLedger {
    let fleet = Fleet::connect(url, settings.clone()).await.unwrap();
    fleet.ledger(Prefix::named(name), profile()).await.unwrap()
}

/// How many wait, and how many are under way, in all buckets of a ledger.
pub(crate) async fn standing(ledger: &RedisLedger) -> (usize, u32) {
    let page = ledger.buckets(0, 1_000).await.unwrap();
    let sum = |(queued, flying), view: &budget::BucketView| {
        (queued + view.queued, flying + view.in_flight)
    };
    page.buckets.iter().fold((0, 0), sum)
}

/// Waits for a condition, and fails if it does not come true in time.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < PATIENCE, "{what} did not happen in {PATIENCE:?}");
        tokio::task::yield_now().await;
    }
}

pub(crate) fn route() -> Route {
    Route::new("POST", ROUTE, "81384788765712384")
}

/// Claims without waiting.
pub(crate) async fn try_claim(ledger: &RedisLedger) -> Result<Permit, Refusal> {
    ledger.claim(Claim::new(route()).patience(Duration::ZERO)).await
}

/// Claims, waiting for as long as a test may.
pub(crate) async fn claim(ledger: &RedisLedger) -> Permit {
    claim_on(ledger, route()).await
}

pub(crate) async fn claim_on(ledger: &RedisLedger, route: Route) -> Permit {
    let claimed = tokio::time::timeout(PATIENCE, ledger.claim(Claim::new(route))).await;
    claimed.expect("a permit comes in time").expect("nothing refuses")
}

/// Takes permits until one is refused, at most `max`.
pub(crate) async fn take_all(ledger: &RedisLedger, max: usize) -> Vec<Permit> {
    let mut permits = Vec::new();
    while permits.len() < max {
        match try_claim(ledger).await {
            Ok(permit) => permits.push(permit),
            Err(_) => break,
        }
    }
    permits
}

/// An answer with the usual fields; `reset_at_ms` by the upstream's clock.
pub(crate) fn told(limit: u64, remaining: u64, after_ms: u64, reset_at_ms: u64) -> Observation {
    let reading = Reading {
        limit: Some(limit),
        remaining: Some(remaining),
        reset_after: Some(Duration::from_millis(after_ms)),
        resets_at: Some(Duration::from_millis(reset_at_ms)),
        ..Reading::default()
    };
    Observation { readings: vec![reading], ..Observation::default() }
}

/// A 429.
pub(crate) fn limited(scope: Scope, retry: Duration) -> Observation {
    Observation {
        status: 429,
        outcome: Outcome::Limited,
        scope: Some(scope),
        retry_after: Some(retry),
        ..Observation::default()
    }
}

/// A truthful upstream in this process, on the real clock.
pub(crate) struct World {
    upstream: Mutex<Upstream>,
    profile: Arc<Profile>,
    start: Instant,
}

impl World {
    /// One bucket for messages with this limit, which speaks as Discord does.
    pub(crate) fn new(limit: &str) -> Arc<Self> {
        Self::of(&spec(limit))
    }

    /// An upstream by this description.
    pub(crate) fn of(spec: &str) -> Arc<Self> {
        let spec = Spec::from_toml(spec).unwrap();
        let upstream = Mutex::new(Upstream::new(spec));
        Arc::new(Self { upstream, profile: profile(), start: Instant::now() })
    }

    pub(crate) fn route(&self) -> Route {
        self.route_to(ROUTE)
    }

    pub(crate) fn route_to(&self, target: &str) -> Route {
        self.profile.route("POST", target)
    }

    /// A request arrives; what its answer says, after as long as it takes.
    pub(crate) async fn send(&self) -> Observation {
        self.send_to(ROUTE).await
    }

    pub(crate) async fn send_to(&self, target: &str) -> Observation {
        let (response, now) = {
            let mut upstream = self.upstream.lock().unwrap();
            let now = self.now();
            let request = Request { method: "POST", target, credential: Some("Bot t"), body: b"" };
            (upstream.answer(&request, Timestamp::MIN.after(now)), now)
        };
        if !response.delay.is_zero() {
            tokio::time::sleep(response.delay).await;
        }
        let lines = response.fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let lines: Lines<'_> = lines.collect();
        let body = response.body.as_bytes();
        self.profile.read(&Response { status: response.status, lines: &lines, body, now })
    }

    /// Claims, sends and learns, once.
    pub(crate) async fn call(&self, ledger: &RedisLedger) -> Observation {
        let permit = claim_on(ledger, self.route()).await;
        let observation = self.send().await;
        permit.complete(&observation);
        observation
    }

    /// The same over a slow network: the request and its answer are under way for so long each.
    pub(crate) async fn call_slowly(&self, ledger: &RedisLedger, there: Duration, back: Duration) {
        let called = self.call_to(ROUTE, ledger, [there, back]);
        tokio::time::timeout(PATIENCE, called).await.expect("a permit comes in time");
    }

    /// The same to any target, by any ledger.
    pub(crate) async fn call_to(
        &self,
        target: &str,
        ledger: &dyn budget::Ledger,
        [there, back]: [Duration; 2],
    ) {
        let claimed = ledger.claim(Claim::new(self.route_to(target))).await;
        let permit = claimed.expect("nothing refuses");
        tokio::time::sleep(there).await;
        let observation = self.send_to(target).await;
        tokio::time::sleep(back).await;
        permit.complete(&observation);
    }

    pub(crate) fn inject(&self, fault: Fault) {
        self.upstream.lock().unwrap().inject(fault);
    }

    pub(crate) fn counters(&self) -> Counters {
        let now = Timestamp::MIN.after(self.now());
        self.upstream.lock().unwrap().counters(now).clone()
    }

    fn now(&self) -> Duration {
        static EPOCH: std::sync::OnceLock<Duration> = std::sync::OnceLock::new();
        let epoch = EPOCH.get_or_init(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap());
        *epoch + self.start.elapsed()
    }
}

/// The description of an upstream whose messages have this limit.
pub(crate) fn spec(limit: &str) -> String {
    include_str!("messages.toml").replace("LIMIT", limit)
}
