//! Queues that call somebody else: what is sent, what is kept of the answer, and what is counted.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use serde_json::json;
use tollway_testkit::servers::eventually;

use super::{enqueue, get, lease, post, serve};
use crate::serve::{Folder, PATIENCE, Served};

/// A target that refuses one call with a body that repeats what it was sent; it gives the request.
fn tactless_target() -> (String, thread::JoinHandle<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut request, mut chunk) = (Vec::new(), [0; 4_096]);
        while !request.windows(4).any(|window| window == b"\r\n\r\n") {
            let length = stream.read(&mut chunk).unwrap();
            assert!(length > 0, "the request ends early");
            request.extend_from_slice(&chunk[..length]);
        }
        let body = String::from_utf8_lossy(&request).into_owned();
        let length = body.len();
        let head = format!("HTTP/1.1 403 Forbidden\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        body
    });
    (url, serving)
}

#[test]
fn a_secret_is_sent_and_never_shown_even_if_the_target_repeats_it() {
    let folder = Folder::new("queue-secret");
    let (url, target) = tactless_target();
    let secret = folder.file("token", "hush-hush-hush\n");
    let config = format!(
        "[[queues]]\nname = \"roles\"\n[queues.push]\nmethod = \"PUT\"\nbody = \"none\"\n\
         url = \"{url}/guilds/{{group}}/members/{{payload.user}}\"\n\
         [queues.push.headers]\nauthorization = {{ file = \"{secret}\", prefix = \"Bot \" }}\n"
    );
    let log = folder.0.join("log");
    let config = folder.file("queue.toml", &config);
    let served = Served::start_logged(&log, &["--config", &config]);
    enqueue(&served, &json!({"group": "42", "payload": {"user": "7/8"}}));
    let request = target.join().unwrap();
    assert!(request.starts_with("PUT /guilds/42/members/7%2F8 "), "{request}");
    assert!(request.to_lowercase().contains("authorization: bot hush-hush-hush"), "{request}");
    eventually(PATIENCE, || get(&served, "/jobs/1").1["state"] == "dead");
    let reason = get(&served, "/jobs/1").1["reason"].as_str().unwrap().to_owned();
    assert!(reason.starts_with("the target answered 403 Forbidden"), "{reason}");
    assert!(reason.contains("Bot [secret]"), "{reason}");
    for path in ["/v1/queues", "/v1/queues/roles", "/v1/queues/roles/dead", "/metrics"] {
        let (_, shown) = served.ask("GET", path, "");
        assert!(!shown.contains("hush"), "{path}: {shown}");
    }
    let logged = std::fs::read_to_string(log).unwrap();
    assert!(!logged.is_empty() && !logged.contains("hush"), "{logged}");
}

#[test]
fn a_group_waits_after_a_worker_reports_that_the_limit_is_spent() {
    let folder = Folder::new("queue-spent");
    let served = serve(&folder);
    for _ in 0..2 {
        enqueue(&served, &json!({"group": "g", "payload": "x"}));
    }
    let (_, answer) = post(&served, "lease", &json!({"max": 1}));
    let token = &answer["leases"][0]["token"];
    let headers = json!({"ratelimit-remaining": "0", "ratelimit-reset": "3600"});
    assert_eq!(post(&served, "ack", &json!({"token": token, "headers": headers})).0, 200);
    assert_eq!(
        lease(&served),
        [0; 0],
        "a slot is free, and the upstream said that nothing is left"
    );
    let (_, groups) = get(&served, "/groups");
    assert!(groups["groups"][0]["blocked_until_ms"].is_u64(), "{groups}");
}

#[test]
fn what_queues_do_is_measured_by_queue_and_not_by_group() {
    let folder = Folder::new("queue-metrics");
    let served = serve(&folder);
    for group in ["somebody", "somebody", "somebody", "else"] {
        enqueue(&served, &json!({"group": group, "payload": "x"}));
    }
    assert_eq!(lease(&served).len(), 3);
    for line in [
        "tollway_queue_jobs{queue=\"roles\",state=\"waiting\"} 1",
        "tollway_queue_jobs{queue=\"roles\",state=\"running\"} 3",
        "tollway_queue_jobs_total{queue=\"roles\",event=\"enqueued\"} 4",
        "tollway_queue_groups{queue=\"roles\"} 2",
        "tollway_queue_wait_seconds_count{queue=\"roles\"} 3",
    ] {
        let is_told = || served.ask("GET", "/metrics", "").1.lines().any(|told| told == line);
        eventually(PATIENCE, is_told);
    }
    let (_, metrics) = served.ask("GET", "/metrics", "");
    assert!(!metrics.contains("somebody"), "{metrics}");
    let oldest = metrics.lines().find(|line| line.starts_with("tollway_queue_oldest_seconds{"));
    let age = oldest.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    assert!(age.is_some_and(|age| age > 0.0), "{oldest:?}");
}
