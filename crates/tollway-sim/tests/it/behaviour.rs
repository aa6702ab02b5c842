use tollway_sim::Kind;
use tollway_sim::measure::run;

use crate::log::{HELD_OUT, Log, hours, minutes, named};

#[test]
fn one_client_consumes_all_available_requests_quickly() {
    let scenario = named("lone").lasting(minutes(10));
    let drained = |kind| run(&scenario, kind, 1_001).figures.drain_s.expect("drained");
    assert!(drained(Kind::Ticket) <= 55.0);
    // rate_throttle_client's own strategy takes about two minutes.
    assert!(
        (60.0..200.0).contains(&drained(Kind::HeaderProportional)),
        "{}",
        drained(Kind::HeaderProportional)
    );
}

#[test]
fn the_slow_client_comes_down() {
    let scenario = named("fast-slow").lasting(hours(1));
    for seed in HELD_OUT {
        let series = run(&scenario, Kind::Ticket, seed).series;
        let last = |process: usize| series.pauses_s[process].last().copied().flatten();
        let (Some(fast), Some(slow)) = (last(0), last(1)) else { panic!("both are there") };
        assert!(slow < 3.0, "seed {seed}: from 20 s to {slow} s");
        assert!((slow - fast).abs() < 1.0, "seed {seed}: {slow} s and {fast} s");
    }
}

#[test]
fn flappy_clients_settle() {
    let scenario = named("flappy").lasting(hours(2));
    for seed in HELD_OUT {
        let run = run(&scenario, Kind::Ticket, seed);
        assert_eq!(run.figures.limited, 0, "seed {seed}");
        let settled = run.series.level.len() / 4;
        let levels = &run.series.level[settled..];
        let swing = levels.iter().max().unwrap() - levels.iter().min().unwrap();
        assert!(swing <= 3, "seed {seed}: the level swings by {swing} units");
    }
}

#[test]
fn the_fast_client_is_likelier_to_be_limited() {
    let scenario = named("fast-slow").lasting(hours(1));
    let (mut fast, mut slow) = (0, 0);
    for seed in HELD_OUT {
        let log = Log::of(&scenario, Kind::HeaderProportional, seed);
        fast += log.limited(0);
        slow += log.limited(1);
    }
    assert!(2 * fast > 3 * slow, "fast {fast}, slow {slow}");
}

#[test]
fn the_share_of_429s_is_within_bounds() {
    for seed in HELD_OUT.take(5) {
        let share = |kind| run(&named("five-by-five"), kind, seed).figures.limited_share;
        // As the author of rate_throttle_client measured, and asked for.
        let seeds = share(Kind::HeaderProportional);
        assert!((0.02..0.035).contains(&seeds), "seed {seed}: {seeds}");
        assert!(share(Kind::Ticket) < 0.0001, "seed {seed}");
    }
}

#[test]
fn the_published_strategies_drift_apart_where_tickets_do_not() {
    let worst = |kind| run(&named("five-by-five"), kind, 1_001).figures.jain_worst_hour;
    assert!(worst(Kind::Ticket) > 0.999);
    for kind in
        [Kind::HeaderProportional, Kind::Backoff, Kind::Gradual, Kind::ProportionalRemaining]
    {
        assert!(worst(kind) < 0.97, "{kind}: {}", worst(kind));
    }
}
