//! Troubles of a real service, as its events tell them: a clock that is off, a time that jumps, a
//! snapshot that is old, stores that are away, its own end.
//!
//! Time is stepped by libfaketime (Debian's package of this name): it stands between the process
//! and the C library, and reads how far off the time is from a file.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tollway_core::Clock as _;
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_testkit::servers::{Engine, Server, eventually};

use crate::serve::{Folder, PATIENCE, Served};

const HOUR: Duration = Duration::from_secs(3_600);

/// What each event of the service says is wrong, one a second.
fn troubles(served: &Served) -> impl Iterator<Item = Vec<Value>> {
    let mut stream = TcpStream::connect(served.http).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    write!(stream, "GET /dashboard/events HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("sent");
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.filter_map(|line| {
        let event: Value = serde_json::from_str(line.strip_prefix("data: ")?).expect("JSON");
        Some(event["troubles"].as_array().expect("troubles").clone())
    })
}

/// The first trouble of this kind from now on.
pub(crate) fn trouble(served: &Served, kind: &str) -> Value {
    first(troubles(served), kind)
}

/// A snapshot that is said to be so old: the look in which the clock was set may be half done.
fn snapshot_older_than(served: &Served, age_ms: u64) -> Value {
    let is_as_old = |trouble: &Value| trouble["age_ms"].as_u64() >= Some(age_ms);
    let told = troubles(served).map(|told| told.into_iter().filter(is_as_old).collect());
    first(told, "snapshot_old")
}

/// The first trouble of this kind among those that were and will be told.
fn first(told: impl Iterator<Item = Vec<Value>>, kind: &str) -> Value {
    let told = told.take(PATIENCE.as_secs() as usize).flatten();
    let mut of_kind = told.filter(|trouble| trouble["kind"] == kind);
    of_kind.next().unwrap_or_else(|| panic!("{kind} is not told"))
}

/// What stands between a process and its time, if it is installed; with `TOLLWAY_TOOLS` it must be.
fn faketime() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().filter_map(Result::ok);
    let mut files = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    let found = files.find(|file| file.exists());
    if found.is_none() {
        let missing = "libfaketime is missing: run scripts/install-service-tests";
        assert!(std::env::var_os("TOLLWAY_TOOLS").is_none(), "{missing}");
        println!("skipped: {missing}");
    }
    found
}

/// A service whose time is as the file `time` in the folder says, and which keeps a snapshot in
/// the folder `states`. `more` is what else libfaketime is told.
fn with_a_time_of_its_own(folder: &Folder, more: &[(&str, &str)]) -> Option<Served> {
    let (time, states) = (folder.file("time", "+0"), folder.0.join("states"));
    fs::create_dir_all(&states).expect("a folder");
    let snapshot = states.join("snapshot").display().to_string();
    let faketime = faketime()?;
    let variables = [
        ("LD_PRELOAD", faketime.to_str().expect("text")),
        ("FAKETIME_TIMESTAMP_FILE", time.as_str()),
        ("FAKETIME_NO_CACHE", "1"),
        ("NO_FAKE_STAT", "1"),
    ];
    Some(Served::start_with(&[&variables, more].concat(), &["--snapshot", &snapshot]))
}

fn step(folder: &Folder, offset: &str) {
    // Put in place as a whole: it is read all the time.
    fs::write(folder.0.join("time.new"), offset).expect("written");
    fs::rename(folder.0.join("time.new"), folder.0.join("time")).expect("in its place");
}

#[test]
fn a_clock_that_waits_for_the_system_s_time_is_told() {
    let folder = Folder::new("clock-off");
    let snapshot = folder.0.join("states");
    let ahead = SystemClock::new().now().after(HOUR);
    MemoryStore::new(Capacity::bytes(1 << 20)).dump(&snapshot, ahead).expect("written");
    let served = Served::start(&["--snapshot", snapshot.to_str().expect("text")]);
    let off_ms = trouble(&served, "clock_off")["off_ms"].as_i64().expect("a number");
    assert!((1..=3_600_000).contains(&off_ms), "{off_ms}");
}

#[test]
fn a_system_s_time_that_jumps_is_told_and_so_is_a_snapshot_that_is_old_by_it() {
    let folder = Folder::new("clock-jumps");
    let own_time = [("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
    let Some(served) = with_a_time_of_its_own(&folder, &own_time) else { return };
    // The first look has to be over: a jump is one between two looks.
    assert_eq!(troubles(&served).next(), Some(Vec::new()));
    step(&folder, "+3600");
    let jump_ms = trouble(&served, "clock_jumped")["jump_ms"].as_i64().expect("a number");
    assert!((3_598_000..3_602_000).contains(&jump_ms), "{jump_ms}");
    let old = snapshot_older_than(&served, 3_598_000);
    assert_eq!(old["reason"], Value::Null, "none has failed");
    step(&folder, "+1800");
    let off_ms = trouble(&served, "clock_off")["off_ms"].as_i64().expect("a number");
    assert!(
        (1_500_000..1_802_000).contains(&off_ms),
        "the service's time is not set back: {off_ms}"
    );
}

#[test]
fn a_snapshot_that_cannot_be_written_is_told_with_the_reason() {
    let folder = Folder::new("snapshot-fails");
    let Some(served) = with_a_time_of_its_own(&folder, &[]) else { return };
    assert_eq!(troubles(&served).next(), Some(Vec::new()));
    fs::remove_dir_all(folder.0.join("states")).expect("removed");
    // A minute passes at once, and a snapshot is due.
    step(&folder, "+61");
    let old = snapshot_older_than(&served, 59_000);
    let reason = old["reason"].as_str().expect("a reason");
    assert!(reason.contains("No such file or directory"), "{old}");
}

#[test]
fn stores_that_are_away_what_was_decided_without_and_an_end_are_told() {
    let mut redis = Server::start(Engine::Redis, &[]);
    let folder = Folder::new("troubles-stores");
    let config = "[drain]\ndelay = \"1h\"\n[[policies]]\nname = \"api\"\nquota = \"1000000/1h\"\n\
                  [[queues]]\nname = \"mail\"\n";
    let (config, url) = (folder.file("a.toml", config), redis.url());
    let served = Served::start(&["--config", &config, "--store", &url, "--queue-store", &url]);
    let check = || served.ask("POST", "/v1/check", r#"{"policy":"api","key":"ada"}"#).0;
    eventually(PATIENCE, || check() == 200);
    redis.kill();
    assert_eq!(check(), 429, "its policy says so");
    for kind in ["store_down", "queue_store_down"] {
        let down = trouble(&served, kind);
        assert!(down["reason"].is_string() && down["since_ms"].is_u64(), "{down}");
    }
    let told = troubles(&served);
    redis.restart();
    eventually(PATIENCE, || check() == 200);
    let degraded = first(told, "degraded");
    assert!(degraded["decisions"].as_u64() >= Some(1), "{degraded}");
    let told = troubles(&served);
    served.signal("TERM");
    first(told, "draining");
}
