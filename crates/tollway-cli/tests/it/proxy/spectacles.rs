//! The proxy beside Spectacles clients on the same keys: real ones from npm, and the script of the
//! specification.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollway_testkit::servers::{Engine, Server, tell};

use super::{PATIENCE, Running};
use crate::serve::Folder;

const ROUTE: &str = "/channels/81384788765712384/messages";

/// Discord's fields and its way to refuse; five messages a second.
const UPSTREAM: &str = r#"
fields = [
    ["X-RateLimit-Limit", "limit"],
    ["X-RateLimit-Remaining", "remaining"],
    ["X-RateLimit-Reset", "reset-epoch-decimal"],
    ["X-RateLimit-Reset-After", "reset-after-decimal"],
    ["X-RateLimit-Bucket", "bucket"],
    ["Via", "=1.1 google"],
]
denied-fields = [["Retry-After", "retry-seconds"], ["X-RateLimit-Scope", "scope"]]
denied-body = '{"message":"limited","retry_after":{retry},"global":false}'
[buckets]
messages = { limit = 5, per = "1s", window = "fixed" }
[[routes]]
method = "POST"
path = "/channels/{+channel}/messages"
bucket = "messages"
"#;

/// The script of the first version of the specification: 0, or how long to wait in milliseconds.
const SCRIPT: &str = "local held = redis.call('PTTL', KEYS[3]) if held > 0 then return held end \
    local left = tonumber(redis.call('GET', KEYS[1])) \
    if left == nil then local limit = tonumber(redis.call('GET', KEYS[2])) or 1 \
    redis.call('SET', KEYS[1], limit - 1) return 0 end \
    local ttl = redis.call('PTTL', KEYS[1]) \
    if left <= 0 then if ttl < 0 then return 1000 end return ttl end \
    redis.call('SET', KEYS[1], left - 1) \
    if ttl > 0 then redis.call('PEXPIRE', KEYS[1], ttl) end return 0";

struct Scene {
    redis: Server,
    fake: Running,
    _folder: Folder,
}

impl Scene {
    fn new(engine: Engine) -> Self {
        let folder = Folder::new(&format!("proxy-spectacles-{engine:?}"));
        let spec = folder.file("upstream.toml", UPSTREAM);
        let fake =
            Running::start(&["fake-upstream", "--listen", "127.0.0.1:0", "--spec", &spec], None);
        Self { redis: Server::start(engine, &[]), fake, _folder: folder }
    }

    fn proxy(&self) -> Running {
        let arguments =
            ["--store", &self.redis.url(), "--naming", "spectacles", "--prefix", "bot1"];
        Running::proxy(&self.fake, &arguments)
    }

    /// Which of the requests that the upstream refused were sent through the proxy.
    async fn refused(&self) -> Vec<String> {
        let counters = self.fake.counters().await;
        let arrivals = counters["arrivals"].as_array().unwrap().clone();
        let refused = arrivals.into_iter().filter(|arrival| arrival["status"] == 429);
        refused.map(|arrival| arrival["tag"].as_str().unwrap_or_default().to_owned()).collect()
    }
}

/// Where `scripts/install-spectacles` puts the peer; none if it was not run.
fn modules() -> Option<PathBuf> {
    let place = crate::face::root().join("target/spectacles");
    let found = place.join("node_modules/@spectacles/rest").exists();
    assert!(found || std::env::var_os("TOLLWAY_TOOLS").is_none(), "run scripts/install-spectacles");
    if !found {
        println!("skipped: @spectacles/rest is missing: run scripts/install-spectacles");
    }
    found.then_some(place)
}

/// A process that ends with the test.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn peer(modules: &Path, scene: &Scene) -> Peer {
    let script = crate::face::root().join("crates/tollway-upstream/tests/it/shared/spectacles.mjs");
    let upstream = scene.fake.url.rsplit(':').next().unwrap();
    let mut node = Command::new("node");
    node.arg(script).arg(modules).args([&scene.redis.port.to_string(), "bot1", upstream, ROUTE]);
    Peer(node.args(["10", "2"]).stdout(Stdio::null()).spawn().unwrap())
}

async fn send(client: reqwest::Client, url: String) -> u16 {
    let request =
        client.post(format!("{url}/api/v6{ROUTE}?tag=ours")).header("authorization", "Bot t");
    request.body("{}").timeout(PATIENCE).send().await.unwrap().status().as_u16()
}

async fn send_all(proxies: &[Running], count: usize) {
    let client = reqwest::Client::new();
    let calls: Vec<_> = proxies
        .iter()
        .cycle()
        .take(count)
        .map(|proxy| tokio::spawn(send(client.clone(), proxy.url.clone())))
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_proxies_share_a_bucket_with_real_spectacles_clients() {
    let Some(modules) = modules() else { return };
    for engine in Engine::available() {
        let scene = Scene::new(engine);
        let proxies = [scene.proxy(), scene.proxy()];
        let mut peer = peer(&modules, &scene);
        send_all(&proxies, 10).await;
        let ended = tokio::task::spawn_blocking(move || peer.0.wait()).await.unwrap().unwrap();
        assert!(ended.success());
        // A 429 of the peer's own makes it write a limit of 0 and an end of 1 ms: what comes after
        // is its doing, whoever is refused.
        let first = scene.refused().await.into_iter().next();
        assert_ne!(first.as_deref(), Some("ours"), "{engine:?}: ours is not refused first");
        let keys = tell(scene.redis.port, &["KEYS", "bot1:*"]).unwrap();
        assert!(keys.contains(&format!("bot1:{ROUTE}:limit")), "{engine:?}: {keys}");
        let all = tell(scene.redis.port, &["KEYS", "*"]).unwrap();
        assert!(!all.contains("{"), "{engine:?}: no key of another prefix: {all}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn beside_claims_by_the_script_of_the_specification_no_request_is_too_many() {
    for engine in Engine::available() {
        let scene = Scene::new(engine);
        let proxy = scene.proxy();
        // The limit and its window are known, as in a fleet that runs.
        send_all(std::slice::from_ref(&proxy), 1).await;
        let stop = Arc::new(AtomicBool::new(false));
        let others =
            tokio::spawn(claims(scene.redis.port, scene.fake.url.clone(), Arc::clone(&stop)));
        send_all(std::slice::from_ref(&proxy), 20).await;
        stop.store(true, Ordering::Relaxed);
        let ended = tokio::time::timeout(PATIENCE, others).await;
        ended.expect("it is not held up for good").unwrap();
        let refused = scene.refused().await;
        let ours = refused.iter().filter(|tag| *tag == "ours").count();
        assert_eq!(ours, 0, "{engine:?}: {refused:?}");
    }
}

/// Claims by the script and sends what it grants, until it is told to stop and was served. It
/// tells the ends of windows as the specification says: the time that the answer tells.
async fn claims(port: u16, upstream: String, stop: Arc<AtomicBool>) {
    let client = reqwest::Client::new();
    let keys = ["remaining", "limit"].map(|end| format!("bot1:{ROUTE}:{end}"));
    let mut was_served = false;
    while !was_served || !stop.load(Ordering::Relaxed) {
        let command = ["EVAL", SCRIPT, "3", &keys[0], &keys[1], "bot1:global"];
        let wait = tell(port, &command).unwrap();
        let wait: u64 = wait.trim().trim_start_matches(':').parse().unwrap();
        if wait > 0 {
            // In its last millisecond a key has a PTTL of 0, which the script takes for a yes.
            tokio::time::sleep(Duration::from_millis(wait + 5)).await;
            continue;
        }
        let request = client.post(format!("{upstream}/api/v6{ROUTE}?tag=script"));
        let answer = request.header("authorization", "Bot t").body("{}").send().await.unwrap();
        was_served = true;
        let told = |name: &str| answer.headers().get(name).and_then(|it| it.to_str().ok());
        let after = told("x-ratelimit-reset-after").and_then(|it| it.parse::<f64>().ok());
        if let (Some(after), Some(limit)) = (after, told("x-ratelimit-limit")) {
            let after_ms = ((after * 1e3).ceil() as u64).max(1).to_string();
            tell(port, &["PEXPIRE", &keys[0], &after_ms]).unwrap();
            tell(port, &["SET", &keys[1], limit]).unwrap();
        }
    }
}

#[test]
fn keys_of_others_are_checked_before_anything_starts() {
    let fixed = ["proxy", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"];
    for (arguments, complaint) in [
        (&["--naming", "spectacles"][..], "--store"),
        (&["--naming", "other", "--store", "redis://h"], "spectacles"),
        (&["--store", "redis+cluster://h", "--naming", "spectacles", "--prefix", "b"], "hash tag"),
        (&["--store", "redis://h", "--spectacles-version", "later"], "--naming spectacles"),
    ] {
        let said = crate::tool::fail(&[&fixed, arguments].concat());
        assert!(said.contains(complaint), "{arguments:?}: {said}");
    }
}
