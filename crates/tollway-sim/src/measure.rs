//! What happened, in figures and series.

mod fairness;
mod recorder;

use serde::Serialize;

use fairness::sample_deviation;
pub use fairness::{Fairness, jain};
use recorder::Recorder;

use crate::strategy::{Kind, StrategyChoice, StrategyFailed};
use crate::{Scenario, World};

/// The figures of a run: one line of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Requests that reached the server.
    pub requests: u64,
    /// Requests accepted.
    pub accepted: u64,
    /// Requests refused with a 429.
    pub limited: u64,
    /// Refused requests of all requests.
    pub limited_share: f64,
    /// Refused requests in the last hour.
    pub limited_last_hour: u64,
    /// Units spent of those that could have been.
    pub utilisation: f64,
    /// The same for the last hour.
    pub utilisation_last_hour: f64,
    /// Jain's index over units spent in the last hour, by process.
    pub jain_process: f64,
    /// The same by thread.
    pub jain_thread: f64,
    /// The worst hour's index by process.
    pub jain_worst_hour: f64,
    /// Seconds until the processes share fairly (index 0.95 in windows of ten minutes) for good.
    pub converge_s: Option<f64>,
    /// Seconds until as many units were spent as the bucket held at the start.
    pub drain_s: Option<f64>,
    /// The longest wait of a thread before a request, in seconds.
    pub longest_sleep_s: f64,
    /// Sample standard deviation of requests per thread, refused ones included.
    pub request_deviation: f64,
}

/// What happened over time, in equal steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Series {
    /// The length of a step in seconds.
    pub step_s: f64,
    /// Units left at the end of each step.
    pub level: Vec<u64>,
    /// 429s per minute in each step.
    pub limited_per_minute: Vec<f64>,
    /// For each process, units per minute in each step.
    pub rates: Vec<Vec<f64>>,
    /// For each process, seconds between its requests at the end of each step.
    pub pauses_s: Vec<Vec<Option<f64>>>,
    /// Jain's index over the processes, in windows of ten minutes.
    pub fairness: Vec<f64>,
}

/// A finished run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// The scenario's name.
    pub scenario: String,
    /// What the strategy is called.
    pub strategy: String,
    /// The seed.
    pub seed: u64,
    /// Simulated seconds.
    pub length_s: f64,
    /// Events that made up the run.
    pub events: u64,
    /// The figures.
    pub figures: Figures,
    /// The series.
    pub series: Series,
}

/// Runs `scenario` with the strategy `kind` from `seed`.
pub fn run(scenario: &Scenario, kind: Kind, seed: u64) -> Run {
    run_with_progress(scenario, &kind.into(), seed, |_| {}).expect("only programs can fail")
}

/// As [`run`], also with a strategy of one's own, telling `progress` a hundred times which part of
/// the run is done.
///
/// # Errors
///
/// If the strategy is a program, and one of its processes does not answer as it must.
pub fn run_with_progress(
    scenario: &Scenario,
    strategy: &StrategyChoice,
    seed: u64,
    mut progress: impl FnMut(f64),
) -> Result<Run, StrategyFailed> {
    const PARTS: u64 = 100;
    let mut recorder = Recorder::new(scenario);
    strategy.suits(scenario)?;
    let mut world = World::new(scenario, strategy.clone(), seed).with_ticks(recorder.step_ns());
    let part_ns = (scenario.length_ns() / PARTS).max(1);
    for part in 1..=PARTS {
        world.run_until(part * part_ns, &mut recorder);
        strategy.check()?;
        progress(part as f64 / PARTS as f64);
    }
    world.run(&mut recorder);
    strategy.check()?;
    let (figures, series) = recorder.finish();
    Ok(Run {
        scenario: scenario.name.clone(),
        strategy: strategy.to_string(),
        seed,
        length_s: scenario.length.as_secs_f64(),
        events: world.events(),
        figures,
        series,
    })
}
