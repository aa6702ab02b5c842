//! Which charts a run gets.

use super::{Chart, Curve};
use crate::measure::{Run, Series};

/// Seconds in a window of the fairness series.
const FAIR_WINDOW_S: f64 = 600.0;

/// What is so many times as high as all but a fiftieth of the values is cut off.
const SPIKE: f64 = 1.5;

/// Four charts for each run, all runs to the same scale: level, rates, 429s, fairness.
pub(crate) fn panels(runs: &[&Run]) -> Vec<[Chart; 4]> {
    let mut all: Vec<[Chart; 4]> =
        runs.iter().map(|run| [level(run), rates(run), limited(run), fairness(run)]).collect();
    for panel in 0..4 {
        let top = top(all.iter().map(|charts| &charts[panel]));
        for charts in &mut all {
            charts[panel].top = top;
        }
    }
    all
}

/// The common scale: the highest value, unless it is a rare spike that would flatten the rest.
fn top<'a>(charts: impl Iterator<Item = &'a Chart>) -> f64 {
    let lines = charts.flat_map(|chart| &chart.lines);
    let mut values: Vec<f64> =
        lines.flat_map(|line| line.values.iter().flatten().copied()).collect();
    values.sort_by(f64::total_cmp);
    let Some(&highest) = values.last() else { return 0.0 };
    let usual = values[(values.len() - 1) * 98 / 100];
    if usual > 0.0 { highest.min(SPIKE * usual) } else { highest }
}

fn chart(run: &Run, title: &str, unit: &str, lines: Vec<Curve>) -> Chart {
    Chart {
        title: title.to_owned(),
        unit: unit.to_owned(),
        lines,
        length_s: run.length_s,
        top: 1.0,
    }
}

fn line(series: &Series, values: impl Iterator<Item = f64>) -> Curve {
    Curve { values: values.map(Some).collect(), step_s: series.step_s }
}

fn level(run: &Run) -> Chart {
    let levels = run.series.level.iter().map(|&units| units as f64);
    chart(run, "Level", "units left", vec![line(&run.series, levels)])
}

fn rates(run: &Run) -> Chart {
    let series = &run.series;
    let present = |pauses: &[Option<f64>], step: usize| pauses.get(step).copied().flatten();
    let lines = series.rates.iter().zip(&series.pauses_s).map(|(rates, pauses)| Curve {
        values: smooth(rates)
            .into_iter()
            .enumerate()
            .map(|(step, rate)| present(pauses, step).map(|_| rate))
            .collect(),
        step_s: series.step_s,
    });
    chart(run, "Rate of each process", "units/min", lines.collect())
}

/// A mean over five steps: in a step of minutes a slow process sends once or twice, and the bare
/// counts would be a comb.
fn smooth(values: &[f64]) -> Vec<f64> {
    let mean = |step: usize| {
        let window = &values[step.saturating_sub(2)..(step + 3).min(values.len())];
        window.iter().sum::<f64>() / window.len() as f64
    };
    (0..values.len()).map(mean).collect()
}

fn limited(run: &Run) -> Chart {
    let values = run.series.limited_per_minute.iter().copied();
    chart(run, "429s", "per minute", vec![line(&run.series, values)])
}

fn fairness(run: &Run) -> Chart {
    let values = run.series.fairness.iter().map(|&index| Some(index)).collect();
    let step_s = FAIR_WINDOW_S.min(run.length_s);
    chart(run, "Fairness by process", "Jain's index", vec![Curve { values, step_s }])
}
