//! Three clients, twelve requests, three per 400 ms: ours, and the npm client beside it.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollway_core::fields::Lines;
use tollway_sim::fake_api::Spec;
use tollway_sim::fake_api::loopback::Loopback;
use tollway_testkit::servers::{Engine, Server};
use tollway_upstream::budget::{Claim, Ledger as _};
use tollway_upstream::profile::{Profile, Response};
use tollway_upstream::shared::{Fleet, Naming, Prefix, RedisLedger, Settings};

const ROUTE: &str = "/channels/81384788765712384/messages";
const SPEC: &str = include_str!("../../tests/it/shared/messages.toml");

pub(crate) async fn run(engine: Engine) {
    let server = Server::start(engine, &[]);
    println!("three clients, twelve requests, three per 400 ms; the optimum is 1200 ms");
    for round in 0..3 {
        let (ours, refused) = ours(&server, &format!("ours{round}")).await;
        println!("  ours              {:>5} ms, {refused} refused", ours.as_millis());
    }
    match peer(&server).await {
        Some((took, refused)) => println!("  @spectacles/rest  {took:>5} ms, {refused} refused"),
        None => println!("  @spectacles/rest is not installed: scripts/install-spectacles"),
    }
}

async fn upstream() -> Arc<Loopback> {
    let spec = Spec::from_toml(&SPEC.replace("LIMIT", r#"limit = 3, per = "400ms""#)).unwrap();
    Arc::new(Loopback::start(spec, ([127, 0, 0, 1], 0).into()).await.unwrap())
}

async fn ours(server: &Server, name: &str) -> (Duration, u64) {
    let upstream = upstream().await;
    let profile = Profile::builtin("discord").unwrap();
    let mut ledgers = Vec::new();
    for _ in 0..3 {
        let settings = Settings { naming: Naming::Spectacles, ..Settings::default() };
        let fleet = Fleet::connect(&server.url(), settings).await.unwrap();
        ledgers.push(fleet.ledger(Prefix::named(name), Arc::clone(&profile)).await.unwrap());
    }
    let client = reqwest::Client::new();
    let start = Instant::now();
    let calls: Vec<_> = ledgers
        .iter()
        .cycle()
        .take(12)
        .map(|ledger| {
            let (ledger, upstream) = (ledger.clone(), Arc::clone(&upstream));
            tokio::spawn(call(ledger, upstream, client.clone(), Arc::clone(&profile)))
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    (start.elapsed(), upstream.counters().limited_all())
}

async fn call(
    ledger: RedisLedger,
    upstream: Arc<Loopback>,
    client: reqwest::Client,
    profile: Arc<Profile>,
) {
    let permit = ledger.claim(Claim::new(profile.route("POST", ROUTE))).await.unwrap();
    let url = format!("http://{}/api/v6{ROUTE}", upstream.address());
    let response = client.post(url).header("Authorization", "Bot t").send().await.unwrap();
    let lines: Lines<'_> =
        response.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let status = response.status().as_u16();
    permit.complete(&profile.read(&Response { status, lines: &lines, body: b"", now }));
}

async fn peer(server: &Server) -> Option<(u64, u64)> {
    let upstream = upstream().await;
    let crate_place = Path::new(env!("CARGO_MANIFEST_DIR"));
    let modules = crate_place.join("../../target/spectacles").canonicalize().ok()?;
    let mut node = Command::new("node");
    node.arg(crate_place.join("tests/it/shared/spectacles.mjs")).arg(modules);
    node.args([&server.port.to_string(), "peer", &upstream.address().port().to_string(), ROUTE]);
    node.args(["12", "3"]);
    let output = tokio::task::spawn_blocking(move || node.output()).await.ok()?.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let took = text.lines().find_map(|line| line.strip_prefix("all "))?.parse().ok()?;
    Some((took, upstream.counters().limited_all()))
}
