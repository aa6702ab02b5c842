//! Every kind of limit against every kind of upstream, with phases that nobody knows and round
//! trips of 5 to 500 ms; the upstream counts a call at any moment of its round trip.

use std::time::Duration;

use tollway_queue::Limit;

use super::enforcer::Enforcer;
use super::run::{self, Burst, Report};
use crate::model::{Subject, in_memory};
use crate::world::Random;

const BURST: Burst = Burst { jobs: 70, units: 7, window: Duration::from_secs(3) };
/// (window + mean response time) / window, and a twentieth more.
const MAKESPAN_MAX: f64 = 1.05 * (3.0 + 0.2525) / 3.0;
/// One call in so long, when seven come in three seconds.
const DRIP: Duration = Duration::from_millis(429);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upstream {
    Fixed,
    Anchored,
    Sliding,
    Gcra,
    Leaky,
}

impl Upstream {
    const ALL: [Self; 5] = [Self::Fixed, Self::Anchored, Self::Sliding, Self::Gcra, Self::Leaky];

    fn enforcer(self, seed: u64) -> Enforcer {
        let (units, window) = (BURST.units as usize, BURST.window);
        let phase = window.mul_f64(Random::new(seed * 31).unit());
        match self {
            Self::Fixed => Enforcer::fixed(units, window, phase),
            Self::Anchored => Enforcer::anchored(units, window),
            Self::Sliding => Enforcer::sliding(units, window),
            Self::Gcra => Enforcer::gcra(units, window),
            Self::Leaky => Enforcer::leaky(units, DRIP),
        }
    }
}

/// The kinds of limits, and the upstreams of which each claims that no call is refused.
const CLAIMS: [(&str, &[Upstream]); 4] = [
    ("slots 7/3s", &[Upstream::Fixed, Upstream::Anchored, Upstream::Sliding, Upstream::Gcra]),
    (
        "sliding 7/3s answered",
        &[Upstream::Fixed, Upstream::Anchored, Upstream::Sliding, Upstream::Gcra],
    ),
    ("gcra 7/3s burst 7 answered", &[Upstream::Gcra]),
    ("leaky 7 1/429ms answered", &[Upstream::Gcra, Upstream::Leaky]),
];

fn through(limit: &str, upstream: Upstream, subject: Box<dyn Subject>, seed: u64) -> Report {
    let limit: Limit = limit.parse().expect("a limit");
    run::through(limit, subject, &BURST, upstream.enforcer(seed), seed)
}

/// Plays every claim on such a backend.
fn assert_claims(open: &dyn Fn() -> Box<dyn Subject>, seeds: u64) {
    for (limit, upstreams) in CLAIMS {
        for upstream in upstreams {
            for seed in 1..=seeds {
                let report = through(limit, *upstream, open(), seed);
                assert_eq!(report.refused, 0, "{limit} on {upstream:?}, {seed}: {report:?}");
                let ratio = report.makespan_ratio;
                assert!(ratio <= MAKESPAN_MAX, "{limit} on {upstream:?}, {seed}: {report:?}");
            }
        }
    }
}

/// Refused calls tell `window` where the upstream's windows begin; from then on none is refused.
fn assert_windows_are_found(open: &dyn Fn() -> Box<dyn Subject>, seeds: u64) {
    for seed in 1..=seeds {
        let report = through("window 7/3s", Upstream::Fixed, open(), seed);
        assert!(report.refused <= 7, "{seed}: {report:?}");
        assert!(report.refused_last_s <= 2.0 * 3.0, "{seed}: {report:?}");
        let found = 3.0 / BURST.bound_s();
        assert!(report.makespan_ratio <= MAKESPAN_MAX + found, "{seed}: {report:?}");
    }
}

/// Waits that fit no fixed windows tell that the upstream has none: `window` does as `slots` then.
fn assert_windows_give_up(open: &dyn Fn() -> Box<dyn Subject>, seeds: u64) {
    for upstream in [Upstream::Anchored, Upstream::Sliding, Upstream::Gcra] {
        for seed in 1..=seeds {
            let report = through("window 7/3s", upstream, open(), seed);
            assert!(report.refused <= 3 * 7, "{upstream:?}, {seed}: {report:?}");
            assert!(report.refused_last_s <= 5.0 * 3.0, "{upstream:?}, {seed}: {report:?}");
        }
    }
}

#[test]
fn windows_give_up_on_upstreams_without_any() {
    assert_windows_give_up(&in_memory, 40);
}

#[test]
fn limits_that_claim_an_upstream_have_no_call_refused_by_it() {
    assert_claims(&in_memory, 20);
}

#[test]
fn windows_find_the_edge_of_a_fixed_upstream_once_and_keep_to_it() {
    assert_windows_are_found(&in_memory, 40);
}

#[cfg(feature = "redis")]
#[test]
fn limits_that_claim_an_upstream_have_no_call_refused_by_it_on_redis() {
    let on_redis = || crate::redis::on_a_server(tollway_testkit::servers::Engine::Redis, "loop");
    assert_claims(&on_redis, 2);
    assert_windows_are_found(&on_redis, 6);
    assert_windows_give_up(&on_redis, 3);
}

/// `cargo test -p tollway-queue --test it closed_loop_table -- --ignored --nocapture` prints what
/// docs/queue.md says of kinds of limits on upstreams of another kind.
#[test]
#[ignore = "prints a table; checks nothing"]
#[allow(clippy::print_stdout, reason = "it prints the table of docs/queue.md")]
fn closed_loop_table() {
    let starts = ["window 7/3s", "gcra 7/3s burst 7", "sliding 7/3s", "leaky 7 1/429ms"];
    for limit in CLAIMS.map(|(limit, _)| limit).into_iter().chain(starts) {
        let cell = |upstream: Upstream| {
            let reports = (1..=20).map(|seed| through(limit, upstream, in_memory(), seed));
            let (mut calls, mut refused, mut ratio) = (0, 0, 0.0);
            for report in reports {
                (calls, refused) = (calls + report.calls, refused + report.refused);
                ratio += report.makespan_ratio / 20.0;
            }
            format!("{:.1} %, {ratio:.2}", 100.0 * refused as f64 / calls as f64)
        };
        println!("| `{limit}` | {} |", Upstream::ALL.map(cell).join(" | "));
    }
}
