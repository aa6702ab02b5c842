//! Snapshots as a user meets them: bad ones, those of other sizes and times, places that cannot be
//! written; and memory that is full.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tollway_core::{Charge, Clock as _, Cost, Key, Policy, Timestamp};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_testkit::servers::eventually;

use crate::serve::{Folder, Served};
use crate::tool::{fail, tollway};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const QUOTA: &str = "2/1h burst 2";
const POLICY: &str = "[[policies]]\nname = \"api\"\nquota = \"2/1h burst 2\"\n";

/// A folder with a configuration, a place for a snapshot, and a log.
struct Scene {
    folder: Folder,
    config: String,
    snapshot: PathBuf,
    log: PathBuf,
}

impl Scene {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let config = folder.file("a.toml", POLICY);
        let (snapshot, log) = (folder.0.join("states"), folder.0.join("log"));
        Self { folder, config, snapshot, log }
    }

    fn arguments(&self) -> [&str; 4] {
        let snapshot = self.snapshot.to_str().expect("text");
        ["--config", &self.config, "--snapshot", snapshot]
    }

    fn start(&self, more: &[&str]) -> Served {
        Served::start_logged(&self.log, &[&self.arguments(), more].concat())
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("a log")
    }

    /// A good snapshot, written at `now`, in which `spent` has nothing left.
    fn write(&self, now: Timestamp) {
        let store = MemoryStore::new(Capacity::bytes(1 << 20));
        let policy = Policy::parse("api", QUOTA).expect("a quota");
        let key = Key::new("spent").expect("a key");
        let charge = Charge::new(&policy, key).cost(Cost::new(2).expect("a cost"));
        assert!(store.check(&charge, now).is_allowed());
        store.dump(&self.snapshot, now).expect("written");
    }

    fn unfinished(&self) -> usize {
        let names = fs::read_dir(&self.folder.0).expect("a folder");
        let names = names.map(|entry| entry.expect("an entry").file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".unfinished")).count()
    }
}

/// A check of one unit for `key` under the policy `api`: status and body.
fn check(served: &Served, key: &str) -> (u16, String) {
    served.ask("POST", "/v1/check", &format!(r#"{{"policy":"api","key":"{key}"}}"#))
}

fn now() -> Timestamp {
    SystemClock::new().now()
}

/// Every way in which a file can be bad, with what is said about it.
fn bad_files(scene: &Scene) -> Vec<(Vec<u8>, &'static str)> {
    scene.write(now());
    let whole = fs::read(&scene.snapshot).expect("written");
    let mut changed = whole.clone();
    changed[40] ^= 1;
    vec![
        (Vec::new(), "is empty"),
        (whole[..whole.len() - 8].to_vec(), "its checksum is wrong"),
        (whole[..whole.len() / 2 - 3].to_vec(), "is cut short"),
        (changed, "its checksum is wrong"),
        (POLICY.as_bytes().repeat(8), "is not a snapshot of Tollway"),
    ]
}

#[test]
fn a_bad_snapshot_is_set_aside_with_its_reason_and_the_service_starts() {
    let scene = Scene::new("bad-snapshot");
    for (content, reason) in bad_files(&scene) {
        fs::write(&scene.snapshot, &content).expect("written");
        let served = scene.start(&[]);
        assert_eq!(check(&served, "spent").0, 200, "all keys start anew");
        let aside = scene.folder.0.join("states.refused-1");
        assert_eq!(fs::read(&aside).expect("set aside"), content);
        let log = scene.log();
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
        assert_eq!(warnings.len(), 1, "{log}");
        assert!(warnings[0].contains(reason), "{reason}: {log}");
        assert!(warnings[0].contains(aside.to_str().expect("text")), "{log}");
        assert!(served.stop("TERM"));
        assert_ne!(fs::read(&scene.snapshot).expect("a new one"), content);
    }
    let again = scene.start(&[]);
    assert!(!scene.log().contains("WARN"), "what was written in its place is good");
    drop(again);
    assert!(!scene.folder.0.join("states.refused-4").exists(), "only three are kept");
}

#[test]
fn a_bad_snapshot_that_is_required_ends_the_start_and_stays() {
    let scene = Scene::new("required");
    fs::write(&scene.snapshot, "").expect("written");
    let strict = [&["serve"], &scene.arguments()[..], &["--snapshot-required"]].concat();
    let output = tollway(&strict);
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--snapshot") && said.contains("is empty"), "{said}");
    assert_eq!(fs::read(&scene.snapshot).expect("still there"), b"");
    // None at all is not a bad one: there has to be a first start.
    fs::remove_file(&scene.snapshot).expect("removed");
    let served = scene.start(&["--snapshot-required"]);
    assert_eq!(check(&served, "spent").0, 200);
}

#[test]
fn a_place_that_cannot_be_written_is_an_error_at_the_start_with_the_reason() {
    let folder = Folder::new("unwritable");
    let missing = folder.0.join("missing/states");
    let taken = folder.0.to_str().expect("text");
    for (flags, tool) in [(["--snapshot"], "serve"), (["--state"], "proxy")] {
        let upstream: &[&str] =
            if tool == "proxy" { &["--upstream", "http://127.0.0.1:1"] } else { &[] };
        let start = |path: &str| fail(&[&[tool], upstream, &flags, &[path]].concat());
        let said = start(missing.to_str().expect("text"));
        assert!(said.contains("No such file or directory"), "{said}");
        assert!(said.contains(flags[0]) && said.contains("the folder"), "{said}");
        let said = start(taken);
        assert!(said.contains("where the snapshot file should be"), "{said}");
    }
}

#[test]
fn a_last_snapshot_that_cannot_be_written_is_told_with_its_reason_and_in_the_exit_code() {
    let mut scene = Scene::new("last");
    let place = scene.folder.0.join("place");
    fs::create_dir(&place).expect("a folder");
    scene.snapshot = place.join("states");
    let served = scene.start(&[]);
    assert_eq!(check(&served, "k").0, 200);
    fs::remove_dir_all(&place).expect("removed");
    assert!(!served.stop("TERM"), "the exit code says that states are lost");
    let log = scene.log();
    let line = log.lines().find(|line| line.contains("ERROR")).expect("an error");
    assert!(line.contains("could not be written"), "{line}");
    assert!(line.contains("No such file or directory"), "{line}");
}

/// It decides without the disk, so it starts without it; what it then loses it says at the end.
#[test]
fn a_full_disk_does_not_stop_the_start() {
    let scene = Scene::new("full-disk");
    scene.write(now());
    let served = Served::start_on_a_full_disk(0, &scene.arguments());
    assert_eq!(check(&served, "spent").0, 429, "the states that are there are used");
    assert!(!served.stop("TERM"), "the exit code says that states are lost");
    assert_eq!(scene.unfinished(), 0);
}

#[test]
fn more_or_less_memory_carries_the_states_over() {
    let scene = Scene::new("resized");
    let mut expected = 200;
    for bytes in ["1048576", "8388608", "1000000", "268435456"] {
        let served = scene.start(&["--memory-bytes", bytes]);
        assert!(!scene.log().contains("WARN"), "{}", scene.log());
        let statuses = [0, 1].map(|_| check(&served, "spent").0);
        assert_eq!(statuses, [expected; 2], "{bytes}");
        expected = 429;
        assert!(served.stop("TERM"));
    }
}

/// Whoever looks at the alerts of full memory must not see keys that nobody has asked for.
#[test]
fn keys_that_a_smaller_memory_drops_at_the_start_are_counted_apart() {
    let scene = Scene::new("dropped");
    let served = scene.start(&["--memory-bytes", "1048576"]);
    assert_eq!(flood(&served, "k", 5_000), 0);
    assert!(served.stop("TERM"));
    let served = scene.start(&["--memory-bytes", "65536"]);
    assert!(metric(&served, "tollway_snapshot_keys_dropped_total") > 1_000.0);
    assert!(metric(&served, "tollway_keys_refused_total") < 1.0);
    assert!(metric(&served, "tollway_keys_forgotten_total") < 1.0);
    assert!(scene.log().contains("did not fit into --memory-bytes"), "{}", scene.log());
}

#[test]
fn memory_for_no_key_is_refused_by_name() {
    for bytes in ["0", "65535"] {
        let said = fail(&["serve", "--memory-bytes", bytes]);
        assert!(said.contains("memory_bytes") && said.contains("at least 65536"), "{said}");
    }
}

/// The first process has a snapshot that the second cannot read: it must not be taken from it.
#[test]
fn a_second_process_on_the_same_ports_leaves_the_snapshot_alone() {
    let scene = Scene::new("second");
    scene.folder.file("states", "somebody else's format");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let http = taken.local_addr().expect("bound").to_string();
    let [one, config, two, snapshot] = scene.arguments();
    let said = fail(&["serve", "--http", &http, one, config, two, snapshot]);
    assert!(said.contains("another program listens there"), "{said}");
    let left = fs::read(&scene.snapshot).expect("left where it is");
    assert_eq!(left, b"somebody else's format");
    assert!(!scene.folder.0.join("states.refused-1").exists());
}

#[test]
fn what_a_killed_process_left_unfinished_is_removed_at_the_start() {
    let scene = Scene::new("leftovers");
    scene.folder.file("states.0123456789abcdef.unfinished", "half");
    scene.folder.file("other.0123456789abcdef.unfinished", "somebody else's");
    let served = scene.start(&[]);
    assert_eq!(check(&served, "k").0, 200);
    assert_eq!(scene.unfinished(), 1, "only ours");
    assert!(scene.folder.0.join("other.0123456789abcdef.unfinished").exists());
}

/// The system's clock was set back: states ahead of it must neither be forgiven nor last longer.
#[test]
fn time_does_not_start_before_the_snapshot() {
    let scene = Scene::new("ahead");
    let ahead = Duration::from_secs(3_600);
    scene.write(now().after(ahead));
    let served = scene.start(&[]);
    let (status, body) = check(&served, "spent");
    assert_eq!(status, 429, "{body}");
    let body: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let wait_ms = body["charges"][0]["retry_after_ms"].as_u64().expect("a wait");
    assert!(wait_ms <= 1_800_000, "told {wait_ms} ms where a unit takes half an hour");
    assert!(!scene.log().contains("WARN"), "{}", scene.log());
}

#[test]
fn a_snapshot_from_more_than_a_day_ahead_is_set_aside() {
    let scene = Scene::new("far-ahead");
    scene.write(now().after(Duration::from_secs(49 * 3_600)));
    let served = scene.start(&[]);
    assert_eq!(check(&served, "spent").0, 200);
    let log = scene.log();
    assert!(log.contains("ahead of the system's clock"), "{log}");
    assert!(scene.folder.0.join("states.refused-1").exists());
}

/// Where the proxy listens, or what it said when it did not start.
fn proxy(state: &Path, log: &Path, more: &[&str]) -> Option<std::process::Child> {
    use std::io::{BufRead as _, BufReader};
    let errors = fs::File::create(log).expect("a log");
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollway"))
        .args(["proxy", "--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1", "--state"])
        .arg(state)
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .expect("the binary starts");
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    out.read_line(&mut line).expect("text");
    if line.starts_with("proxy") {
        return Some(child);
    }
    assert_eq!(child.wait().expect("ended").code(), Some(1));
    None
}

#[test]
fn a_second_proxy_on_the_same_port_leaves_the_state_alone() {
    let folder = Folder::new("second-proxy");
    let state = folder.file("state", "no state");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let listen = taken.local_addr().expect("bound").to_string();
    let upstream = ["--upstream", "http://127.0.0.1:1"];
    let said = fail(&["proxy", "--listen", &listen, upstream[0], upstream[1], "--state", &state]);
    assert!(said.contains("cannot listen on"), "{said}");
    assert_eq!(fs::read(&state).expect("left where it is"), b"no state");
}

#[test]
fn a_bad_state_of_the_proxy_is_set_aside_too_unless_it_is_required() {
    let folder = Folder::new("proxy-state");
    let (state, log) = (folder.0.join("state"), folder.0.join("log"));
    folder.file("state", "no state");
    folder.file("state.00000000deadbeef.unfinished", "half");
    assert!(proxy(&state, &log, &["--state-required"]).is_none());
    assert!(fs::read_to_string(&log).expect("a log").contains("cut short"));
    let mut started = proxy(&state, &log, &[]).expect("it starts");
    started.kill().expect("ours");
    started.wait().expect("ended");
    let said = fs::read_to_string(&log).expect("a log");
    assert!(said.contains("WARN") && said.contains("cut short"), "{said}");
    assert!(said.contains("state.refused-1"), "{said}");
    assert_eq!(fs::read(folder.0.join("state.refused-1")).expect("set aside"), b"no state");
    assert!(!folder.0.join("state.00000000deadbeef.unfinished").exists());
}

/// Checks of so many new keys that take all they have, in batches; how many were denied.
fn flood(served: &Served, name: &str, keys: usize) -> usize {
    let numbers: Vec<usize> = (0..keys).collect();
    let denied = numbers.chunks(500).map(|chunk| {
        let request = |number| format!(r#"{{"policy":"api","key":"{name}{number}","cost":2}}"#);
        let requests: Vec<String> = chunk.iter().map(request).collect();
        let body = format!(r#"{{"requests":[{}]}}"#, requests.join(","));
        let (status, answers) = served.ask("POST", "/v1/check-batch", &body);
        assert_eq!(status, 200, "{answers}");
        answers.matches(r#""allowed":false"#).count()
    });
    denied.sum()
}

fn metric(served: &Served, name: &str) -> f64 {
    let (_, metrics) = served.ask("GET", "/metrics", "");
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().expect("a number")
}

#[test]
fn full_memory_is_told_in_the_log_and_the_metrics_when_it_begins() {
    let scene = Scene::new("full");
    let served = scene.start(&["--memory-bytes", "65536"]);
    assert!(metric(&served, "tollway_memory_fill_ratio{room=\"keys\"}") < 0.1);
    assert!(flood(&served, "k", 5_000) > 1_000, "newcomers are denied");
    assert!(metric(&served, "tollway_keys_refused_total") > 1_000.0);
    assert!(metric(&served, "tollway_policy_keys_refused_total{policy=\"api\"}") > 1_000.0);
    assert!(metric(&served, "tollway_memory_fill_ratio{room=\"keys\"}") > 0.9);
    eventually(PATIENCE, || scene.log().contains("new keys are denied"));
    let log = scene.log();
    assert_eq!(log.matches("WARN").count(), 1, "{log}");
    assert!(log.contains("most_of=\"api\""), "who is flooded: {log}");
}

#[test]
fn when_full_forget_turns_no_newcomer_away() {
    let scene = Scene::new("forget");
    let served = scene.start(&["--memory-bytes", "65536", "--when-full", "forget"]);
    assert_eq!(flood(&served, "k", 5_000), 0);
    assert!(metric(&served, "tollway_keys_forgotten_total") > 1_000.0);
    assert!(metric(&served, "tollway_keys_refused_total") < 1.0);
    eventually(PATIENCE, || scene.log().contains("forgotten before their time"));
    assert!(fail(&["serve", "--when-full", "evict"]).contains("deny, forget"));
}
