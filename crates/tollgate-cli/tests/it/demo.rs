use serde_json::Value;
use tollgate_sim::measure::run;
use tollgate_sim::{Kind, Scenario};

use crate::tool::{fail, succeed};

/// Twelve simulated minutes at 180 times the speed: 4 s of five processes with five tasks each.
const ARGUMENTS: [&str; 12] = [
    "demo",
    "gcra",
    "--processes",
    "5",
    "--threads",
    "5",
    "--minutes",
    "12",
    "--scale",
    "180",
    "--start",
    "300",
];

/// The same in the simulator: 4,500 per 20 s.
const SCENARIO: &str = "length = '4s'\n\
    [server]\nlimit = 4500\nperiod = '20s'\nstart = 300\n\
    [[clients]]\nprocesses = 5\nthreads = 5\n\
    latency = { uniform = { least = '5ms', most = '9ms' } }\n";

#[test]
fn five_processes_over_real_http_agree_with_the_simulator() {
    let simulated = run(&Scenario::from_toml(SCENARIO).unwrap(), Kind::Ticket, 1).figures;
    assert_eq!(simulated.limited, 0);
    let summary = succeed(&[&ARGUMENTS[..], &["--json"]].concat());
    let real: Value = serde_json::from_str(&summary).unwrap();
    let number = |name: &str| real[name].as_f64().unwrap();
    assert_eq!((number("processes"), number("threads")), (5.0, 25.0));
    // A busy machine delays some requests; it does not make anybody greedy.
    let accepted = number("accepted") / simulated.accepted as f64;
    assert!((0.85..=1.05).contains(&accepted), "{accepted} of the simulated requests: {summary}");
    assert!(number("limited_share") <= 0.01, "{summary}");
    assert!(number("jain_process") >= 0.98, "{summary}");
    assert!(number("jain_thread") >= 0.95, "{summary}");
    assert_eq!(number("failed"), 0.0, "{summary}");
}

#[test]
fn the_live_lines_are_like_the_seeds() {
    let output = succeed(&[
        "demo",
        "gcra",
        "--processes",
        "2",
        "--threads",
        "1",
        "--minutes",
        "2",
        "--scale",
        "600",
        "--start",
        "4500",
    ]);
    let line = output.lines().find(|line| line.contains("#status=200")).expect("a live line");
    assert!(line.contains("#remaining=") && line.contains("#sleep_for="), "{line}");
    assert!(output.contains("Jain's index"), "{output}");
}

#[test]
fn numbers_out_of_range_are_refused_before_anything_starts() {
    for (option, value) in [
        ("--processes", "0"),
        ("--threads", "100000"),
        ("--scale", "0"),
        ("--minutes", "-1"),
        ("--start", "4501"),
    ] {
        let complaint = fail(&["demo", "gcra", &format!("{option}={value}")]);
        assert!(!complaint.is_empty(), "{option} {value}");
    }
}
