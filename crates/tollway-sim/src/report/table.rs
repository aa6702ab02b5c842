//! The table: a row per strategy, figures as people read them.

use std::time::Duration;

use crate::measure::{Figures, Run};

/// What the columns show.
pub(super) const HEADINGS: [&str; 9] = [
    "strategy",
    "429 share",
    "utilisation",
    "Jain process",
    "Jain thread",
    "converges",
    "drains",
    "longest sleep",
    "stdev",
];

/// A strategy's runs, one for each seed.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its runs; at least one.
    pub runs: Vec<Run>,
}

impl Row {
    /// What the strategy is called.
    pub fn strategy(&self) -> &str {
        self.runs.first().map_or("", |run| &run.strategy)
    }

    /// The cells of the table: means over the seeds; where it is about time, the worst.
    pub fn cells(&self) -> [String; 9] {
        let mean = |figure: fn(&Figures) -> f64| {
            self.runs.iter().map(|run| figure(&run.figures)).sum::<f64>() / self.runs.len() as f64
        };
        let longest = |figure: fn(&Figures) -> Option<f64>| {
            let times: Option<Vec<f64>> =
                self.runs.iter().map(|run| figure(&run.figures)).collect();
            times.map(|times| times.into_iter().fold(0.0, f64::max))
        };
        [
            self.strategy().to_owned(),
            percent(mean(|figures| figures.limited_share)),
            percent(mean(|figures| figures.utilisation)),
            format!("{:.4}", mean(|figures| figures.jain_process)),
            format!("{:.4}", mean(|figures| figures.jain_thread)),
            longest(|figures| figures.converge_s).map_or("never".to_owned(), |seconds| {
                if seconds == 0.0 { "at once".to_owned() } else { time(seconds) }
            }),
            longest(|figures| figures.drain_s).map_or("-".to_owned(), time),
            longest(|figures| Some(figures.longest_sleep_s)).map_or("-".to_owned(), time),
            format!("{:.1}", mean(|figures| figures.request_deviation)),
        ]
    }
}

/// The table as aligned text.
pub fn text(rows: &[Row]) -> String {
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    let width = |column: usize| lines.iter().map(|cells| cells[column].len()).max().unwrap_or(0);
    let widths: [usize; 9] = std::array::from_fn(width);
    let mut text = String::new();
    for cells in lines {
        let mut line = format!("{:<1$}", cells[0], widths[0]);
        for (cell, width) in cells.iter().zip(widths).skip(1) {
            line.push_str(&format!("  {cell:>width$}"));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A share in per cent, with as many digits as it takes to tell little from nothing.
pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        0.0 => "0 %".to_owned(),
        percent if percent < 0.1 => format!("{percent:.4} %"),
        percent => format!("{percent:.2} %"),
    }
}

/// Seconds as people say them.
pub(super) fn time(seconds: f64) -> String {
    match Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs() {
        0..120 => format!("{seconds:.1} s"),
        120..7_200 => format!("{:.1} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3_600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_told_from_nothing() {
        assert_eq!([0.0, 0.000_046, 0.821].map(percent), ["0 %", "0.0046 %", "82.10 %"]);
    }

    #[test]
    fn times_have_the_unit_that_people_would_use() {
        assert_eq!([50.6, 600.0, 30_000.0].map(time), ["50.6 s", "10.0 min", "8.3 h"]);
    }
}
