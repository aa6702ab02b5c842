//! Budgets of language models as a team has them: real SDKs, proxies that share a store, one of
//! which dies, and a store that is restarted.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::task::JoinSet;
use tollway_testkit::servers::{Engine, Server};

use crate::face::{peers, root, succeed};
use crate::proxy::Running;
use crate::serve::Folder;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Tokens that all teams have, for so long that a test does not see them come back.
const BUDGET: u64 = 40_000;
const STREAMS: u64 = 200;
const TOKENS: u64 = 600;

/// A file with one budget that this owner has.
fn budgets(folder: &Folder, owner: &str, counts: &str, limit: &str) -> String {
    let text = format!(
        "[[budgets]]\nname = 'b'\nowner = '{owner}'\ncounts = '{counts}'\nlimit = '{limit}'\n"
    );
    folder.file("budgets.toml", &text)
}

fn proxy(fake: &Running, profile: &str, budgets: &str, store: &str) -> Running {
    let fixed = ["proxy", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let of =
        ["--profile", profile, "--upstream", &fake.url, "--budgets", budgets, "--store", store];
    Running::start(&[&fixed[..], &of].concat(), None)
}

/// The SDKs read the same with a budget as without a proxy, but for the wait in line.
#[test]
fn sdks_read_the_same_under_a_budget_that_has_room() {
    let Some(place) = peers() else { return };
    for profile in ["openai", "anthropic"] {
        let folder = Folder::new(&format!("model-budgets-{profile}"));
        let rules = budgets(&folder, "credential", "total", "1000000/1d");
        let fake = Running::fake(&["--profile", profile, "--token-time", "1ms"]);
        let proxy = proxy(&fake, profile, &rules, "memory");
        let read = |address: &str| {
            let mut python = Command::new("python3");
            python.arg(root().join("crates/tollway-cli/tests/it/sdks/models.py"));
            succeed(python.args([profile, address]).env("PYTHONPATH", place.join("python")))
        };
        assert_eq!(read(&proxy.url), read(&fake.url));
    }
}

/// Tokens of a stream that arrived before it ended, was refused, or its proxy died.
async fn stream(client: reqwest::Client, url: String, leave_after: Option<u64>) -> u64 {
    let body = json!({"model": "m", "stream": true,
        "messages": [{"role": "user", "content": format!("Write {TOKENS} tokens")}]});
    let request = client.post(format!("{url}/v1/chat/completions")).header("x-team", "a");
    let Ok(mut response) = request.body(body.to_string()).send().await else { return 0 };
    if response.status() != 200 {
        return 0;
    }
    let mut read = Vec::new();
    let tokens = |read: &[u8]| {
        let read = String::from_utf8_lossy(read);
        // The first delta has no text.
        (read.matches("\"delta\":{\"content\":\"").count() as u64).saturating_sub(1)
    };
    while let Ok(Some(chunk)) = response.chunk().await {
        read.extend_from_slice(&chunk);
        if leave_after.is_some_and(|leave_after| tokens(&read) >= leave_after) {
            break;
        }
    }
    tokens(&read)
}

/// Tokens of output that a proxy has charged.
async fn output_of(admin: &str) -> u64 {
    let page = reqwest::get(format!("{admin}/metrics")).await.unwrap().text().await.unwrap();
    let name = "tollway_proxy_model_tokens_total{kind=\"output\"} ";
    let found = page.lines().find_map(|line| line.strip_prefix(name)?.parse::<f64>().ok());
    found.unwrap_or_else(|| panic!("{page}")) as u64
}

/// Streams at once on each of these proxies in turn, three of ten of which leave in the middle:
/// which proxy, and how many tokens arrived.
fn streams(client: &reqwest::Client, proxies: &[Running], count: u64) -> JoinSet<(usize, u64)> {
    let mut streams = JoinSet::new();
    for number in 0..count {
        let leave_after = (number % 10 < 3).then_some(20 + number);
        let place = number as usize % proxies.len();
        let read = stream(client.clone(), proxies[place].url.clone(), leave_after);
        streams.spawn(async move { (place, read.await) });
    }
    streams
}

#[tokio::test]
async fn a_fleet_that_loses_a_proxy_and_its_store_delivers_the_budget_and_no_more() {
    let mut redis =
        Server::start(Engine::Redis, &["--appendonly", "yes", "--appendfsync", "always"]);
    let folder = Folder::new("model-budgets-fleet");
    let rules = budgets(&folder, "header:x-team", "output", &format!("{BUDGET}/1d"));
    let spec = folder.file("models.toml", "[model]\napi = 'openai'\nevery = '1ms'\n");
    let fake = Running::fake(&["--spec", &spec]);
    let mut proxies: Vec<Running> =
        (0..3).map(|_| proxy(&fake, "generic", &rules, &redis.url())).collect();
    let (client, started) = (reqwest::Client::new(), Instant::now());
    let mut first = streams(&client, &proxies, STREAMS);
    let until_sent = async |wanted: u64| {
        while fake.counters().await["tokens_sent"].as_u64().unwrap() < wanted {
            assert!(started.elapsed() < PATIENCE, "the streams do not go on");
            tokio::task::yield_now().await;
        }
    };
    until_sent(BUDGET / 8).await;
    proxies.pop().unwrap().child.kill().unwrap();
    until_sent(BUDGET / 4).await;
    redis.restart();
    let (mut delivered, mut by_the_dead) = (0, 0);
    while let Some(read) = first.join_next().await {
        let (place, tokens) = read.unwrap();
        delivered += tokens;
        by_the_dead += if place == 2 { tokens } else { 0 };
    }
    // What those streams did not use is there for others.
    loop {
        assert!(started.elapsed() < 2 * PATIENCE, "{delivered} tokens, and still more");
        let more: u64 =
            streams(&client, &proxies, 40).join_all().await.iter().map(|(_, it)| it).sum();
        delivered += more;
        if more < BUDGET / 1_000 && delivered > BUDGET / 2 {
            break;
        }
    }
    let mut paid = by_the_dead;
    for proxy in &mut proxies {
        paid += output_of(&proxy.admin()).await;
    }
    let came_back = BUDGET * started.elapsed().as_secs() / 86_400 + 1;
    assert!(delivered <= BUDGET + came_back, "{delivered} tokens of {BUDGET}");
    // Until their leases end, steps of 16 tokens are lacking: one of each stream of the proxy that
    // died, and one of each whose answer the store did not give.
    assert!(paid >= BUDGET * 85 / 100, "{paid} tokens of {BUDGET} were of use");
}
