//! One rule each: rows of what real clients found on 2026-11-16, against the judging upstream.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::{self, StreamExt as _};
use serde_json::json;
use tokio::task::JoinHandle;
use tollway_testkit::servers::{Engine, Server, full};

use super::{Bound, Judge, PATIENCE, Record, pass};
use crate::proxy::Running;

/// A request: its method, its path and its JSON body.
pub(super) type Asked = (reqwest::Method, String, serde_json::Value);

/// Sends all requests, so many at once, spread over the proxies; how many got which status.
async fn send(proxies: &[String], at_once: usize, asked: Vec<Asked>) -> BTreeMap<String, usize> {
    let client = reqwest::Client::new();
    let calls = asked.into_iter().enumerate().map(|(number, (method, path, body))| {
        let (client, proxies) = (client.clone(), proxies);
        async move {
            // A client whose proxy dies turns to the next one.
            for turn in 0..proxies.len() {
                let url = format!("{}{path}", proxies[(number + turn) % proxies.len()]);
                let call = client.request(method.clone(), url).header("authorization", "Bot one");
                let call = call.header("content-type", "application/json").body(body.to_string());
                match call.timeout(PATIENCE).send().await {
                    Ok(answer) => return answer.status().as_u16().to_string(),
                    Err(error) if error.is_timeout() => return "timeout".to_owned(),
                    Err(_) => {}
                }
            }
            "unreachable".to_owned()
        }
    });
    let statuses: Vec<String> = stream::iter(calls).buffer_unordered(at_once).collect().await;
    let mut counts = BTreeMap::new();
    for status in statuses {
        *counts.entry(status).or_default() += 1;
    }
    counts
}

/// The same at the side.
fn sending(proxies: &[Running], asked: Vec<Asked>) -> JoinHandle<BTreeMap<String, usize>> {
    let urls: Vec<String> = proxies.iter().map(|proxy| proxy.url.clone()).collect();
    tokio::spawn(async move { send(&urls, asked.len(), asked).await })
}

fn messages(count: usize, channels: usize) -> Vec<Asked> {
    let path = |number: usize| format!("/api/v10/channels/{}/messages", 100 + number % channels);
    let body = |number: usize| json!({"content": format!("{number}")});
    (0..count).map(|number| (reqwest::Method::POST, path(number), body(number))).collect()
}

fn chats(count: usize) -> Vec<Asked> {
    let path = || "/v1/chat/completions".to_owned();
    let body = |number: usize| json!({"model": "m", "messages": [], "user": format!("{number}")});
    (0..count).map(|number| (reqwest::Method::POST, path(), body(number))).collect()
}

/// Sends everything through `count` proxies on a store of their own, or in memory.
pub(super) async fn through(
    judge: &Judge,
    engine: Option<Engine>,
    count: usize,
    at_once: usize,
    asked: Vec<Asked>,
) -> Record {
    let store = engine.map(|engine| Server::start(engine, &[]));
    let proxies: Vec<Running> = (0..count).map(|_| judge.proxy(store.as_ref())).collect();
    let urls: Vec<String> = proxies.iter().map(|proxy| proxy.url.clone()).collect();
    let wanted = asked.len();
    let statuses = send(&urls, at_once, asked).await;
    let record = judge.record().await;
    let served: usize =
        statuses.iter().filter(|(status, _)| status.starts_with('2')).map(|(_, n)| n).sum();
    assert_eq!(served, wanted, "{statuses:?}: {}", record.figures());
    record
}

/// Row 6 and the measure: the store is away for five seconds in the middle.
#[tokio::test]
async fn a_store_that_comes_back_brings_no_flood() {
    let limits = json!({"send": [5, 1.0], "global": [50, 1.0], "latency": [5, 100]});
    let asked = || messages(if full() { 360 } else { 150 }, 3);
    for engine in engines() {
        let killed = outage(engine, "discord", &limits, asked(), Outage::Killed);
        let stopped = outage(engine, "discord", &limits, asked(), Outage::Stopped);
        futures_util::future::join(killed, stopped).await;
    }
}

/// The same with a limit that comes back bit by bit.
#[tokio::test]
async fn a_store_that_comes_back_brings_no_flood_to_sliding_limits() {
    let limits = json!({"requests": [20, 4.0], "tokens": [1_000_000, 5.0], "latency": [5, 100]});
    let asked = || chats(if full() { 240 } else { 120 });
    for engine in engines() {
        let killed = outage(engine, "openai", &limits, asked(), Outage::Killed);
        let stopped = outage(engine, "openai", &limits, asked(), Outage::Stopped);
        futures_util::future::join(killed, stopped).await;
    }
}

/// What takes long is tried on both engines at full size only.
pub(super) fn engines() -> Vec<Engine> {
    if full() { Engine::available() } else { vec![Engine::Redis] }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outage {
    Killed,
    Stopped,
}

/// Sends everything through three proxies whose store goes away when a fifth is served.
async fn outage(
    engine: Engine,
    api: &'static str,
    limits: &serde_json::Value,
    asked: Vec<Asked>,
    how: Outage,
) {
    let judge = Judge::start(api, limits);
    let mut store = Server::start(engine, &[]);
    let proxies: Vec<Running> = (0..3).map(|_| judge.proxy(Some(&store))).collect();
    let calls = asked.len();
    let sending = sending(&proxies, asked);
    judge.until_served(calls / 5).await;
    match how {
        Outage::Killed => store.kill(),
        Outage::Stopped => store.pause(),
    }
    pass(Duration::from_secs(5)).await;
    match how {
        Outage::Killed => store.restart(),
        Outage::Stopped => store.resume(),
    }
    let statuses = sending.await.expect("it ends");
    let record = judge.record().await;
    let figures = record.figures();
    let what = format!("{api}, {engine:?} {how:?} for 5 s");
    println!("| {what} | {figures} {statuses:?} | |");
    assert_eq!(statuses, BTreeMap::from([("200".to_owned(), calls)]), "{what}");
    assert!(record.refused_all() <= 2, "{what}: {figures}\n{}", record.around_refusals());
}

/// Row 8: answers overtake each other.
#[tokio::test]
async fn answers_in_any_order_cost_no_refusal() {
    let limits = json!({"send": [5, 1.0], "global": [50, 1.0], "latency": [5, 405]});
    for engine in engines() {
        let judge = Judge::start("discord", &limits);
        let record = through(&judge, Some(engine), 3, 90, messages(90, 3)).await;
        let bound =
            Bound { least: Duration::from_secs(5), rounding: Duration::from_secs(3), refused: 0 };
        bound.judge(&format!("answers of 5 to 405 ms, {engine:?}"), &record);
    }
}

/// Deletions in one channel, every other one of an old message, which is counted by another bucket.
fn deletions(count: usize) -> Vec<Asked> {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let hour_ago = since_epoch.as_millis() as u64 - 1_420_070_400_000 - 3_600_000;
    let id = |number: usize| {
        if number.is_multiple_of(2) { (hour_ago << 22) + number as u64 } else { 1 << 22 }
    };
    let path = |number: usize| format!("/api/v10/channels/100/messages/{}", id(number));
    (0..count).map(|number| (reqwest::Method::DELETE, path(number), json!({}))).collect()
}

/// Row 2: one route has two buckets, and only the answer tells which of them counted a request.
#[tokio::test]
async fn a_route_with_two_bucket_names_stands_still_nowhere() {
    for engine in Engine::available() {
        let limits = json!({"delete": [3, 2.0], "delete-old": [3, 2.0], "latency": [5, 50]});
        let judge = Judge::start("discord", &limits);
        let record = through(&judge, Some(engine), 1, 24, deletions(24)).await;
        // Each time the other bucket answers one request may be sent that has no room there.
        let least = Duration::from_secs(8);
        let bound = Bound { least, rounding: Duration::from_secs(2), refused: 4 };
        bound.judge(&format!("two bucket names, {engine:?}"), &record);
        assert!(record.longest_gap() <= Duration::from_secs(4), "{}", record.figures());
    }
}

/// Row 2: the upstream's name of a bucket alternates.
#[tokio::test]
async fn a_bucket_name_that_alternates_costs_no_time() {
    for engine in Engine::available() {
        let limits = json!({"send": [5, 1.0], "alternate": 1.5, "latency": [5, 50]});
        let judge = Judge::start("discord", &limits);
        let record = through(&judge, Some(engine), 1, 30, messages(30, 1)).await;
        let least = Duration::from_secs(5);
        let bound = Bound { least, rounding: Duration::ZERO, refused: 1 };
        bound.judge(&format!("a name that alternates, {engine:?}"), &record);
        assert!(record.longest_gap() <= Duration::from_secs(4), "{}", record.figures());
    }
}

/// Row 3: units that come back one by one are not given out twice.
#[tokio::test]
async fn a_sliding_limit_on_a_store_is_not_exceeded() {
    let chat = |number| {
        let said = json!([{"role": "user", "content": format!("Say {number}.")}]);
        let body = json!({"model": "gpt-4o-mini", "max_tokens": 20, "messages": said});
        (reqwest::Method::POST, "/v1/chat/completions".to_owned(), body)
    };
    let run = async |engine, proxies| {
        let limits = json!({"requests": [20, 4.0], "tokens": [100_000, 4], "latency": [5, 50]});
        let judge = Judge::start("openai", &limits);
        let asked = (0..60).map(chat).collect();
        let record = through(&judge, Some(engine), proxies, 60, asked).await;
        let least = Duration::from_secs(8);
        let bound = Bound { least, rounding: Duration::ZERO, refused: 0 };
        bound.judge(&format!("sliding, {engine:?}, {proxies} proxies"), &record);
    };
    for engine in Engine::available() {
        futures_util::future::join(run(engine, 1), run(engine, 3)).await;
    }
}

/// Row 9: what a proxy held that is killed is free again after about three seconds.
#[tokio::test]
async fn a_proxy_that_is_killed_does_not_stop_the_others() {
    for engine in engines() {
        a_proxy_is_killed(engine).await;
    }
}

async fn a_proxy_is_killed(engine: Engine) {
    let limits = json!({"send": [5, 1.0], "global": [50, 1.0], "latency": [50, 300]});
    let judge = Judge::start("discord", &limits);
    let store = Server::start(engine, &[]);
    let mut proxies: Vec<Running> = (0..3).map(|_| judge.proxy(Some(&store))).collect();
    let sending = sending(&proxies, messages(45, 1));
    judge.until_served(12).await;
    // SIGKILL.
    proxies[2].child.kill().expect("it runs");
    let statuses = sending.await.expect("it ends");
    let record = judge.record().await;
    println!("| a proxy killed, {engine:?} | {} {statuses:?} | |", record.figures());
    assert_eq!(statuses, BTreeMap::from([("200".to_owned(), 45)]));
    assert!(record.refused_all() <= 1, "{}", record.figures());
    // Three seconds and the window of one second that may have just begun.
    let most = Duration::from_secs(if full() { 4 } else { 6 });
    assert!(record.longest_gap() <= most, "{}", record.figures());
}
