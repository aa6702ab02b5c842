use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::tool::{fail, misuse, succeed};

/// A file of this test run's own.
fn scratch(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    folder.join(format!("{}-{name}", std::process::id()))
}

#[test]
fn the_table_names_every_strategy() {
    let table = succeed(&["simulate", "--strategy", "all", "--length", "1h"]);
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
    assert!(table.contains("429") && table.contains("events/s"), "{table}");
}

/// What `script` shows of the command on a terminal that is so wide.
fn on_a_terminal(columns: u16, arguments: &str) -> String {
    let binary = env!("CARGO_BIN_EXE_tollway");
    let line = format!("stty cols {columns} rows 24; exec {binary} {arguments} 2> /dev/null");
    let output = Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .expect("script is installed");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text").replace('\r', "")
}

#[test]
fn the_table_fits_the_terminal_and_a_pipe_gets_all_of_it() {
    let arguments = ["simulate", "--strategy", "all", "--length", "10m"];
    let piped = succeed(&arguments);
    assert!(piped.contains("stdev") && !piped.contains("left out"), "{piped}");
    for columns in [40, 80] {
        let shown = on_a_terminal(columns, &arguments.join(" "));
        let (_, table) = shown.split_once("\n\n").expect("a sentence, then the table");
        for line in table.lines().take_while(|line| !line.starts_with("left out")) {
            assert!(line.chars().count() <= columns.into(), "{columns}: {line:?}\n{shown}");
        }
        assert!(table.contains("429") && table.contains("left out for lack of"), "{shown}");
    }
}

#[test]
fn the_same_seed_prints_the_same_json() {
    let arguments = [
        "simulate",
        "--scenario",
        "latency",
        "--length",
        "2h",
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
    let wrong = |flag: &str, value: &str| misuse(&["simulate", flag, value]);
    assert!(wrong("--scenario", "nowhere").contains("five-by-five"));
    assert!(wrong("--scenario", "five-by-fiv").contains("did you mean \"five-by-five\"?"));
    assert!(wrong("--strategy", "hope").contains("ticket"));
    assert!(wrong("--strategy", "tiket").contains("did you mean \"ticket\"?"));
    assert!(wrong("--length", "0s").contains("--length"));
    assert!(wrong("--length", "2").contains("for 2 seconds write 2s"));
    assert!(wrong("--hours", "x").contains("--length 48h"));
    assert!(wrong("--seeds", "0").contains("--seeds"));
    assert!(fail(&["simulate", "--scenario", "absent.toml"]).contains("absent.toml"));
}
