use std::path::Path;

use tollway_sim::chart::{Chart, Curve, columns_of};
use tollway_sim::measure::run;
use tollway_sim::{Kind, Scenario, ScenarioError};

use crate::log::{HELD_OUT, Log, minutes, named};
use crate::pictures::assert_drawn;

/// Units that each team had, of what there was from one minute to another.
fn had(log: &Log, from: u64, to: u64) -> Vec<f64> {
    let units = log.accepted(3, minutes(from), minutes(to));
    units.iter().map(|units| *units as f64 / (600 * (to - from)) as f64).collect()
}

#[test]
fn of_three_greedy_teams_each_has_its_floor_and_a_lone_one_has_it_all() {
    for seed in HELD_OUT.take(3) {
        let log = Log::of(&named("shares"), Kind::Ticket, seed);
        let told = |what: &str, had: &[f64]| format!("seed {seed}, {what}: {had:?}");
        let alone = had(&log, 2, 15);
        assert!(alone[0] >= 0.99, "{}", told("batch alone", &alone));
        let two = had(&log, 15, 30);
        assert!(two[0] >= 0.19 && two[1] >= 0.49, "{}", told("batch and search", &two));
        assert!(two[0] + two[1] >= 0.99, "{}", told("nothing is wasted", &two));
        let three = had(&log, 31, 45);
        assert!(three.iter().zip([0.2, 0.5, 0.3]).all(|(had, floor)| (had - floor).abs() < 0.01));
        let again = had(&log, 46, 60);
        assert!(again[0] + again[1] >= 0.99, "{}", told("lent again", &again));
        let all: u64 = log.accepted(3, minutes(0), minutes(60)).iter().sum();
        assert!(all <= 600 + 60 * 600, "seed {seed}: {all} is above the quota");
    }
}

/// The picture in docs/how-to/shares.md.
#[test]
fn the_picture_of_three_teams_is_what_the_server_gave_them() {
    let run = run(&named("shares"), Kind::Ticket, 1);
    let step_s = run.series.step_s;
    // A minute each: in ten seconds a team is served in lumps.
    let line = |rates: &Vec<f64>| Curve {
        values: rates.chunks(6).map(|minute| Some(minute.iter().sum::<f64>() / 6.0)).collect(),
        step_s: 6.0 * step_s,
    };
    let chart = Chart {
        title: "batch, search, chat".to_owned(),
        unit: "units/min".to_owned(),
        lines: run.series.rates.iter().map(line).collect(),
        length_s: run.length_s,
        top: 700.0,
    };
    let picture = columns_of(&[("600 a minute for three teams".to_owned(), vec![chart])]);
    assert_drawn(Path::new("../../docs/img/shares.svg"), &picture);
}

#[test]
fn owners_that_are_no_tree_are_refused_with_what_is_wrong() {
    let wrong = |server: &str, client: &str| {
        let text = format!(
            "length = '1h'\n[server]\nlimit = 600\nperiod = '1m'\nstart = 600\n{server}\n\
             [[clients]]\n{client}\n"
        );
        match Scenario::from_toml(&text) {
            Err(ScenarioError::Field { field, right }) => format!("{field}: {right}"),
            other => panic!("{other:?}"),
        }
    };
    let tree = "limiting = 'shares'\nowners = [{ key = 'a', floor = '60%' }, { key = 'b', floor = '60%' }]";
    assert!(
        wrong(tree, "").starts_with("server: owners[1].floor: the floors below the quota add up")
    );
    let part = "limiting = 'shares'\nowners = [{ key = 'a', floor = '60' }]";
    assert!(wrong(part, "").starts_with("server.owners: expected more than 0%"));
    assert_eq!(wrong("owners = [{ key = 'a' }]", ""), "server.owners: only with shares");
    let right = "limiting = 'shares'\nowners = [{ key = 'a', floor = '60%' }]";
    assert_eq!(wrong(right, "owner = 'b'"), "clients.owner: the key of one of the server's owners");
}
