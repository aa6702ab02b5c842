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

/// Which of them stand back where there is no room for all, the first that do first.
const STAND_BACK: [usize; 7] = [8, 3, 6, 5, 7, 4, 2];

/// What stands between two columns.
const GAP: usize = 2;

/// No name is cut to fewer letters.
const NAME_MIN: usize = 8;

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

/// The table as aligned text. If it is for a terminal that is `letters` wide, columns stand back
/// until the others fit, and a line below says which; names that are still too long are cut.
pub fn text(rows: &[Row], letters: Option<usize>) -> String {
    let halves = HEADINGS.map(|heading| heading.split_once(' ').unwrap_or(("", heading)));
    let (upper, lower) = (halves.map(|half| half.0), halves.map(|half| half.1));
    let mut lines = vec![upper.map(str::to_owned), lower.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    let width =
        |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
    let mut widths: [usize; 9] = std::array::from_fn(width);
    let says_nothing = |column: &usize| lines[2..].iter().all(|cells| cells[*column] == "-");
    let left_out = fit(&mut widths, says_nothing, letters.unwrap_or(usize::MAX));
    let mut text = String::new();
    for cells in lines {
        let mut line = format!("{:<1$}", cut(&cells[0], widths[0]), widths[0]);
        for column in (1..HEADINGS.len()).filter(|column| !left_out.contains(column)) {
            let (cell, width) = (&cells[column], widths[column] + GAP);
            line.push_str(&format!("{cell:>width$}"));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    if !left_out.is_empty() {
        let names: Vec<&str> = left_out.iter().map(|column| HEADINGS[*column]).collect();
        text.push_str(&format!("left out for lack of room: {}\n", names.join(", ")));
    }
    text
}

/// The columns for which there is no room, those that say nothing first. If names alone are too
/// long, their column becomes narrower.
fn fit(
    widths: &mut [usize; 9],
    says_nothing: impl Fn(&usize) -> bool,
    letters: usize,
) -> Vec<usize> {
    let (empty, full): (Vec<usize>, Vec<usize>) = STAND_BACK.into_iter().partition(says_nothing);
    let mut needed = widths.iter().sum::<usize>() + (widths.len() - 1) * GAP;
    let mut left_out = Vec::new();
    for column in empty.into_iter().chain(full) {
        if needed <= letters {
            break;
        }
        needed -= widths[column] + GAP;
        left_out.push(column);
    }
    let too_long = needed.saturating_sub(letters);
    widths[0] = widths[0].saturating_sub(too_long).max(widths[0].min(NAME_MIN));
    left_out
}

/// At most `width` letters of a name.
fn cut(name: &str, width: usize) -> String {
    match name.chars().count() <= width {
        true => name.to_owned(),
        false => name.chars().take(width - 1).chain(['…']).collect(),
    }
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
    use crate::measure::run;
    use crate::{Kind, Scenario};

    /// A row of the longest name that a strategy of ours has, without a workload that could end.
    fn row() -> Row {
        let scenario = Scenario::named("five-by-five").unwrap().lasting(Duration::from_secs(60));
        Row { runs: vec![run(&scenario, Kind::ProportionalRemaining, 1)] }
    }

    #[test]
    fn a_table_for_a_terminal_fits_it_and_says_what_is_left_out() {
        let rows = [row()];
        let whole = text(&rows, None);
        for word in HEADINGS.iter().flat_map(|heading| heading.split(' ')) {
            assert!(whole.contains(word), "{word}\n{whole}");
        }
        assert!(!whole.contains("left out"), "{whole}");
        for (letters, most) in [(200, 200), (80, 80), (60, 60), (40, 40), (20, 20), (1, 20)] {
            let table = text(&rows, Some(letters));
            let (lines, note): (Vec<&str>, Vec<&str>) =
                table.lines().partition(|line| !line.starts_with("left out"));
            assert!(lines.iter().all(|line| line.chars().count() <= most), "{letters}\n{table}");
            assert_eq!(note.is_empty(), letters == 200, "{table}");
            assert!(table.contains("429") && table.contains("proport"), "{table}");
        }
        let usual = text(&rows, Some(80));
        let told = usual.lines().last().unwrap();
        assert_eq!(told, "left out for lack of room: drains, stdev, Jain process");
    }

    #[test]
    fn little_is_told_from_nothing() {
        assert_eq!([0.0, 0.000_046, 0.821].map(percent), ["0 %", "0.0046 %", "82.10 %"]);
    }

    #[test]
    fn times_have_the_unit_that_people_would_use() {
        assert_eq!([50.6, 600.0, 30_000.0].map(time), ["50.6 s", "10.0 min", "8.3 h"]);
    }
}
