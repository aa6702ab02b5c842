//! The proxy and the fake upstream as a user starts them: own processes, real ports, a real Redis.

// What the proxy tells people: its log and its page.
mod seen;
// Beside old clients on the same keys.
mod spectacles;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tollway_testkit::servers::{Engine, Server};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The binary at work; it ends with the test.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) url: String,
    /// Held open: it may have more to say.
    out: BufReader<ChildStdout>,
}

impl Running {
    /// Starts it and reads where it listens from its first line.
    pub(crate) fn start(arguments: &[&str], token: Option<&str>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        if let Some(token) = token {
            command.env("TOLLWAY_ADMIN_TOKEN", token);
        }
        Self::spawn(&mut command)
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let url = line.split_whitespace().last().unwrap_or_default().to_owned();
        assert!(url.starts_with("http://"), "{command:?} said {line:?}");
        Self { child, url, out }
    }

    /// What the next line ends with.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.split_whitespace().last().unwrap_or_default().to_owned()
    }

    /// Where a proxy says that its own pages are.
    pub(crate) fn admin(&mut self) -> String {
        let mut line = String::new();
        while !line.starts_with("admin ") {
            line.clear();
            assert_ne!(self.out.read_line(&mut line).unwrap(), 0, "no word of the own pages");
        }
        line.split_whitespace().last().unwrap_or_default().to_owned()
    }

    pub(crate) fn fake(arguments: &[&str]) -> Self {
        Self::start(&[&["fake-upstream", "--listen", "127.0.0.1:0"], arguments].concat(), None)
    }

    fn proxy(upstream: &Self, arguments: &[&str]) -> Self {
        let url = upstream.url.as_str();
        let fixed = ["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let fixed = [&fixed[..], &["--profile", "discord", "--upstream", url]].concat();
        Self::start(&[&fixed, arguments].concat(), None)
    }

    pub(crate) async fn counters(&self) -> Value {
        let text = reqwest::get(format!("{}/_fake/counters", self.url)).await.unwrap();
        serde_json::from_str(&text.text().await.unwrap()).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn limited(counters: &Value) -> u64 {
    ["bucket", "global", "sub", "shared"]
        .iter()
        .map(|kind| counters[format!("limited_{kind}")].as_u64().unwrap())
        .sum()
}

async fn post(client: &reqwest::Client, base: &str, channel: usize) -> Result<u16, String> {
    let request = client
        .post(format!("{base}/api/v10/channels/{channel}/messages"))
        .header("authorization", "Bot fleet")
        .body("{}")
        .timeout(PATIENCE);
    Ok(request.send().await.map_err(|error| error.to_string())?.status().as_u16())
}

#[tokio::test]
async fn one_proxy_of_three_is_killed_in_a_burst_and_nobody_stalls() {
    let redis = Server::start(Engine::Redis, &[]);
    let fake = Running::fake(&["--faster", "5"]);
    let store = redis.url();
    let mut proxies: Vec<Running> =
        (0..3).map(|_| Running::proxy(&fake, &["--store", &store])).collect();
    let urls: Arc<Vec<String>> = Arc::new(proxies.iter().map(|proxy| proxy.url.clone()).collect());
    let client = reqwest::Client::new();
    let served = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..60 {
        let (client, urls, served) = (client.clone(), Arc::clone(&urls), Arc::clone(&served));
        tasks.spawn(async move {
            // A client whose proxy dies turns to the next one.
            let mut tries = number % 3..number % 3 + 3;
            let status = loop {
                let at = tries.next().expect("two proxies live") % 3;
                if let Ok(status) = post(&client, &urls[at], number % 4).await {
                    break status;
                }
            };
            served.fetch_add(1, Ordering::SeqCst);
            status
        });
    }
    let deadline = Instant::now() + PATIENCE;
    while served.load(Ordering::SeqCst) < 15 {
        assert!(Instant::now() < deadline, "the burst never began");
        tokio::task::yield_now().await;
    }
    proxies[2].child.kill().unwrap();
    while let Some(status) = tasks.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
    let counters = fake.counters().await;
    assert!(limited(&counters) <= 1, "one cause, at most one 429: {counters}");
}

#[tokio::test]
async fn a_credential_is_in_nothing_that_the_proxy_writes() {
    let fake = Running::fake(&[]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    command
        .args(["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--patience", "1s"])
        .args(["--profile", "discord", "--upstream", &fake.url])
        .env("RUST_LOG", "trace")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut proxy = Running::spawn(&mut command);
    let mut said = proxy.child.stderr.take().unwrap();
    let client = reqwest::Client::new();
    for channel in [1, 40_300] {
        post(&client, &proxy.url, channel).await.unwrap();
    }
    // A request that fails is told about most.
    drop(fake);
    assert_eq!(post(&client, &proxy.url, 1).await, Ok(502));
    proxy.child.kill().unwrap();
    let mut written = String::new();
    proxy.out.read_to_string(&mut written).unwrap();
    said.read_to_string(&mut written).unwrap();
    assert!(!written.contains("fleet"), "{written}");
}

#[tokio::test]
async fn the_budget_of_invalid_requests_outlives_a_restart() {
    let fake = Running::fake(&[]);
    let file = std::env::temp_dir().join(format!("tollway-invalid-{}", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let arguments = ["--state", file.to_str().unwrap(), "--invalid", "20/10m"];
    let client = reqwest::Client::new();
    let mut proxy = Running::proxy(&fake, &arguments);
    for number in 0..19 {
        assert_eq!(post(&client, &proxy.url, 40_300 + number).await, Ok(403));
    }
    assert_eq!(post(&client, &proxy.url, 1).await, Ok(503), "one is kept for the urgent");
    // SIGTERM: it finishes its work and writes the file.
    let id = proxy.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert!(proxy.child.wait().unwrap().success());
    let again = Running::proxy(&fake, &arguments);
    let mut status = Ok(200);
    // What was counted is read in the background right after the start.
    let deadline = Instant::now() + PATIENCE;
    while status != Ok(503) && Instant::now() < deadline {
        status = post(&client, &again.url, 1).await;
    }
    assert_eq!(status, Ok(503));
    let _ = std::fs::remove_file(&file);
}

#[tokio::test]
async fn the_budget_of_invalid_requests_is_one_for_all_proxies_on_a_store() {
    let redis = Server::start(Engine::Redis, &[]);
    let fake = Running::fake(&[]);
    let store = redis.url();
    let arguments = ["--store", &*store, "--invalid", "20/10m"];
    let proxies = [Running::proxy(&fake, &arguments), Running::proxy(&fake, &arguments)];
    let client = reqwest::Client::new();
    for number in 0..19 {
        let url = &proxies[number % 2].url;
        assert_eq!(post(&client, url, 40_300 + number).await, Ok(403), "{number}");
    }
    // One is kept for the urgent. What the other has counted is looked up in the background.
    for proxy in &proxies {
        let deadline = Instant::now() + PATIENCE;
        while post(&client, &proxy.url, 1).await != Ok(503) {
            assert!(Instant::now() < deadline, "each counts for itself");
        }
    }
}

#[tokio::test]
async fn a_proxy_starts_without_its_store() {
    let fake = Running::fake(&[]);
    let away = format!("redis://127.0.0.1:{}", tollway_testkit::servers::free_port());
    let mut proxy = Running::proxy(&fake, &["--store", &away]);
    let health = reqwest::get(format!("{}/healthz", proxy.admin())).await.unwrap();
    assert_eq!(health.status(), 200);
}

#[test]
fn other_machines_are_not_listened_to_by_accident() {
    let public = ["proxy", "--upstream", "http://127.0.0.1:1", "--listen", "0.0.0.0:0"];
    let said = crate::tool::fail(&public);
    assert!(said.contains("--listen-public") && said.contains("TOLLWAY_ADMIN_TOKEN"), "{said}");
    let said = crate::tool::fail(&["proxy", "--upstream", "ftp://x"]);
    assert!(said.contains("neither http nor https"), "{said}");
    let said = crate::tool::fail(&["proxy", "--upstream", "http://x", "--profile", "nosuch"]);
    assert!(said.contains("discord"), "{said}");
    let said = crate::tool::fail(&["proxy", "--upstream", "http://x", "--profile", "dicsord"]);
    assert!(said.contains("did you mean \"discord\""), "{said}");
    let said = crate::tool::fail(&["fake-upstream", "--listen", "0.0.0.0:0"]);
    assert!(said.contains("loopback"), "{said}");
    let _started = Running::start(&[public.as_slice(), &["--workers", "1"]].concat(), Some("t"));
}

#[tokio::test]
async fn the_own_pages_are_on_an_address_of_their_own_or_under_a_prefix() {
    let fake = Running::fake(&[]);
    let mut apart = Running::proxy(&fake, &[]);
    let admin = apart.admin();
    let prefixed = ["--listen", "127.0.0.1:0", "--admin", "/-/tollway", "--upstream", &fake.url];
    let mut prefixed =
        Running::start(&[&["proxy", "--profile", "discord"], &prefixed[..]].concat(), None);
    let under = prefixed.admin();
    assert_eq!(under, format!("{}/-/tollway", prefixed.url));
    let is_theirs = async |url: String| {
        reqwest::get(url).await.unwrap().headers().contains_key("x-tollway-waited")
    };
    for page in ["/admin/buckets", "/metrics", "/healthz"] {
        assert!(is_theirs(format!("{}{page}", apart.url)).await, "{page}");
        assert!(is_theirs(format!("{}{page}", prefixed.url)).await, "{page}");
        assert!(!is_theirs(format!("{admin}{page}")).await, "{page}");
        assert!(!is_theirs(format!("{under}{page}")).await, "{page}");
    }
    let said = crate::tool::fail(&["proxy", "--upstream", "http://x", "--admin", "/"]);
    assert!(said.contains("/-/tollway"), "{said}");
    let taken = admin.trim_start_matches("http://");
    let said = crate::tool::fail(&["proxy", "--upstream", "http://x", "--admin", taken]);
    assert!(said.contains(taken), "{said}");
}

/// Two proxies on one machine, of which neither says where its pages are.
#[test]
fn a_default_address_that_is_taken_is_no_reason_not_to_start() {
    // Taken by us, or by another test, or by whoever uses this machine.
    let _taken = std::net::TcpListener::bind("127.0.0.1:8091");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    command.args(["proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut proxy = Running::spawn(&mut command);
    let admin = proxy.admin();
    assert!(!admin.ends_with(":8091"), "{admin}");
    let mut said = String::new();
    BufReader::new(proxy.child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let found = admin.trim_start_matches("http://");
    assert!(said.contains(" WARN ") && said.contains(found) && said.contains("8091"), "{said}");
}

/// The metric that counts what the store did not answer.
const STORE_ERRORS: &str = "tollway_proxy_store_errors_total ";

/// Kills Redis while a proxy works, scrapes before, meanwhile and after, and has the alerts that
/// are shipped judge what was scraped.
#[tokio::test]
async fn an_outage_of_the_store_is_told_once_and_fires_its_alert_while_requests_go_on() {
    let mut redis = Server::start(Engine::Redis, &[]);
    redis.kill();
    let folder = crate::serve::Folder::new("proxy-outage");
    let log = folder.0.join("log");
    let fake = Running::fake(&["--faster", "5"]);
    let url = redis.url();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    command.args(["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.args(["--profile", "discord"]);
    command.args(["--upstream", &fake.url, "--store", &url]).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(std::fs::File::create(&log).unwrap());
    let mut proxy = Running::spawn(&mut command);
    let admin = proxy.admin();
    let client = reqwest::Client::new();
    let page = async |path: &str| {
        let answer = client.get(format!("{admin}{path}")).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        answer.text().await.unwrap()
    };
    let until = async |value: &str| {
        let start = Instant::now();
        while !page("/metrics").await.contains(&format!("tollway_proxy_store_up {value}")) {
            assert!(start.elapsed() < PATIENCE, "the gauge never was {value}");
            tokio::task::yield_now().await;
        }
    };
    until("0").await;
    assert_eq!(post(&client, &proxy.url, 1).await, Ok(200), "it starts without, and serves");
    redis.restart();
    until("1").await;
    let mut scrapes = Vec::new();
    for (times, act) in [(3, "kill"), (6, "restart"), (10, "")] {
        for _ in 0..times {
            assert_eq!(post(&client, &proxy.url, 1).await, Ok(200));
            scrapes.push(page("/metrics").await);
        }
        match act {
            "kill" => {
                redis.kill();
                until("0").await;
                let ready = page("/readyz").await;
                assert!(ready.starts_with("ready\nstore down for "), "{ready}");
                assert!(
                    ready.contains("the store"),
                    "without a token this machine may know: {ready}"
                );
            }
            "restart" => {
                redis.restart();
                until("1").await;
                assert_eq!(page("/readyz").await, "ready\nstore up\n");
            }
            _ => {}
        }
    }
    let counted = scrapes.last().unwrap().lines().find(|line| line.contains("store_errors_total "));
    assert!(!counted.unwrap().ends_with(" 0"), "{counted:?}");
    let lines = |told: &str, level: &str, text: &str| {
        told.lines().filter(|line| line.contains(level) && line.contains(text)).count()
    };
    // The log is told once a second.
    let start = Instant::now();
    loop {
        let told = std::fs::read_to_string(&log).unwrap();
        let began = lines(&told, " WARN ", "the store does not answer");
        let ended = lines(&told, " INFO ", "the store answers again");
        if (began, ended) == (2, 2) {
            break;
        }
        assert!(began <= 2 && ended <= 2, "at the start and when it was killed: {told}");
        assert!(start.elapsed() < PATIENCE, "at the start and when it was killed: {told}");
        page("/readyz").await;
    }
    // What the ends of both outages tell is what the metric counts.
    let told = std::fs::read_to_string(&log).unwrap();
    let told: u64 = told
        .split("unanswered=")
        .skip(1)
        .filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .sum();
    let counted = page("/metrics").await;
    let counted = counted.lines().find_map(|line| line.strip_prefix(STORE_ERRORS)).unwrap();
    assert_eq!(told.to_string(), counted.trim());
    crate::outage::judge(&folder.0, &scrapes, &["TollwayProxyStoreDown"]);
}

#[test]
fn a_proxy_that_requires_its_store_does_not_start_without() {
    let away = format!("redis://127.0.0.1:{}", tollway_testkit::servers::free_port());
    let fixed = ["proxy", "--upstream", "http://127.0.0.1:1", "--listen", "127.0.0.1:0"];
    let required = ["--store", &away, "--store-required"];
    let said = crate::tool::fail(&[fixed.as_slice(), &required].concat());
    assert!(said.contains("--store: the store cannot be reached"), "{said}");
    assert_eq!(said.matches("refused").count(), 1, "the cause once: {said}");
}
