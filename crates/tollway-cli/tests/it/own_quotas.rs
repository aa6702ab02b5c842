//! Quotas of one's own in the file beside the snapshot, through kills and damage.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::serve::{Folder, Served};
use crate::tool::{tollway, tollway_with};

const RULES: &str = "tokens = [{ token = \"boss\", role = \"admin\", name = \"ada\" }]\n\
                     [[policies]]\nname = \"api\"\nquota = \"5/1h\"\n";

/// A folder with rules, and places for a snapshot and a log.
struct Scene {
    folder: Folder,
    config: String,
    snapshot: String,
}

impl Scene {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let config = folder.file("a.toml", RULES);
        let snapshot = folder.0.join("states").to_str().expect("text").to_owned();
        Self { folder, config, snapshot }
    }

    fn start(&self) -> Served {
        let arguments = ["--config", &self.config, "--snapshot", &self.snapshot];
        Served::start_logged(&self.log(), &arguments)
    }

    fn log(&self) -> PathBuf {
        self.folder.0.join("log")
    }

    fn quotas(&self) -> PathBuf {
        self.folder.0.join("states.quotas")
    }
}

fn ask(served: &Served, method: &str, path: &str, body: &str) -> (u16, Value) {
    let (status, body) = served.ask_with(method, path, "authorization: Bearer boss\r\n", body);
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

fn set(served: &Served, key: &str, quota: &str) -> (u16, Value) {
    let body = format!(r#"{{"quota":"{quota}"}}"#);
    ask(served, "PUT", &format!("/v1/policies/api/keys/{key}"), &body)
}

fn in_force(served: &Served, key: &str) -> Value {
    ask(served, "GET", &format!("/v1/policies/api/keys/{key}"), "").1["in_force"].take()
}

fn copy_of(path: &Path) -> Vec<u8> {
    fs::read(path).expect("the file")
}

#[test]
fn a_quota_that_was_acknowledged_outlives_kill_9_right_after_and_so_does_who_set_it() {
    let scene = Scene::new("own-quotas-kill");
    for round in 1..=3 {
        let served = scene.start();
        for earlier in 1..round {
            assert_eq!(in_force(&served, &format!("key-{earlier}")), format!("{earlier}0/1h"));
        }
        assert_eq!(set(&served, "gone", "9/1h").0, 201);
        assert_eq!(ask(&served, "DELETE", "/v1/policies/api/keys/gone", "").0, 200);
        let (status, told) = set(&served, &format!("key-{round}"), &format!("{round}0/1h"));
        assert_eq!((status, &told["kept"]), (201, &Value::from("file")));
        // As it is dropped the process is killed, by SIGKILL.
        drop(served);
    }
    let served = scene.start();
    assert_eq!(in_force(&served, "key-3"), "30/1h");
    assert_eq!(ask(&served, "GET", "/v1/policies/api/keys/gone", "").0, 404);
    let log = ask(&served, "GET", "/admin/quota-changes", "").1;
    assert_eq!((&log["total"], &log["changes"][0]["by"]), (&Value::from(9), &Value::from("ada")));
    let peeked = ask(&served, "POST", "/v1/peek", r#"{"policy":"api","key":"key-3"}"#).1;
    assert_eq!(peeked["charges"][0]["limit"], 30, "it is obeyed, too");
}

#[test]
fn a_ban_that_was_acknowledged_outlives_kill_9_right_after() {
    let scene = Scene::new("ban-kill");
    let ban = |banned: bool| format!(r#"{{"key_hex":"6576696c","banned":{banned}}}"#);
    let denied = |served: &Served| {
        ask(served, "POST", "/v1/peek", r#"{"policy":"api","key":"evil"}"#).1["allowed"] == false
    };
    for banned in [true, false, true] {
        let served = scene.start();
        let (status, told) = ask(&served, "POST", "/dashboard/ban", &ban(banned));
        assert_eq!((status, &told["kept"]), (200, &Value::from("file")));
        // As it is dropped the process is killed, by SIGKILL.
        drop(served);
        assert_eq!(denied(&scene.start()), banned);
    }
}

#[test]
fn a_torn_tail_is_cut_off_and_a_damaged_file_is_set_aside_and_told() {
    let scene = Scene::new("own-quotas-damage");
    let served = scene.start();
    for key in ["one", "two", "three"] {
        assert_eq!(set(&served, key, "9/1h").0, 201);
    }
    drop(served);
    let whole = copy_of(&scene.quotas());
    fs::write(scene.quotas(), &whole[..whole.len() - 7]).expect("written");
    let served = scene.start();
    assert_eq!(
        (in_force(&served, "two"), in_force(&served, "three")),
        ("9/1h".into(), Value::Null)
    );
    assert_eq!(set(&served, "four", "9/1h").0, 201);
    drop(served);
    let mut bytes = copy_of(&scene.quotas());
    let second = bytes.iter().position(|byte| *byte == b'\n').expect("lines") + 30;
    bytes[second] ^= 1;
    fs::write(scene.quotas(), &bytes).expect("written");
    let served = scene.start();
    assert_eq!(in_force(&served, "one"), Value::Null);
    assert_eq!(set(&served, "five", "9/1h").0, 201);
    let aside = scene.folder.0.join("states.quotas.damaged-1");
    assert_eq!(copy_of(&aside), bytes, "nothing is lost that somebody might mend");
    let log = fs::read_to_string(scene.log()).expect("a log");
    assert!(log.contains("damaged-1"), "{log}");
}

#[test]
fn a_second_process_does_not_write_into_the_file_of_the_first() {
    let scene = Scene::new("own-quotas-twice");
    let _first = scene.start();
    let second = tollway(&[
        "serve",
        "--config",
        &scene.config,
        "--snapshot",
        &scene.snapshot,
        "--http",
        "127.0.0.1:0",
        "--grpc",
        "off",
        "--resp",
        "off",
    ]);
    let told = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && told.contains("another process has it open"), "{told}");
}

#[test]
fn a_full_disk_refuses_a_change_and_the_old_quota_stays() {
    let scene = Scene::new("own-quotas-full");
    let arguments = ["--config", &scene.config, "--snapshot", &scene.snapshot];
    // Room for a few lines.
    let served = Served::start_on_a_full_disk(4, &arguments);
    assert_eq!(set(&served, "acme", "20/1h").0, 201);
    let refused = (21..60).map(|limit| set(&served, "acme", &format!("{limit}/1h")));
    let found: Vec<u16> = refused.map(|(status, _)| status).collect();
    let kept = found.iter().take_while(|status| **status == 200).count();
    assert!(found[kept..].iter().all(|status| *status == 503), "{found:?}");
    let last = format!("{}/1h", 20 + kept);
    assert_eq!(in_force(&served, "acme"), last.as_str());
    drop(served);
    assert_eq!(in_force(&scene.start(), "acme"), last.as_str(), "what was refused is not there");
}

#[test]
fn the_command_line_sets_lists_grants_and_takes_away_a_quota_with_end_and_note() {
    let scene = Scene::new("own-quotas-commands");
    let served = scene.start();
    let at = served.http.to_string();
    let quota = |arguments: &[&str]| {
        let arguments = [&["quota"], arguments, &["--at", &at]].concat();
        let output = tollway_with(&[("TOLLWAY_TOKEN", "boss")], &arguments);
        let (told, wrong) = (text(output.stdout), text(output.stderr));
        if output.status.success() { Ok(told) } else { Err(wrong) }
    };
    let terms = ["--until", "2099-11-20 09:00 Europe/Berlin", "--note", "contract 4711"];
    let set = quota(&[&["set", "api", "acme", "100/1h"], &terms[..]].concat()).unwrap();
    assert_eq!(set, "acme  100/1h  until 2099-11-20T08:00:00Z  (contract 4711)  by ada\n");
    quota(&["set", "api", "trial-*", "7/1h"]).unwrap();
    let given = ["grant", "api", "acme", "50", "--until", "2099-01-01T00:00:00Z"];
    assert!(quota(&given).unwrap().contains("100/1h burst 150  "), "a gift for a time");
    let once = quota(&["grant", "api", "bob", "3"]).unwrap();
    assert_eq!(once, "bob  3 given back, 5 of 5 left\n");
    assert!(quota(&["get", "api", "acme"]).unwrap().contains("with 50 more until 2099-01-01"));
    let listed = quota(&["list", "api", "--json"]).unwrap();
    let keys: Vec<Value> =
        listed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let keys: Vec<_> = keys.iter().map(|told| told["key"].as_str()).collect();
    assert_eq!(keys, [Some("acme"), Some("trial-*")]);
    assert_eq!(quota(&["delete", "api", "acme"]).unwrap(), "acme  removed\n");
    assert_eq!(in_force(&served, "acme"), Value::Null);
    for (arguments, told) in [
        (&["get", "api", "acme"][..], "404"),
        (&["set", "api", "k", "many"], "quota: \"many\" is not a quota"),
        (&["set", "api", "k", "1/1h", "--until", "soon"], "until: "),
        (&["set", "apu", "k", "1/1h"], "apu"),
        (&["grant", "api", "t*", "3"], "key: units are given once to one key"),
    ] {
        let wrong = quota(arguments).expect_err("it is wrong");
        assert!(wrong.contains(told), "{arguments:?}: {wrong}");
    }
    let stranger = crate::tool::fail(&["quota", "set", "api", "k", "1/1h", "--at", &at]);
    assert!(stranger.contains("401"), "{stranger}");
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}
