//! A witness that remembers every request, for questions that the figures do not answer.

use std::time::Duration;

use tollway_sim::{Exchange, Kind, Scenario, Witness, World};
use tollway_upstream::pace::Outcome;

/// Seeds on which nothing was tuned; tuning used 1, 2 and 3.
pub(crate) const HELD_OUT: std::ops::RangeInclusive<u64> = 1_001..=1_020;

/// Every request in order.
#[derive(Default)]
pub(crate) struct Log(pub(crate) Vec<Exchange>);

impl Witness for Log {
    fn on_exchange(&mut self, exchange: &Exchange) {
        self.0.push(*exchange);
    }
}

impl Log {
    /// The requests of a run.
    pub(crate) fn of(scenario: &Scenario, kind: Kind, seed: u64) -> Self {
        let mut log = Self::default();
        World::new(scenario, kind, seed).run(&mut log);
        log
    }

    /// Units accepted per process between two times.
    pub(crate) fn accepted(&self, processes: usize, from: Duration, to: Duration) -> Vec<u64> {
        let range = from.as_nanos() as u64..to.as_nanos() as u64;
        let mut units = vec![0; processes];
        for exchange in self.0.iter().filter(|exchange| range.contains(&exchange.at_ns)) {
            if exchange.outcome == Outcome::Accepted {
                units[exchange.process] += exchange.cost;
            }
        }
        units
    }

    /// Requests of `process` that were refused.
    pub(crate) fn limited(&self, process: usize) -> usize {
        let refused = |exchange: &&Exchange| exchange.outcome == Outcome::Limited;
        self.0.iter().filter(refused).filter(|exchange| exchange.process == process).count()
    }

    /// When the first answer reaches `process`.
    pub(crate) fn first_answer(&self, process: usize) -> Duration {
        let first = self.0.iter().find(|exchange| exchange.process == process);
        Duration::from_nanos(first.expect("every process sends").answered_ns)
    }
}

pub(crate) fn hours(hours: u64) -> Duration {
    Duration::from_secs(3_600 * hours)
}

pub(crate) fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// A scenario that exists only in a test.
pub(crate) fn scenario(toml: &str) -> Scenario {
    Scenario::from_toml(toml).expect("the test's scenario is valid")
}

pub(crate) fn named(name: &str) -> Scenario {
    Scenario::named(name).expect("a built-in scenario")
}
