//! The queues' store is away at the start, or lost: what calls are answered, and who is told.

use std::time::{Duration, Instant};

use tollway_testkit::servers::{Engine, Server, eventually, free_port};

use super::{PATIENCE, judge, metrics};
use crate::serve::{Folder, Served};
use crate::tool::fail;

const QUEUES: &str = "[[queues]]\nname = \"mails\"\n";

/// Longer than a call takes that is given up after a second, and shorter than one that is not.
const SOON: Duration = Duration::from_secs(10);

fn enqueue(served: &Served) -> (u16, String) {
    served.ask("POST", "/v1/queues/mails/jobs", r#"{"payload":"the payload"}"#)
}

fn is_up(served: &Served) -> bool {
    metrics(served).contains("tollway_queue_store_up 1")
}

/// A Redis that has after a restart what it had before.
fn durable() -> Server {
    Server::start(Engine::Redis, &["--appendonly", "yes", "--appendfsync", "always"])
}

#[test]
fn a_node_starts_without_the_store_of_its_queues_and_finds_it_later() {
    let mut redis = durable();
    redis.kill();
    let folder = Folder::new("without-queue-store");
    let (config, log) = (folder.file("a.toml", QUEUES), folder.0.join("log"));
    let url = redis.url();
    let served = Served::start_logging(&log, &["--config", &config, "--queue-store", &url]);
    for (method, path, body) in [
        ("POST", "/v1/queues/mails/jobs", r#"{"payload":"the payload"}"#),
        ("POST", "/v1/queues/mails/lease", r#"{"wait_ms":60000}"#),
        ("GET", "/v1/queues", ""),
        ("GET", "/v1/queues/mails", ""),
    ] {
        let began = Instant::now();
        let (status, problem) = served.ask(method, path, body);
        assert_eq!(status, 503, "{path}: {problem}");
        assert!(problem.contains("cannot be reached"), "{path}: {problem}");
        assert!(began.elapsed() < SOON, "{path}: {:?}", began.elapsed());
    }
    let (ready, detail) = served.ask("GET", "/readyz", "");
    assert!(ready == 200 && detail.contains("\"queue_store\":{\"last_error\":\"the"), "{detail}");
    assert!(!is_up(&served));
    let told = std::fs::read_to_string(&log).expect("a log");
    assert_eq!(told.matches("the queue store does not answer").count(), 1, "{told}");
    redis.restart();
    eventually(PATIENCE, || enqueue(&served).0 == 201);
    eventually(PATIENCE, || is_up(&served));
    let lease = served.ask("POST", "/v1/queues/mails/lease", "{}");
    assert!(lease.0 == 200 && lease.1.contains("token"), "{lease:?}");
}

#[test]
fn a_queue_store_that_is_required_or_refuses_the_password_ends_the_start() {
    let folder = Folder::new("required-queue-store");
    let config = folder.file("a.toml", QUEUES);
    let away = format!("redis://127.0.0.1:{}", free_port());
    let required = ["serve", "--config", &config, "--queue-store", &away, "--store-required"];
    let complaint = fail(&required);
    assert!(complaint.contains("the queue store: the store cannot be reached"), "{complaint}");
    assert_eq!(complaint.matches("refused").count(), 1, "the cause once: {complaint}");
    let locked = Server::start(Engine::Redis, &["--requirepass", "s3cret"]);
    let wrong = format!("redis://:guess@127.0.0.1:{}", locked.port);
    let complaint = fail(&["serve", "--config", &config, "--queue-store", &wrong]);
    assert!(complaint.contains("refuses the user or the password"), "{complaint}");
    assert!(!complaint.contains("guess"), "{complaint}");
}

/// Kills Redis, scrapes before, meanwhile and after, and has the alerts that are shipped judge what
/// was scraped.
#[test]
fn an_outage_of_the_queue_store_is_logged_once_and_fires_its_alert_until_it_is_over() {
    let mut redis = durable();
    let folder = Folder::new("queue-outage");
    let (config, log) = (folder.file("a.toml", QUEUES), folder.0.join("log"));
    let url = redis.url();
    let served = Served::start_logging(&log, &["--config", &config, "--queue-store", &url]);
    eventually(PATIENCE, || enqueue(&served).0 == 201 && is_up(&served));
    let mut scrapes = Vec::new();
    let mut scrape = |times: usize| scrapes.extend((0..times).map(|_| metrics(&served)));
    scrape(3);
    redis.kill();
    // Nobody asks: it is found out all the same.
    eventually(PATIENCE, || !is_up(&served));
    let began = Instant::now();
    let (status, problem) = enqueue(&served);
    assert!(status == 503 && problem.contains("cannot be reached"), "{status} {problem}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    scrape(6);
    redis.restart();
    eventually(PATIENCE, || is_up(&served));
    scrape(10);
    assert_eq!(enqueue(&served).0, 201);
    let errors = "tollway_queue_store_errors_total ";
    let counted = metrics(&served);
    let counted = counted.lines().find_map(|line| line.strip_prefix(errors)).expect("a count");
    assert_ne!(counted, "0", "the call that failed is counted");
    let told = std::fs::read_to_string(&log).expect("a log");
    let lines = |text: &str| told.lines().filter(|line| line.contains(text)).collect::<Vec<_>>();
    let (began, ended) = (lines("queue store does not answer"), lines("queue store answers again"));
    assert_eq!((began.len(), ended.len()), (1, 1), "{told}");
    assert!(began[0].contains("WARN") && began[0].contains("reason="), "{told}");
    assert!(ended[0].contains("INFO") && ended[0].contains("lasted_ms="), "{told}");
    judge(&folder.0, &scrapes, &["TollwayQueueStoreDown"]);
}

#[test]
fn a_queue_store_that_stands_still_keeps_nobody_waiting() {
    let redis = durable();
    let folder = Folder::new("queue-still");
    let config = folder.file("a.toml", QUEUES);
    let served = Served::start(&["--config", &config, "--queue-store", &redis.url()]);
    eventually(PATIENCE, || enqueue(&served).0 == 201);
    redis.pause();
    let began = Instant::now();
    let first = enqueue(&served);
    assert!([503, 504].contains(&first.0), "it may have been sent: {first:?}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
    eventually(PATIENCE, || enqueue(&served).0 == 503 && !is_up(&served));
    redis.resume();
    eventually(PATIENCE, || enqueue(&served).0 == 201 && is_up(&served));
}

/// Somebody empties Redis, or it restarts too fast for anybody to see it away.
#[test]
fn queues_that_are_lost_without_an_outage_are_made_again() {
    let redis = Server::start(Engine::Redis, &[]);
    let folder = Folder::new("queue-flushed");
    let config = folder.file("a.toml", QUEUES);
    let served = Served::start(&["--config", &config, "--queue-store", &redis.url()]);
    eventually(PATIENCE, || enqueue(&served).0 == 201);
    for _ in 0..2 {
        redis.tell(&["FLUSHALL"]);
        let (status, problem) = enqueue(&served);
        assert!(status == 503 && problem.contains("made again"), "{status} {problem}");
        eventually(PATIENCE, || enqueue(&served).0 == 201);
    }
    let (status, _) = served.ask("POST", "/v1/queues/nobodys/jobs", r#"{"payload":"p"}"#);
    assert_eq!(status, 404, "one that was never planned");
}

#[test]
fn a_queue_store_that_refuses_all_writes_is_down_and_clients_are_not_blamed() {
    let redis = Server::start(Engine::Redis, &[]);
    let folder = Folder::new("queue-refused");
    let config = folder.file("a.toml", QUEUES);
    let served = Served::start(&["--config", &config, "--queue-store", &redis.url()]);
    eventually(PATIENCE, || enqueue(&served).0 == 201 && is_up(&served));
    redis.tell(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let (status, problem) = enqueue(&served);
    assert!(status == 503 && problem.contains("NOREPLICAS"), "{status} {problem}");
    eventually(PATIENCE, || !is_up(&served));
    redis.tell(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    eventually(PATIENCE, || is_up(&served));
    assert_eq!(enqueue(&served).0, 201);
}

/// A Redis that keeps nothing on a disk comes back empty; so are its queues, but they are there.
#[test]
fn queues_are_made_again_in_a_store_that_has_lost_them_and_pushing_goes_on() {
    let mut redis = Server::start(Engine::Redis, &[]);
    redis.kill();
    let fine = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let (target, heard) = crate::queue::target(vec![fine, fine]);
    let folder = Folder::new("queue-lost");
    let config = folder.file("a.toml", &format!("{QUEUES}[queues.push]\nurl = \"{target}\"\n"));
    let served = Served::start(&["--config", &config, "--queue-store", &redis.url()]);
    for _ in 0..2 {
        redis.restart();
        eventually(PATIENCE, || enqueue(&served).0 == 201);
        let request = heard.recv_timeout(PATIENCE).expect("it is pushed");
        assert!(request.contains("tollway-queue: mails"), "{request}");
        redis.kill();
        eventually(PATIENCE, || !is_up(&served));
    }
}
