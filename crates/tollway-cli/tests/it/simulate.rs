use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::tool::{fail, succeed};

/// A file of this test run's own.
fn scratch(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    folder.join(format!("{}-{name}", std::process::id()))
}

#[test]
fn the_table_names_every_strategy() {
    let table = succeed(&["simulate", "--strategy", "all", "--hours", "1"]);
    for name in [
        "ticket",
        "aimd",
        "cubic",
        "sre",
        "header-proportional",
        "backoff",
        "proportional-remaining",
    ] {
        assert!(table.lines().any(|line| line.starts_with(name)), "{name} in {table}");
    }
    assert!(table.contains("429 share") && table.contains("events/s"), "{table}");
}

#[test]
fn the_same_seed_prints_the_same_json() {
    let arguments = [
        "simulate",
        "--scenario",
        "latency",
        "--hours",
        "2",
        "--seed",
        "9",
        "--seeds",
        "2",
        "--json",
    ];
    let first = succeed(&arguments);
    assert_eq!(first, succeed(&arguments));
    let figures: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(figures["runs"][1]["seed"], 10);
}

#[test]
fn a_scenario_file_is_simulated_drawn_and_reported() {
    let (toml, svg, html) = (scratch("own.toml"), scratch("own.svg"), scratch("own.html"));
    fs::write(&toml, "name = 'own'\nlength = '30m'\n[[clients]]\nprocesses = 3\n").unwrap();
    let path = |path: &PathBuf| path.to_str().unwrap().to_owned();
    succeed(&[
        "simulate",
        "--scenario",
        &path(&toml),
        "--strategy",
        "ticket,header-proportional",
        "--svg",
        &path(&svg),
        "--html",
        &path(&html),
    ]);
    assert!(fs::read_to_string(&svg).unwrap().starts_with("<svg xmlns="));
    let report = fs::read_to_string(&html).unwrap();
    assert!(report.contains("<h1>own</h1>") && report.contains("<h2>header-proportional</h2>"));
    for file in [toml, svg, html] {
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn mistakes_are_answered_with_what_would_be_right() {
    assert!(fail(&["simulate", "--scenario", "nowhere"]).contains("five-by-five"));
    assert!(fail(&["simulate", "--strategy", "hope"]).contains("ticket"));
    assert!(fail(&["simulate", "--hours", "0"]).contains("--hours"));
    assert!(fail(&["simulate", "--seeds", "0"]).contains("--seeds"));
    assert!(fail(&["simulate", "--scenario", "absent.toml"]).contains("absent.toml"));
}
