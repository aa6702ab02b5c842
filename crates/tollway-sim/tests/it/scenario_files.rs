use tollway_sim::scenario::NAMES;
use tollway_sim::simulated_server::Limiting;
use tollway_sim::{Scenario, ScenarioError};

use crate::log::{minutes, named};

#[test]
fn every_built_in_scenario_is_valid() {
    for name in NAMES {
        let scenario = named(name);
        assert_eq!(scenario.name, name);
        assert!(!scenario.about.is_empty());
        scenario.checked().unwrap();
    }
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let error = Scenario::named("five-by-six").unwrap_err();
    assert!(error.to_string().contains("five-by-five"), "{error}");
}

#[test]
fn a_file_says_everything_a_scenario_can() {
    let text = "
        name = 'ours'
        length = '90m'
        reserve = 32
        [server]
        limiting = 'fixed-window'
        limit = 1000
        period = '10m'
        start = 500
        tells-policy = true
        [faults]
        lost-answers = 0.01
        timeout = '30s'
        [[clients]]
        processes = 3
        threads = 4
        joins = '5m'
        leaves = '1h'
        weight = 2
        strategy = 'proportional-remaining'
        latency = { log-normal = { median = '1s', sigma = 0.5 } }
        duty = { on = '1m', off = '30s' }
        clock-step = { at = '10m', by_ms = -5000 }
    ";
    let scenario = Scenario::from_toml(text).unwrap();
    assert_eq!(scenario.length, minutes(90));
    assert_eq!(scenario.server.limiting, Limiting::FixedWindow);
    assert_eq!(scenario.clients[0].leaves, Some(minutes(60)));
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() {
    let refused = |text: &str| Scenario::from_toml(text).unwrap_err().to_string();
    let clients = "[[clients]]\nprocesses = 1\n";
    for (text, word) in [
        (format!("length = 'soon'\n{clients}"), "duration"),
        (format!("length = '0s'\n{clients}"), "`length`"),
        ("length = '1h'\nclients = []\n".to_owned(), "`clients`"),
        (format!("length = '1h'\nspeed = 3\n{clients}"), "speed"),
        (format!("length = '1h'\n[server]\nlimit = 0\n{clients}"), "units"),
        (format!("length = '1h'\n[server]\nstart = 9999\n{clients}"), "`server.start`"),
        (format!("length = '1h'\n[faults]\nlost-answers = 1.5\n{clients}"), "`faults`"),
        (format!("length = '1h'\n{clients}cost = 0\n"), "`clients.cost`"),
        (format!("length = '1h'\n{clients}believes = -1.0\n"), "`clients.believes`"),
        (format!("length = '1h'\n{clients}strategy = 'hope'\n"), "hope"),
        (
            format!("length = '1h'\n[server]\nperiod = '5000w'\n{clients}believes = 0.001\n"),
            "`clients.believes`",
        ),
        (
            format!("length = '1h'\n[server]\nlimiting = 'chunked'\nperiod = '30ns'\n{clients}"),
            "`server.period`",
        ),
    ] {
        let error = refused(&text);
        assert!(error.contains(word), "{text:?} was answered with {error}");
    }
    assert!(matches!(Scenario::from_toml("length ="), Err(ScenarioError::Syntax(_))));
}
