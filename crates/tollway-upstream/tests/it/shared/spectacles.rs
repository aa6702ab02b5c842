//! A fleet of real Spectacles clients (`@spectacles/rest` 0.8.3 on ioredis 4) and ours, on the same
//! keys and the same upstream.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tollway_core::fields::Lines;
use tollway_sim::fake_api::loopback::Loopback;
use tollway_sim::fake_api::{Arrival, Spec};
use tollway_testkit::servers::Engine;
use tollway_upstream::profile::{Observation, Profile, Response};
use tollway_upstream::shared::RedisLedger;

use super::stage::{PATIENCE, ROUTE, Stage, claim, profile, settings, spec, until};

/// Where `scripts/install-spectacles` puts the peer; none if it was not run.
fn modules() -> Option<PathBuf> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/spectacles");
    let found = place.join("node_modules/@spectacles/rest").exists();
    let must = std::env::var_os("TOLLWAY_TOOLS").is_some();
    assert!(found || !must, "run scripts/install-spectacles");
    if !found {
        println!("@spectacles/rest is not installed: skipped");
    }
    found.then_some(place)
}

/// The peer at work, killed when dropped.
struct Peer(Child);

impl Peer {
    fn start(stage: &Stage, upstream: &Loopback, requests: usize, clients: usize) -> Option<Self> {
        let place = modules()?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/shared/spectacles.mjs");
        let redis_port = stage.url.rsplit(':').next().unwrap();
        let child = Command::new("node")
            .arg(script)
            .arg(place.canonicalize().unwrap())
            .args([redis_port, &stage.name, &upstream.address().port().to_string(), ROUTE])
            .args([requests.to_string(), clients.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Some(Self(child))
    }

    /// The lines it prints, until it is done.
    async fn lines(&mut self) -> Vec<String> {
        let out = self.0.stdout.take().unwrap();
        let read = tokio::task::spawn_blocking(move || {
            BufReader::new(out).lines().map_while(Result::ok).collect()
        });
        tokio::time::timeout(PATIENCE, read).await.expect("the peer is not stuck").unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn upstream(limit: &str) -> Loopback {
    let spec = Spec::from_toml(&spec(limit)).unwrap();
    Loopback::start(spec, ([127, 0, 0, 1], 0).into()).await.unwrap()
}

/// Sends one request of ours; what its answer says.
async fn send(profile: &Profile, client: &reqwest::Client, upstream: &Loopback) -> Observation {
    let url = format!("http://{}/api/v6{ROUTE}?tag=ours", upstream.address());
    let request = client.post(url).header("Authorization", "Bot t");
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let headers = response.headers().clone();
    let body = response.bytes().await.unwrap();
    let lines = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    let lines: Lines<'_> = lines.collect();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    profile.read(&Response { status, lines: &lines, body: &body, now })
}

async fn call(ledger: RedisLedger, upstream: Arc<Loopback>, client: reqwest::Client) {
    let permit = claim(&ledger).await;
    let observation = send(&profile(), &client, &upstream).await;
    permit.complete(&observation);
}

#[tokio::test(flavor = "multi_thread")]
async fn our_processes_share_a_bucket_with_spectacles_clients_and_none_of_ours_is_refused_first() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(Duration::from_secs(2))).await;
        let other = stage.process().await;
        let upstream = Arc::new(upstream(r#"limit = 5, per = "1s""#).await);
        let Some(mut peer) = Peer::start(&stage, &upstream, 10, 2) else { return };
        until("the peer has begun", async || upstream.counters().requests > 0).await;
        let client = reqwest::Client::new();
        let ours: Vec<_> = [&stage.ledger, &other]
            .into_iter()
            .cycle()
            .take(10)
            .map(|ledger| tokio::spawn(call(ledger.clone(), Arc::clone(&upstream), client.clone())))
            .collect();
        for call in ours {
            tokio::time::timeout(PATIENCE, call).await.expect("ours are not stuck").unwrap();
        }
        let lines = peer.lines().await;
        let counters = upstream.counters();
        assert!(counters.buckets.values().any(|bucket| bucket.requests >= 11), "it is counted");
        // The peer's own mistakes (a 429 makes it write a limit of 0 and an end of 1 ms) may bring
        // refusals to both after one of its own.
        let refused = counters.arrivals.iter().find(|arrival| arrival.status == 429);
        let is_ours = |arrival: &&Arrival| arrival.tag.as_deref() == Some("ours");
        let before = counters.arrivals.iter().take_while(|it| it.status != 429 || is_ours(it));
        let ours = before.filter(|arrival| arrival.status == 429).count();
        assert!(ours == 0, "{engine:?}: {:?}", counters.arrivals);
        let done = lines.iter().filter(|line| line.starts_with("done")).count();
        assert!(done == 10 || refused.is_some(), "{engine:?}: the peer is not held up by us");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_peers_own_deadlock_is_healed_for_the_peer_and_for_us() {
    for engine in Engine::available() {
        let stage = Stage::new(engine, settings(Duration::from_millis(600))).await;
        let upstream = upstream(r#"limit = 5, per = "1s""#).await;
        // What its set() leaves behind when the last answer of a window comes after the window:
        // PEXPIRE finds nothing, then SET NX writes a counter without an end.
        let _: () = stage.tell(&format!("SET ${ROUTE}:limit 5")).await;
        let _: () = stage.tell(&format!("SET ${ROUTE}:remaining 0 NX")).await;
        let Some(mut peer) = Peer::start(&stage, &upstream, 6, 1) else { return };
        let lines = peer.lines().await;
        assert!(lines.iter().any(|line| line.starts_with("all")), "{engine:?}: {lines:?}");
        // And for us, with nobody else there.
        let _: () = stage.tell(&format!("DEL ${ROUTE}:remaining $tollway:budgets:{ROUTE}")).await;
        let _: () = stage.tell(&format!("SET ${ROUTE}:remaining 0 NX")).await;
        drop(claim(&stage.ledger).await);
    }
}
