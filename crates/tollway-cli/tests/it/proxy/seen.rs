//! What the proxy tells people: a line for each change, and none that tells a secret.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use tollway_testkit::servers::{Engine, Server, eventually, free_port};

use super::{PATIENCE, Running, post};
use crate::serve::Folder;

/// A proxy whose log goes to a file.
struct Logged {
    proxy: Running,
    admin: String,
    log: PathBuf,
}

impl Logged {
    fn start(folder: &Folder, upstream: &str, arguments: &[&str]) -> Self {
        let log = folder.0.join("log");
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        command.args(["proxy", "--profile", "discord", "--upstream", upstream]);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(File::create(&log).unwrap());
        let mut proxy = Running::spawn(&mut command);
        let admin = proxy.line();
        Self { proxy, admin, log }
    }

    fn lines(&self, text: &str) -> Vec<String> {
        let told = std::fs::read_to_string(&self.log).unwrap();
        told.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    fn until(&self, text: &str) -> String {
        eventually(PATIENCE, || !self.lines(text).is_empty());
        self.lines(text).remove(0)
    }

    /// Sends a first request, and checks what is told of its bucket.
    async fn learns(&self, client: &reqwest::Client) {
        assert_eq!(post(client, &self.proxy.url, 1).await, Ok(200));
        let learned = self.until("bucket learned");
        for part in ["INFO", "limit=5", "POST /channels/:major/messages", "credential=\""] {
            assert!(learned.contains(part), "{part} in {learned}");
        }
    }

    async fn status(&self) -> Value {
        self.page("status").await
    }

    async fn page(&self, name: &str) -> Value {
        let answer = reqwest::get(format!("{}/admin/{name}", self.admin)).await.unwrap();
        assert_eq!(answer.status().as_u16(), 200, "{name}");
        serde_json::from_str(&answer.text().await.unwrap()).unwrap()
    }

    /// Waits until some bucket's requests wait for one of these causes; that bucket.
    async fn until_why(&self, causes: &[&str]) -> Value {
        let start = Instant::now();
        loop {
            let page = self.page("buckets").await;
            let is_cause = |why: &Value| causes.contains(&why["cause"].as_str().unwrap());
            let buckets = page["buckets"].as_array().unwrap();
            let found =
                buckets.iter().find(|it| it["why"].as_array().unwrap().iter().any(is_cause));
            if let Some(found) = found {
                return found.clone();
            }
            assert!(start.elapsed() < PATIENCE, "none waits for {causes:?}: {page}");
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_a_line_and_none_tells_a_secret() {
    let folder = Folder::new("proxy-log");
    let place = format!("127.0.0.1:{}", free_port());
    let upstream = ["fake-upstream", "--profile", "discord", "--listen", &place];
    let fake = Running::start(&upstream, None);
    let url = fake.url.clone();
    let logged = Logged::start(&folder, &url, &[]);
    let started = logged.until("started");
    let address = logged.proxy.url.trim_start_matches("http://");
    for part in [&url, "profile=\"discord\"", "store=\"memory\"", address, "admin=127.0.0.1:"] {
        assert!(started.contains(part), "{part} in {started}");
    }
    let client = reqwest::Client::new();
    logged.learns(&client).await;
    // Somebody else spends what is left, so that a request of ours is refused.
    for _ in 0..4 {
        assert_eq!(post(&client, &url, 1).await, Ok(200));
    }
    assert_eq!(post(&client, &logged.proxy.url, 1).await, Ok(200), "it waits and is sent again");
    let refused = logged.until("refused by the upstream");
    assert!(refused.contains("WARN") && refused.contains("wait_ms="), "{refused}");
    let token = format!("hush1{}", "hush".repeat(16));
    let webhook = format!("{}/api/v10/webhooks/7/{token}", logged.proxy.url);
    let hook = client.post(webhook).header("authorization", "Bot hush-hush").body("{}");
    assert_eq!(hook.send().await.unwrap().status().as_u16(), 204);
    eventually(PATIENCE, || logged.lines("/webhooks/").len() == 1);
    drop(fake);
    let dead = client.get(format!("{}/api/v10/gateway", logged.proxy.url));
    let dead = dead.header("x-tollway-deadline", "0.2").send().await.unwrap();
    assert!(dead.status().is_server_error(), "{dead:?}");
    let down = logged.until("upstream down");
    assert!(down.contains("reason=\"Connection refused"), "{down}");
    let status = logged.status().await;
    assert_eq!(status["upstream"]["up"], false, "{status}");
    let _again = Running::start(&upstream, None);
    eventually(PATIENCE, || {
        tokio::task::block_in_place(|| {
            let sent = client.get(format!("{}/api/v10/gateway", logged.proxy.url)).send();
            let _ = tokio::runtime::Handle::current().block_on(sent);
        });
        !logged.lines("upstream up again").is_empty()
    });
    let status = logged.status().await;
    assert_eq!(status["upstream"]["up"], true, "{status}");
    let kinds: Vec<&str> = status["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["what"].as_str().unwrap())
        .collect();
    for kind in ["bucket learned", "refused by the upstream", "upstream down"] {
        assert!(kinds.contains(&kind), "{kind} in {kinds:?}");
    }
    let told = std::fs::read_to_string(&logged.log).unwrap();
    for secret in ["hush", "fleet"] {
        assert!(!told.contains(secret) && !status.to_string().contains(secret), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_store_changes_are_told_and_buckets_say_why_also_while_it_is_away() {
    let folder = Folder::new("proxy-log-store");
    let mut redis = Server::start(Engine::Redis, &[]);
    let fake = Running::fake(&[]);
    let logged = Logged::start(&folder, &fake.url, &["--store", &redis.url()]);
    let client = reqwest::Client::new();
    logged.learns(&client).await;
    for _ in 0..4 {
        assert_eq!(post(&client, &fake.url, 1).await, Ok(200));
    }
    assert_eq!(post(&client, &logged.proxy.url, 1).await, Ok(200), "it waits and is sent again");
    logged.until("refused by the upstream");
    let waiting: Vec<_> = (0..30)
        .map(|_| {
            let (client, url) = (client.clone(), logged.proxy.url.clone());
            tokio::spawn(async move { post(&client, &url, 1).await })
        })
        .collect();
    let bucket = logged.until_why(&["spent", "blocked"]).await;
    assert_eq!(bucket["routes"][0], "POST /channels/:major/messages", "{bucket}");
    redis.kill();
    logged.until("the store does not answer");
    let bucket = logged.until_why(&["local-share"]).await;
    assert_eq!(bucket["routes"][0], "POST /channels/:major/messages", "{bucket}");
    assert_eq!(logged.status().await["store"]["up"], false);
    redis.restart();
    logged.until("the store answers again");
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), Ok(200));
    }
    assert_eq!(logged.status().await["store"]["up"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_that_is_refused_is_told_once_and_a_log_of_json_is_json() {
    let folder = Folder::new("proxy-log-json");
    let fake = Running::fake(&[]);
    let logged = Logged::start(&folder, &fake.url, &["--log-format", "json"]);
    let client = reqwest::Client::new();
    for _ in 0..6 {
        let url = format!("{}/api/v10/users/@me", logged.proxy.url);
        let answer = client.get(url).header("authorization", "Bot revoked-me").send().await;
        assert_eq!(answer.unwrap().status().as_u16(), 401);
    }
    logged.until("credential blocked");
    let lines: Vec<Value> = std::fs::read_to_string(&logged.log)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let is_block = |line: &&Value| line["fields"]["message"] == "credential blocked";
    let blocks: Vec<&Value> = lines.iter().filter(is_block).collect();
    assert_eq!(blocks.len(), 1, "{lines:?}");
    assert_eq!(blocks[0]["fields"]["credential"].as_str().unwrap().len(), 8);
    assert_eq!(blocks[0]["fields"]["wait_ms"], 60_000);
    assert!(!read(&logged.log).contains("revoked-me"));
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
