use serde_json::Value;
use tollway_sim::measure::run;
use tollway_sim::{Kind, Scenario};

use crate::tool::{fail, misuse, succeed, tollway};

/// Twelve simulated minutes at 180 times the speed: 4 s of five processes with five tasks each.
const ARGUMENTS: [&str; 12] = [
    "demo",
    "gcra",
    "--processes",
    "5",
    "--threads",
    "5",
    "--length",
    "12m",
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

/// What the README promises of one command: a limit enforced, and 25 clients on a chart.
#[test]
fn the_demo_denies_a_crawler_and_draws_25_clients_that_share_fairly() {
    let svg = std::env::temp_dir().join(format!("tollway-demo-{}.svg", std::process::id()));
    let file = svg.to_str().unwrap();
    let arguments = ["demo", "--exit", "--length", "8s", "--http", "127.0.0.1:0", "--svg", file];
    let told = succeed(&arguments);
    let bars = (1..=5).flat_map(|process| (1..=5).map(move |task| format!("  {process}.{task} █")));
    for bar in bars {
        assert!(told.contains(&bar), "{bar}: {told}");
    }
    assert!(told.contains("25 clients in 5 processes"), "{told}");
    let fairness = told.split_once("fairness ").unwrap().1.split(' ').next().unwrap();
    assert!(fairness.parse::<f64>().unwrap() >= 0.95, "{told}");
    let denied = told.lines().filter(|line| line.contains("crawler: ")).any(|line| {
        let (_, crawler) = line.split_once("allowed, ").unwrap();
        !crawler.trim().starts_with("0 ")
    });
    assert!(denied, "{told}");
    let drawn = std::fs::read_to_string(&svg).unwrap();
    std::fs::remove_file(&svg).unwrap();
    assert!(drawn.contains("Each of 25 clients") && drawn.contains("class=\"band\""), "{drawn}");
}

#[test]
fn the_demo_says_where_it_can_be_seen_and_what_is_in_the_way() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = taken.local_addr().unwrap().to_string();
    for command in ["demo", "serve"] {
        let complaint = fail(&[command, "--http", &place]);
        assert!(
            complaint.contains(&place) && complaint.contains("--http names another"),
            "{complaint}"
        );
        assert!(!complaint.contains("panicked"), "{complaint}");
    }
    let nowhere = ["demo", "--exit", "--http", "127.0.0.1:0", "--svg", "/nonexistent/chart.svg"];
    let output = tollway(&nowhere);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("/nonexistent/chart.svg (--svg)"), "{complaint}");
    assert!(output.stdout.is_empty(), "it says so before the show begins");
    for wrong in [["--length", "1s"], ["--length", "2h"], ["--length", "30"], ["--http", "off"]] {
        let complaint = misuse(&["demo", wrong[0], wrong[1]]);
        assert!(complaint.contains(wrong[0]), "{complaint}");
    }
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
        "--length",
        "2m",
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
        ("--length", "-1m"),
        ("--length", "0s"),
        ("--start", "4501"),
    ] {
        let complaint = misuse(&["demo", "gcra", &format!("{option}={value}")]);
        assert!(!complaint.is_empty(), "{option} {value}");
    }
}
