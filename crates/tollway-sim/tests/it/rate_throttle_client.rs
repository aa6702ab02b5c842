use tollway_sim::Kind;
use tollway_sim::measure::run;
use tollway_sim::strategy::{Backoff, Decrease, Remembering};

use crate::log::scenario;

const UNIT_S: f64 = 0.8;
const LIMIT: f64 = 4_500.0;

fn assert_close(got: f64, published: f64) {
    assert!((got - published).abs() < 5e-7 * published.max(1.0), "{got} instead of {published}");
}

#[test]
fn the_sleeps_of_exponential_backoff_are_the_published_ones() {
    let mut backoff = Backoff::exact(1, UNIT_S);
    for published in [0.8, 0.96, 1.152, 1.3824, 1.65888] {
        assert_close(backoff.next_sleep_s(0), published);
    }
}

#[test]
fn the_sleeps_of_exponential_increase_are_the_published_ones() {
    for decrease in [Decrease::Step, Decrease::Share, Decrease::ShareOfRemaining] {
        let mut remembering = Remembering::exact(1, 0.0, UNIT_S, LIMIT, decrease);
        assert_close(remembering.next_sleep_s(0, false), 0.0);
        for published in [0.8, 1.76, 2.912, 4.2944, 5.95328, 7.943936] {
            assert_close(remembering.next_sleep_s(0, true), published);
        }
        let stored = 9.532_723_2;
        remembering.on_success(0, Some(45.0));
        let decreased = match decrease {
            Decrease::Step => stored - UNIT_S,
            Decrease::Share => stored - stored / LIMIT,
            Decrease::ShareOfRemaining => stored - stored * 45.0 / LIMIT,
        };
        assert_close(remembering.shared_s(), decreased);
    }
}

#[test]
fn the_decreases_are_the_published_ones() {
    let after = |start_s, decrease, remaining| {
        let mut remembering = Remembering::exact(1, start_s, UNIT_S, LIMIT, decrease);
        remembering.next_sleep_s(0, false);
        remembering.on_success(0, Some(remaining));
        remembering.shared_s()
    };
    let four_digits = |seconds: f64| (seconds * 1e4).round() / 1e4;
    assert_eq!(four_digits(after(200.0, Decrease::Share, 0.0)), 199.9556);
    assert_eq!(four_digits(after(400.0, Decrease::Share, 0.0)), 399.9111);
    assert_eq!(four_digits(after(20.0, Decrease::ShareOfRemaining, 200.0)), 19.1111);
    assert_eq!(four_digits(after(20.0, Decrease::ShareOfRemaining, 199.0)), 19.1156);
    assert_eq!(after(0.5, Decrease::Step, 0.0), 0.0);
}

#[test]
fn the_published_shares_of_429s_are_reproduced_over_30_seeds() {
    let scenario = scenario("length = '30m'\n[[clients]]\nprocesses = 2\nthreads = 5\n");
    let published = [
        (Kind::Backoff, 0.76..0.84),
        (Kind::Gradual, 0.33..0.45),
        (Kind::Proportional, 0.02..0.05),
        (Kind::ProportionalRemaining, 0.02..0.05),
    ];
    for (kind, range) in published {
        for seed in 1..=30 {
            let figures = run(&scenario, kind, seed).figures;
            let share = figures.limited_share;
            assert!(range.contains(&share), "{kind}, seed {seed}: {share}");
            assert!(figures.accepted <= 2_251, "{kind}: more than the capacity of 30 minutes");
        }
    }
}

#[test]
fn the_published_order_of_the_strategies_holds() {
    let scenario = scenario("length = '30m'\n[[clients]]\nprocesses = 2\nthreads = 5\n");
    let mean = |kind, figure: fn(&tollway_sim::measure::Figures) -> f64| {
        (1..=30).map(|seed| figure(&run(&scenario, kind, seed).figures)).sum::<f64>() / 30.0
    };
    // One thread takes nearly everything with gradual decrease; published: 868 and 78.
    let deviation = |kind| mean(kind, |figures| figures.request_deviation);
    assert!(deviation(Kind::Gradual) > 5.0 * deviation(Kind::ProportionalRemaining));
    let longest = |kind| mean(kind, |figures| figures.longest_sleep_s);
    assert!(longest(Kind::Gradual) > longest(Kind::Proportional));
}
