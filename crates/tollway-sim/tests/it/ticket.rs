use std::time::Duration;

use tollway_sim::measure::{Fairness, Figures, jain, run};
use tollway_sim::{Kind, Scenario};

use crate::log::{HELD_OUT, Log, hours, minutes, named, scenario};

fn on_held_out_seeds(scenario: &Scenario, check: impl Fn(u64, Figures)) {
    for seed in HELD_OUT {
        check(seed, run(scenario, Kind::Ticket, seed).figures);
    }
}

#[test]
fn five_by_five_for_a_day_is_fair_full_and_almost_never_refused() {
    on_held_out_seeds(&named("five-by-five"), |seed, figures| {
        assert!(figures.limited_share <= 0.0001, "seed {seed}: {figures:?}");
        assert!(figures.jain_worst_hour >= 0.999, "seed {seed}: {figures:?}");
        assert!(figures.jain_thread >= 0.999, "seed {seed}: {figures:?}");
        assert!(figures.utilisation_last_hour >= 0.999, "seed {seed}: {figures:?}");
        assert_eq!(figures.limited_last_hour, 0, "seed {seed}");
    });
}

#[test]
fn a_lone_client_drains_4500_in_55_seconds_without_a_refusal() {
    on_held_out_seeds(&named("lone").lasting(minutes(10)), |seed, figures| {
        let seconds = figures.drain_s.expect("drained");
        // The physical minimum: 4,500 requests of 50 ms on five threads.
        assert!((44.5..=55.0).contains(&seconds), "seed {seed}: {seconds} s");
        assert_eq!(figures.limited, 0, "seed {seed}");
    });
}

#[test]
fn fast_and_slow_share_equally_20_seconds_after_the_slow_ones_first_answer() {
    let scenario = named("fast-slow").lasting(hours(4));
    for seed in HELD_OUT {
        let log = Log::of(&scenario, Kind::Ticket, seed);
        let mut from = log.first_answer(1) + Duration::from_secs(20);
        while from + minutes(1) < hours(4) {
            let units = log.accepted(2, from, from + minutes(1));
            let share = units[1] as f64 / (units[0] + units[1]) as f64;
            assert!((0.45..=0.55).contains(&share), "seed {seed} at {from:?}: {units:?}");
            from += minutes(1);
        }
    }
}

#[test]
fn joining_and_leaving_cost_no_refusal_and_little_fairness() {
    let scenario = named("join-leave");
    let present: Vec<_> = scenario
        .clients
        .iter()
        .flat_map(|client| {
            let leaves = client.leaves.unwrap_or(Duration::MAX).as_nanos().min(u64::MAX.into());
            let times = client.joins.as_nanos() as u64..leaves as u64;
            std::iter::repeat_n(times, client.processes as usize)
        })
        .collect();
    for seed in HELD_OUT {
        let log = Log::of(&scenario, Kind::Ticket, seed);
        assert_eq!((0..present.len()).map(|process| log.limited(process)).sum::<usize>(), 0);
        let five_minutes = minutes(5).as_nanos() as u64;
        let mut fairness = Fairness::new(five_minutes, present.clone());
        for exchange in &log.0 {
            fairness.spend(exchange.process, exchange.cost, exchange.at_ns);
        }
        for (window, index) in fairness.finish(hours(8).as_nanos() as u64).iter().enumerate() {
            assert!(*index >= 0.98, "seed {seed}, window {window}: {index}");
        }
    }
}

#[test]
fn a_hundred_clients_share_equally_without_being_told_how_many_they_are() {
    on_held_out_seeds(&named("many"), |seed, figures| {
        assert!(figures.jain_process >= 0.998, "seed {seed}: {figures:?}");
        assert_eq!(figures.limited_last_hour, 0, "seed {seed}");
    });
}

#[test]
fn two_hundred_clients_share_equally_too() {
    let scenario = scenario("length = '24h'\n[[clients]]\nprocesses = 200\n");
    on_held_out_seeds(&scenario, |seed, figures| {
        assert!(figures.jain_process >= 0.98, "seed {seed}: {figures:?}");
        assert_eq!(figures.limited_last_hour, 0, "seed {seed}");
    });
}

#[test]
fn two_hundred_and_fifty_clients_are_still_within_the_usual_reserve() {
    let scenario = scenario("length = '24h'\n[[clients]]\nprocesses = 250\n");
    for seed in HELD_OUT.take(5) {
        let figures = run(&scenario, Kind::Ticket, seed).figures;
        assert!(figures.jain_process >= 0.98, "seed {seed}: {figures:?}");
        assert_eq!(figures.limited_last_hour, 0, "seed {seed}");
    }
}

#[test]
fn fixed_windows_are_recognised_and_shared() {
    on_held_out_seeds(&named("fixed-window"), |seed, figures| {
        assert!(figures.jain_worst_hour >= 0.99, "seed {seed}: {figures:?}");
        assert!(figures.jain_thread >= 0.99, "seed {seed}: {figures:?}");
        assert!(figures.limited_share <= 0.001, "seed {seed}: {figures:?}");
        assert!(figures.utilisation >= 0.99, "seed {seed}: {figures:?}");
    });
}

#[test]
fn a_hundred_per_second_over_200_ms_is_shared_without_a_refusal() {
    let scenario = scenario(
        "length = '10m'\n\
         [server]\nlimit = 100\nperiod = '1s'\nburst = 1000\nstart = 1000\n\
         [[clients]]\nprocesses = 5\nthreads = 50\n\
         latency = { uniform = { least = '150ms', most = '250ms' } }\n",
    );
    on_held_out_seeds(&scenario, |seed, figures| {
        assert_eq!(figures.limited, 0, "seed {seed}");
        assert!(figures.jain_process >= 0.99, "seed {seed}: {figures:?}");
        assert!(figures.utilisation_last_hour >= 0.99, "seed {seed}: {figures:?}");
    });
}

#[test]
fn round_trips_of_seconds_change_nothing() {
    on_held_out_seeds(&named("latency"), |seed, figures| {
        assert!(figures.limited <= 5, "seed {seed}: {figures:?}");
        assert!(figures.jain_worst_hour >= 0.99, "seed {seed}: {figures:?}");
    });
}

/// A day of it, unless the whole week is asked for.
#[test]
fn a_thousand_clients_for_a_week_end_up_sharing_equally() {
    let days = if std::env::var_os("TOLLWAY_FULL").is_some() { 7 } else { 1 };
    let scenario = scenario(
        "length = '24h'\nreserve = 1200\n[server]\nstart = 4500\n[[clients]]\nprocesses = 1000\n",
    );
    let figures = run(&scenario.lasting(hours(24 * days)), Kind::Ticket, 1_001).figures;
    assert_eq!(figures.limited_last_hour, 0, "{figures:?}");
    assert!(figures.jain_process >= 0.98, "{figures:?}");
}

#[test]
fn jains_index_is_what_it_says() {
    assert_eq!(jain([1, 1, 1, 1]), 1.0);
    assert_eq!(jain([1, 0, 0, 0]), 0.25);
}
