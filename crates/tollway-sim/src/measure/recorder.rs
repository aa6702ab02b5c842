//! The witness that keeps figures and series while a run goes on.

use std::ops::Range;

use tollway_upstream::pace::Outcome;

use super::{Fairness, Figures, Series, jain, sample_deviation};
use crate::scenario::nanos;
use crate::{Exchange, Scenario, Witness};

const MINUTE_NS: u64 = 60_000_000_000;
const HOUR_NS: u64 = 60 * MINUTE_NS;
const FAIR_WINDOW_NS: u64 = 10 * MINUTE_NS;
/// The index from which on a window counts as fair.
const FAIR: f64 = 0.95;
/// Steps of a series: as many as a chart has room for.
const STEPS: u64 = 360;

/// Keeps what a report needs, in memory that does not grow with the number of requests.
pub(super) struct Recorder {
    scenario: Scenario,
    length_ns: u64,
    step_ns: u64,
    last_hour_ns: u64,
    accepted: u64,
    limited: u64,
    limited_last_hour: u64,
    units: u64,
    process_units_last_hour: Vec<u64>,
    task_units_last_hour: Vec<u64>,
    task_requests: Vec<u64>,
    hourly: Fairness,
    windows: Fairness,
    drained_ns: Option<u64>,
    longest_sleep_ns: u64,
    step_limited: u64,
    step_units: Vec<u64>,
    series: Series,
}

impl Recorder {
    /// A recorder for one run of `scenario`.
    pub(super) fn new(scenario: &Scenario) -> Self {
        let length_ns = scenario.length_ns();
        let present: Vec<Range<u64>> = scenario
            .each_process()
            .map(|client| nanos(client.joins)..client.leaves.map_or(u64::MAX, nanos))
            .collect();
        let tasks = scenario.each_process().map(|client| client.threads as usize).sum();
        let step_ns = (length_ns / STEPS).max(1);
        let processes = present.len();
        Self {
            scenario: scenario.clone(),
            length_ns,
            step_ns,
            last_hour_ns: length_ns.saturating_sub(HOUR_NS),
            accepted: 0,
            limited: 0,
            limited_last_hour: 0,
            units: 0,
            process_units_last_hour: vec![0; processes],
            task_units_last_hour: vec![0; tasks],
            task_requests: vec![0; tasks],
            hourly: Fairness::new(HOUR_NS.min(length_ns), present.clone()),
            windows: Fairness::new(FAIR_WINDOW_NS.min(length_ns), present),
            drained_ns: None,
            longest_sleep_ns: 0,
            step_limited: 0,
            step_units: vec![0; processes],
            series: Series {
                step_s: step_ns as f64 / 1e9,
                rates: vec![Vec::new(); processes],
                pauses_s: vec![Vec::new(); processes],
                ..Series::default()
            },
        }
    }

    /// How often the world should tick.
    pub(crate) const fn step_ns(&self) -> u64 {
        self.step_ns
    }

    /// The figures and the series.
    pub(super) fn finish(mut self) -> (Figures, Series) {
        let fairness = self.windows.clone().finish(self.length_ns);
        let figures = self.figures(&fairness);
        self.series.fairness = fairness;
        (figures, self.series)
    }

    fn figures(&self, fairness: &[f64]) -> Figures {
        let requests = self.accepted + self.limited;
        let capacity = self.scenario.capacity_until(self.length_ns);
        let last_hour: u64 = self.process_units_last_hour.iter().sum();
        let last_capacity = self.scenario.capacity(self.last_hour_ns, self.length_ns);
        let hourly = self.hourly.clone().finish(self.length_ns);
        Figures {
            requests,
            accepted: self.accepted,
            limited: self.limited,
            limited_share: self.limited as f64 / requests.max(1) as f64,
            limited_last_hour: self.limited_last_hour,
            utilisation: self.units as f64 / capacity,
            utilisation_last_hour: last_hour as f64 / last_capacity,
            jain_process: jain(self.present(&self.process_units_last_hour)),
            jain_thread: jain(
                self.task_units_last_hour
                    .iter()
                    .copied()
                    .filter(|&units| units > 0 || self.is_static()),
            ),
            jain_worst_hour: hourly.into_iter().fold(1.0, f64::min),
            converge_s: self.converged_s(fairness),
            drain_s: self.drained_ns.map(|at_ns| at_ns as f64 / 1e9),
            longest_sleep_s: self.longest_sleep_ns as f64 / 1e9,
            request_deviation: sample_deviation(&self.task_requests),
        }
    }

    /// Whether all clients are there from the start to the end.
    fn is_static(&self) -> bool {
        self.scenario.clients.iter().all(|client| client.leaves.is_none())
    }

    /// The shares of those processes that are there during the whole last hour.
    fn present(&self, shares: &[u64]) -> Vec<u64> {
        let there = self.scenario.each_process().map(|client| {
            nanos(client.joins) <= self.last_hour_ns
                && client.leaves.is_none_or(|leaves| nanos(leaves) >= self.length_ns)
        });
        shares.iter().zip(there).filter(|(_, there)| *there).map(|(&share, _)| share).collect()
    }

    fn converged_s(&self, fairness: &[f64]) -> Option<f64> {
        let fair = fairness.iter().rev().take_while(|&&index| index >= FAIR).count();
        let first = fairness.len() - fair;
        (fair > 0).then(|| (first as u64 * FAIR_WINDOW_NS) as f64 / 1e9)
    }

    fn spend(&mut self, exchange: &Exchange) {
        self.accepted += 1;
        self.units += exchange.cost;
        self.hourly.spend(exchange.process, exchange.cost, exchange.at_ns);
        self.windows.spend(exchange.process, exchange.cost, exchange.at_ns);
        self.step_units[exchange.process] += exchange.cost;
        if exchange.at_ns >= self.last_hour_ns {
            self.process_units_last_hour[exchange.process] += exchange.cost;
            self.task_units_last_hour[exchange.task] += exchange.cost;
        }
        let start = self.scenario.server.start;
        if self.drained_ns.is_none() && start > 0 && self.units >= start {
            self.drained_ns = Some(exchange.at_ns);
        }
    }
}

impl Witness for Recorder {
    fn on_exchange(&mut self, exchange: &Exchange) {
        self.task_requests[exchange.task] += 1;
        self.longest_sleep_ns = self.longest_sleep_ns.max(exchange.waited_ns);
        match exchange.outcome {
            Outcome::Accepted => self.spend(exchange),
            Outcome::Limited => {
                self.limited += 1;
                self.step_limited += 1;
                self.limited_last_hour += u64::from(exchange.at_ns >= self.last_hour_ns);
            }
            Outcome::Failed => {}
        }
    }

    fn on_tick(
        &mut self,
        _at_ns: u64,
        level: u64,
        pauses_ns: &mut dyn Iterator<Item = Option<u64>>,
    ) {
        let per_minute = MINUTE_NS as f64 / self.step_ns as f64;
        self.series.level.push(level);
        self.series.limited_per_minute.push(self.step_limited as f64 * per_minute);
        self.step_limited = 0;
        for (process, pause_ns) in pauses_ns.enumerate() {
            let units = std::mem::take(&mut self.step_units[process]);
            self.series.rates[process].push(units as f64 * per_minute);
            self.series.pauses_s[process].push(pause_ns.map(|ns| ns as f64 / 1e9));
        }
    }
}
