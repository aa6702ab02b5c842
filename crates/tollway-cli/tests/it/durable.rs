//! Durable counts as their users meet them: kill -9 under load, full disks, usage for bills.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tollway_testkit::servers::{Engine, Server, eventually, full};

use crate::serve::{Folder, PATIENCE, Served};
use crate::tool::{fail, succeed};

const POLICY: &str = "[[policies]]\nname = \"plan\"\nquota = \"1000000/year\"\ndurable = true\n";

/// A folder with a configuration, and where its counts are.
struct Scene {
    folder: Folder,
    config: String,
    counts: String,
}

impl Scene {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let config = folder.file("a.toml", POLICY);
        let counts = folder.0.join("counts").to_str().expect("text").to_owned();
        Self { folder, config, counts }
    }

    fn start(&self) -> Served {
        Served::start(&["--config", &self.config, "--durable-file", &self.counts])
    }
}

fn check(served: &Served, key: &str, cost: u64) -> (u16, Value) {
    let body = format!(r#"{{"policy":"plan","key":"{key}","cost":{cost}}}"#);
    let (status, body) = served.ask("POST", "/v1/check", &body);
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

fn used(served: &Served, key: &str) -> u64 {
    let (status, body) = served.ask("GET", &format!("/v1/usage/plan?key={key}"), "");
    assert_eq!(status, 200, "{body}");
    let told: Value = serde_json::from_str(&body).expect("JSON");
    told["usage"].as_array().expect("rows").iter().map(|row| row["units"].as_u64().unwrap()).sum()
}

/// Four callers charge keys of their own until the service is killed: of each, the acknowledged
/// count is there again, and one call's worth more at most.
#[test]
fn what_was_acknowledged_is_there_after_kill_9_under_load() {
    let scene = Scene::new("durable-kill");
    let mut before = [0; 4];
    for round in 0..if full() { 24 } else { 2 } {
        let served = scene.start();
        for (caller, units) in before.iter().enumerate() {
            let found = used(&served, &format!("k{caller}"));
            assert_eq!(found, *units, "as it was found before");
        }
        let (served, ends) = (Mutex::new(Some(served)), AtomicBool::new(false));
        let address = served.lock().unwrap().as_ref().unwrap().http;
        let acknowledged = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..4)
                .map(|caller| {
                    let ends = &ends;
                    scope.spawn(move || charge_until_it_is_gone(address, caller, ends))
                })
                .collect();
            let made = || callers.iter().all(|caller| !caller.is_finished());
            assert!(made(), "they have begun");
            eventually(PATIENCE, || {
                used(served.lock().unwrap().as_ref().unwrap(), "k3") >= before[3] + 60 + round
            });
            // Dropped, it is killed with signal 9.
            drop(served.lock().unwrap().take());
            ends.store(true, Ordering::Relaxed);
            callers.into_iter().map(|caller| caller.join().expect("no panic")).collect::<Vec<_>>()
        });
        let again = scene.start();
        for (caller, acknowledged) in acknowledged.into_iter().enumerate() {
            let found = used(&again, &format!("k{caller}")) - before[caller];
            let bounds = acknowledged..=acknowledged + 3;
            assert!(bounds.contains(&found), "round {round}: {found}, told {acknowledged}");
            before[caller] += found;
        }
    }
}

/// Charges three units a call; the units that were acknowledged.
fn charge_until_it_is_gone(address: std::net::SocketAddr, caller: usize, ends: &AtomicBool) -> u64 {
    use std::io::{Read as _, Write as _};
    let mut units = 0;
    let body = format!(r#"{{"policy":"plan","key":"k{caller}","cost":3}}"#);
    let length = body.len();
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    let Ok(mut stream) = std::net::TcpStream::connect(address) else { return 0 };
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    while !ends.load(Ordering::Relaxed) {
        let mut answer = [0; 4_096];
        if stream.write_all(request.as_bytes()).is_err() {
            break;
        }
        match stream.read(&mut answer) {
            Ok(count) if answer[..count].starts_with(b"HTTP/1.1 200") => units += 3,
            _ => break,
        }
    }
    units
}

#[test]
fn usage_is_exported_for_bills_as_lines_of_json_and_as_csv() {
    let scene = Scene::new("durable-export");
    let served = scene.start();
    for (key, cost) in [("alice", 2), ("bob, inc", 7), ("alice", 3)] {
        assert_eq!(check(&served, key, cost).0, 200);
    }
    let at = served.http.to_string();
    let lines = succeed(&["usage", "export", "plan", "--at", &at]);
    let lines: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let told: Vec<_> =
        lines.iter().map(|line| (line["key"].as_str(), line["units"].as_u64())).collect();
    assert_eq!(told, [(Some("alice"), Some(5)), (Some("bob, inc"), Some(7))]);
    let csv = succeed(&["usage", "export", "plan", "--at", &at, "--format", "csv"]);
    let csv: Vec<&str> = csv.lines().collect();
    assert_eq!(csv[0], "policy,key,key_hex,start,end,units");
    assert!(csv[1].starts_with("plan,alice,616c696365,20"), "{csv:?}");
    assert!(csv[2].starts_with("plan,\"bob, inc\",") && csv[2].ends_with("Z,7"), "{csv:?}");
    let none = ["usage", "export", "plan", "--at", &at, "--to", "2020-01-01T00:00:00Z"];
    assert_eq!(succeed(&none), "");
    let wrong = fail(&["usage", "export", "plan", "--at", &at, "--from", "yesterday"]);
    assert!(wrong.contains("from is \"yesterday\"; expected for example 2026"), "{wrong}");
    let unknown = fail(&["usage", "export", "plam", "--at", &at]);
    assert!(unknown.contains("plam"), "{unknown}");
}

#[test]
fn denials_refunds_and_settlements_count_exactly() {
    let scene = Scene::new("durable-exact");
    scene.folder.file("a.toml", &POLICY.replace("1000000", "10"));
    let served = scene.start();
    assert_eq!(check(&served, "k", 8).0, 200);
    assert_eq!(check(&served, "k", 3).0, 429);
    assert_eq!(used(&served, "k"), 8, "a denial counts for nothing");
    let body = r#"{"policy":"plan","key":"k","cost":5}"#;
    assert_eq!(served.ask("POST", "/v1/refund", body).0, 200);
    assert_eq!(used(&served, "k"), 3);
    let (status, reserved) = served.ask("POST", "/v1/reserve", body);
    assert_eq!(status, 200, "{reserved}");
    assert_eq!(used(&served, "k"), 8, "taken when it is reserved");
    let reserved: Value = serde_json::from_str(&reserved).expect("JSON");
    drop(served);
    let again = scene.start();
    assert_eq!(used(&again, "k"), 8);
    let id = reserved["reservation"].as_str().expect("its name");
    let commit = format!(r#"{{"reservation":"{id}","costs":[1]}}"#);
    let (status, settled) = again.ask("POST", "/v1/commit", &commit);
    assert_eq!(status, 200, "{settled}");
    assert_eq!(used(&again, "k"), 4, "known after kill -9, and settled at its real cost");
}

#[test]
fn a_full_disk_refuses_charges_by_their_rule_until_there_is_room() {
    let scene = Scene::new("durable-disk");
    let disk = scene.folder.0.join("disk");
    std::fs::create_dir(&disk).expect("a folder");
    let counts = disk.join("counts").to_str().expect("text").to_owned();
    let arguments = ["--config", &scene.config, "--durable-file", &counts];
    let Some(served) = Served::start_on_a_small_disk(&disk, 32, &arguments) else { return };
    let long = "x".repeat(30_000);
    let mut kept = 0;
    let refused = loop {
        assert!(kept < 400, "32 MiB hold no more");
        let (status, answer) = check(&served, &format!("{kept}{long}"), 1);
        if status != 200 {
            break answer;
        }
        kept += 1;
    };
    assert!(kept > 5, "{kept}: {refused}");
    let metrics = served.ask("GET", "/metrics", "").1;
    assert!(metrics.contains("tollway_durable_commit_failures_total 1"), "{metrics}");
    eventually(PATIENCE, || {
        let _ = check(&served, "poke", 1);
        served.ask("GET", "/metrics", "").1.contains("tollway_durable_full 1")
    });
    assert_eq!(check(&served, "another", 1).0, 429, "its policy denies");
    std::fs::remove_file(served.inside(&disk.join("filler"))).expect("removed");
    eventually(PATIENCE, || check(&served, "another", 1).0 == 200);
    assert_eq!(used(&served, "another"), 1, "only what was acknowledged");
}

#[test]
fn a_durable_policy_needs_a_file_and_an_algorithm_that_a_file_can_hold() {
    let folder = Folder::new("durable-wrong");
    let config = folder.file("a.toml", POLICY);
    let wrong = fail(&["serve", "--config", &config, "--http", "127.0.0.1:0"]);
    assert!(wrong.contains("a.toml:4: policies[0].durable: needs a file: durable_file"), "{wrong}");
    let text = "[[policies]]\nname = \"p\"\nquota = \"5/1m\"\nalgorithm = \"sliding-window\"\n\
                durable = true\nkeep = \"90d\"\n[[policies]]\nname = \"q\"\nquota = \"5/1m\"\n\
                keep = \"1d\"\n";
    let config = folder.file("b.toml", text);
    let wrong = fail(&["serve", "--config", &config, "--http", "127.0.0.1:0"]);
    assert!(wrong.contains("b.toml:5: policies[0].durable: found algorithm"), "{wrong}");
    let told = "b.toml:10: policies[1].keep: only a policy with durable = true keeps usage";
    assert!(wrong.contains(told), "{wrong}");
    let letter = folder.file("letter", "this is somebody's letter\n");
    let config = folder.file("c.toml", POLICY);
    let start = ["serve", "--config", &config, "--http", "127.0.0.1:0", "--durable-file", &letter];
    let wrong = fail(&start);
    assert!(wrong.contains("this is not a file of durable counts, or it is damaged"), "{wrong}");
    assert_eq!(std::fs::read_to_string(&letter).unwrap(), "this is somebody's letter\n");
}

#[test]
fn a_reload_does_not_make_policies_durable_that_this_process_cannot_keep() {
    let folder = Folder::new("durable-reload");
    let plain = POLICY.replace("durable = true\n", "");
    let served = Served::start(&["--config", &folder.file("a.toml", &plain)]);
    let counts = folder.0.join("counts");
    folder.file("a.toml", &format!("durable_file = \"{}\"\n{POLICY}", counts.display()));
    eventually(PATIENCE, || served.ask("GET", "/readyz", "").1.contains("restart it"));
    let (_, ready) = served.ask("GET", "/readyz", "");
    assert!(ready.contains("is durable, and this process began without a durable_file"), "{ready}");
}

#[test]
fn a_store_that_keeps_less_than_a_durable_policy_promises_is_told_at_the_start() {
    let scene = Scene::new("durable-redis");
    let log = scene.folder.0.join("log");
    let warned = |settings: &[&str]| {
        let redis = Server::start(Engine::Redis, settings);
        let served =
            Served::start_logged(&log, &["--config", &scene.config, "--store", &redis.url()]);
        assert_eq!(check(&served, "k", 1).0, 200);
        drop(served);
        std::fs::read_to_string(&log).expect("a log")
    };
    let log = warned(&["--appendonly", "yes", "--appendfsync", "everysec"]);
    assert!(log.contains("durable policies may lose") && log.contains("everysec"), "{log}");
    let log = warned(&["--appendonly", "yes", "--appendfsync", "always"]);
    assert!(!log.contains("durable policies"), "{log}");
}

#[test]
fn usage_on_a_shared_store_is_that_of_all_nodes_and_outlives_kill_9_of_them() {
    let scene = Scene::new("shared-usage");
    scene.folder.file("a.toml", &POLICY.replace("1000000", "30"));
    for engine in Engine::available() {
        let store = Server::start(engine, &[]);
        let node = || Served::start(&["--config", &scene.config, "--store", &store.url()]);
        let (first, second) = (node(), node());
        assert_eq!((check(&first, "k", 8).0, check(&second, "k", 4).0), (200, 200));
        assert_eq!(check(&second, "k", 19).0, 429);
        assert_eq!(used(&first, "k"), 12, "a denial counts for nothing");
        let post = |served: &Served, path: &str, body: &str| {
            let (status, told) = served.ask("POST", path, body);
            assert_eq!(status, 200, "{path}: {told}");
            serde_json::from_str::<Value>(&told).expect("JSON")
        };
        post(&first, "/v1/refund", r#"{"policy":"plan","key":"k","cost":2}"#);
        post(&first, "/v1/take", r#"{"policy":"plan","key":"k","cost":5}"#);
        assert_eq!(used(&second, "k"), 15);
        let reserve = r#"{"policy":"plan","key":"k","cost":6}"#;
        let ids = [0, 1].map(|_| post(&first, "/v1/reserve", reserve)["reservation"].take());
        assert_eq!(used(&second, "k"), 15, "what is reserved is billed when it is settled");
        post(&second, "/v1/commit", &format!(r#"{{"reservation":{},"costs":[4]}}"#, ids[0]));
        post(&second, "/v1/cancel", &format!(r#"{{"reservation":{}}}"#, ids[1]));
        assert_eq!(used(&first, "k"), 19);
        post(&first, "/v1/reset", r#"{"policy":"plan","key":"k"}"#);
        assert_eq!(check(&first, "other", 1).0, 200);
        // Dropped, they are killed with signal 9.
        drop((first, second));
        let again = node();
        let at = again.http.to_string();
        let csv = succeed(&["usage", "export", "plan", "--at", &at, "--format", "csv"]);
        let rows: Vec<_> = csv.lines().skip(1).map(|line| line.rsplit_once(',').unwrap()).collect();
        assert!(rows[0].0.starts_with("plan,k,6b,20") && rows[0].1 == "19", "{csv}");
        assert!(rows[1].0.starts_with("plan,other,") && rows[1].1 == "1", "{csv}");
        let page = |after: &str| {
            let path = format!("/v1/usage/plan?max=1{after}");
            serde_json::from_str::<Value>(&again.ask("GET", &path, "").1).expect("JSON")
        };
        let first = page("");
        let second = page(&format!("&after={}", first["after"].as_str().expect("more")));
        assert_eq!(
            (&first["usage"][0]["key"], &second["usage"][0]["key"]),
            (&"k".into(), &"other".into())
        );
        assert_eq!(second["after"], Value::Null);
    }
}
