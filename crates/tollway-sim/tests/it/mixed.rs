use tollway_sim::measure::run;
use tollway_sim::{Kind, Scenario};
use tollway_upstream::pace::Outcome;

use crate::log::{HELD_OUT, Log, hours, scenario};

/// A day of which strangers of the kind `strategy` are there from the second to the twelfth hour.
fn day(paced: usize, strangers: usize, strategy: &str) -> Scenario {
    scenario(&format!(
        "length = '24h'\n[server]\nstart = 4500\n\
         [[clients]]\nprocesses = {paced}\nthreads = 5\n\
         [[clients]]\nprocesses = {strangers}\nthreads = 5\nstrategy = '{strategy}'\n\
         joins = '1h'\nleaves = '12h'\n"
    ))
}

/// What the pacing processes had between two hours, of an equal share with the strangers, and
/// which part of their requests was refused.
fn had(log: &Log, paced: usize, strangers: usize, from: u64, to: u64) -> (f64, f64) {
    let units = log.accepted(paced + strangers, hours(from), hours(to));
    let (own, all) = (units[..paced].iter().sum::<u64>(), units.iter().sum::<u64>());
    let equal = all as f64 * paced as f64 / (paced + strangers) as f64;
    let range = hours(from).as_nanos() as u64..hours(to).as_nanos() as u64;
    let sent = log.0.iter().filter(|it| it.process < paced && range.contains(&it.at_ns));
    let (mut requests, mut refused) = (0_u64, 0_u64);
    for exchange in sent {
        requests += 1;
        refused += u64::from(exchange.outcome == Outcome::Limited);
    }
    (own as f64 / equal, refused as f64 / requests.max(1) as f64)
}

/// At least a twentieth of an equal share, at most so many refused, and tickets again afterwards.
fn does_not_starve(paced: usize, strangers: usize, strategy: &str, refused_most: f64) {
    keeps_its_floor(Kind::Ticket, paced, strangers, strategy, refused_most);
}

fn keeps_its_floor(kind: Kind, paced: usize, strangers: usize, strategy: &str, refused_most: f64) {
    for seed in HELD_OUT.take(5) {
        let log = Log::of(&day(paced, strangers, strategy), kind, seed);
        let (share, refused) = had(&log, paced, strangers, 3, 12);
        let told = format!("{paced} beside {strangers} {strategy}, seed {seed}: {share} {refused}");
        assert!(share >= 0.05 && refused <= refused_most, "{told}");
        // Alone again: nothing is refused, everything is used.
        let (share, refused) = had(&log, paced, strangers, 20, 24);
        let all = (paced + strangers) as f64 / paced as f64;
        assert!(share >= 0.99 * all && refused == 0.0, "{told}, then {share} {refused}");
    }
}

#[test]
fn exponential_backoff_leaves_a_pacing_client_its_floor() {
    for paced in [1, 5, 12] {
        does_not_starve(paced, 1, "backoff", 0.5);
    }
}

/// The proxy keeps requests back after a refusal, besides what the pacer does.
#[test]
fn proxies_that_pace_have_the_same_floor() {
    for paced in [1, 5] {
        keeps_its_floor(Kind::Proxied, paced, 1, "backoff", 0.5);
    }
    keeps_its_floor(Kind::Proxied, 1, 1, "cubic", 0.35);
}

#[test]
fn clients_that_probe_for_bandwidth_leave_a_floor_too() {
    for strategy in ["cubic", "gradual", "sre"] {
        does_not_starve(1, 1, strategy, 0.35);
        does_not_starve(5, 1, strategy, 0.35);
    }
}

#[test]
fn many_that_pace_never_take_each_other_for_strangers() {
    for processes in [200, 250] {
        let text = format!("length = '24h'\n[[clients]]\nprocesses = {processes}\n");
        for seed in HELD_OUT {
            let figures = run(&scenario(&text), Kind::Ticket, seed).figures;
            assert!(figures.limited_share <= 0.015, "{processes}, seed {seed}: {figures:?}");
            assert_eq!(figures.limited_last_hour, 0, "{processes}, seed {seed}");
        }
    }
}
