use std::time::Duration;

use tollway_sim::measure::{Figures, run};
use tollway_sim::{Kind, Scenario};

use crate::log::{HELD_OUT, Log, hours, minutes, named, scenario};

fn on_held_out_seeds(scenario: &Scenario, check: impl Fn(u64, Figures)) {
    for seed in HELD_OUT.take(5) {
        check(seed, run(scenario, Kind::Proxied, seed).figures);
    }
}

#[test]
fn five_proxies_with_five_clients_each_share_a_token_for_a_day() {
    on_held_out_seeds(&named("five-by-five"), |seed, figures| {
        assert!(figures.jain_worst_hour >= 0.999, "seed {seed}: {figures:?}");
        assert!(figures.jain_thread >= 0.999, "seed {seed}: {figures:?}");
        assert!(figures.limited_share <= 0.001, "seed {seed}: {figures:?}");
        assert!(figures.utilisation >= 0.99, "seed {seed}: {figures:?}");
        assert_eq!(figures.limited_last_hour, 0, "seed {seed}");
    });
}

#[test]
fn proxies_that_come_and_go_are_never_refused() {
    let scenario = named("join-leave");
    for seed in HELD_OUT.take(5) {
        let figures = run(&scenario, Kind::Proxied, seed).figures;
        assert_eq!(figures.limited, 0, "seed {seed}: {figures:?}");
        assert!(figures.jain_process >= 0.999, "seed {seed}: {figures:?}");
    }
}

#[test]
fn a_slow_proxy_has_its_share_twenty_seconds_after_its_first_answer() {
    let scenario = named("fast-slow").lasting(hours(2));
    for seed in HELD_OUT.take(5) {
        let log = Log::of(&scenario, Kind::Proxied, seed);
        let mut from = log.first_answer(1) + Duration::from_secs(20);
        while from + minutes(1) < hours(2) {
            let units = log.accepted(2, from, from + minutes(1));
            let share = units[1] as f64 / (units[0] + units[1]) as f64;
            assert!((0.45..=0.55).contains(&share), "seed {seed} at {from:?}: {units:?}");
            from += minutes(1);
        }
    }
}

#[test]
fn round_trips_of_a_second_and_fixed_windows_are_shared_too() {
    for name in ["latency", "fixed-window"] {
        on_held_out_seeds(&named(name), |seed, figures| {
            assert!(figures.jain_worst_hour >= 0.99, "{name}, seed {seed}: {figures:?}");
            assert!(figures.limited_share <= 0.001, "{name}, seed {seed}: {figures:?}");
        });
    }
}

#[test]
fn a_request_of_five_units_takes_five_slots() {
    let text = "length = '6h'\n[server]\nstart = 60\n\
        [[clients]]\nprocesses = 4\nthreads = 2\n[[clients]]\nthreads = 2\ncost = 5\n";
    on_held_out_seeds(&scenario(text), |seed, figures| {
        assert!(figures.jain_process >= 0.99, "seed {seed}: {figures:?}");
        assert_eq!(figures.limited, 0, "seed {seed}: {figures:?}");
    });
}

#[test]
fn a_proxy_beside_a_library_has_the_same_share() {
    let text = "length = '6h'\n[[clients]]\nprocesses = 2\nthreads = 5\n\
        [[clients]]\nprocesses = 3\nthreads = 5\nstrategy = 'ticket'\n";
    on_held_out_seeds(&scenario(text), |seed, figures| {
        assert!(figures.jain_process >= 0.999, "seed {seed}: {figures:?}");
        assert!(figures.limited <= 5, "seed {seed}: {figures:?}");
    });
}

#[test]
fn lost_requests_and_server_errors_do_not_upset_the_round() {
    let text = "length = '6h'\n[[clients]]\nprocesses = 5\nthreads = 5\n[faults]\n\
        lost-requests = 0.02\nlost-answers = 0.02\nserver-errors = 0.05\ntimeout = '10s'\n";
    on_held_out_seeds(&scenario(text), |seed, figures| {
        assert!(figures.jain_process >= 0.995, "seed {seed}: {figures:?}");
        assert!(figures.limited <= 5, "seed {seed}: {figures:?}");
        assert!(figures.utilisation_last_hour >= 0.99, "seed {seed}: {figures:?}");
    });
}
