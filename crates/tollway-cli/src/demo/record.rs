//! What the clients of the tour did second by second, as bars and as a chart.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use tollway_core::Quota;
use tollway_sim::chart::{Chart, Curve, columns_of};

use super::tally::{RequestReport, Tally};

/// The longest bar, and what stands on both sides of it.
const BAR_CHARS: u64 = 40;
const BESIDE_BAR: u64 = 12;
/// A client sends a few times a second: bare counts per second would be a comb.
const SMOOTH_S: usize = 3;

/// Accepted requests by client and second.
pub(super) struct Record {
    quota: Quota,
    seconds: usize,
    accepted: BTreeMap<(u32, u32), Vec<u64>>,
    limited: Vec<u64>,
    tally: Tally,
}

impl Record {
    /// Of a quota shared for so many seconds.
    pub(super) fn new(quota: Quota, seconds: u16) -> Self {
        let seconds = usize::from(seconds);
        let (accepted, tally) = (BTreeMap::new(), Tally::default());
        Self { quota, seconds, accepted, limited: vec![0; seconds], tally }
    }

    /// Adds what a client said so long after the beginning.
    pub(super) fn add(&mut self, line: &RequestReport, at: Duration) {
        self.tally.add(line);
        let second = (at.as_secs() as usize).min(self.seconds - 1);
        let client = self.accepted.entry((line.process, line.task));
        let counts = client.or_insert_with(|| vec![0; self.seconds]);
        match line.status {
            200 => counts[second] += 1,
            429 => self.limited[second] += 1,
            _ => {}
        }
    }

    /// One second in a few words.
    pub(super) fn second(&self, second: u64) -> String {
        let second = (second as usize).min(self.seconds - 1);
        let accepted: u64 = self.accepted.values().map(|counts| counts[second]).sum();
        let limited = self.limited[second];
        format!("{} clients: {accepted:3} accepted, {limited:2} refused", self.accepted.len())
    }

    /// A bar for each client, in lines of at most `columns`.
    pub(super) fn bars(&self, columns: Option<usize>) -> String {
        let room = columns.map_or(BAR_CHARS, |columns| (columns as u64).saturating_sub(BESIDE_BAR));
        let bar_chars = room.clamp(1, BAR_CHARS);
        let totals: Vec<((u32, u32), u64)> =
            self.accepted.iter().map(|(client, counts)| (*client, counts.iter().sum())).collect();
        let most = totals.iter().map(|(_, total)| *total).max().unwrap_or(0).max(1);
        let processes = self.processes();
        let mut text = String::from("requests accepted, by client (process.thread)\n");
        for ((process, task), total) in totals {
            let number = processes.keys().position(|known| *known == process).unwrap_or(0) + 1;
            let bar = "█".repeat((total * bar_chars / most) as usize);
            let _ = writeln!(text, "  {number}.{} {bar} {total}", task + 1);
        }
        text
    }

    /// What it came to.
    pub(super) fn sentence(&self) -> String {
        let capacity = self.quota.units() as f64 / self.quota.period().as_secs_f64()
            * self.seconds as f64
            + self.quota.burst() as f64;
        let summary = self.tally.summary(capacity);
        format!(
            "{} clients in {} processes: {} accepted ({:.0} % of what there was), {} refused\n\
             fairness {:.4} by client (Jain's index; 1 is equal shares)\n",
            summary.threads,
            summary.processes,
            summary.accepted,
            summary.utilisation * 100.0,
            summary.limited,
            summary.jain_thread,
        )
    }

    /// A chart of every client and one of every process.
    pub(super) fn svg(&self) -> String {
        let clients = self.accepted.len();
        let (each, processes): (Vec<_>, Vec<_>) = (
            self.accepted.values().map(|counts| curve(counts)).collect(),
            self.processes().values().map(|counts| curve(counts)).collect(),
        );
        let chart = |title: String, unit: &str, lines: Vec<Curve>| {
            let values = || lines.iter().flat_map(|line| line.values.iter().flatten());
            let top = values().copied().fold(0.0, f64::max);
            let unit = unit.to_owned();
            Chart { title, unit, lines, length_s: self.seconds as f64, top }
        };
        let left = chart(format!("Each of {clients} clients"), "requests/s: span and mean", each);
        let right =
            chart(format!("Each of {} processes", processes.len()), "requests/s", processes);
        let quota = self.quota;
        columns_of(&[
            (format!("{clients} clients share {quota}"), vec![left]),
            (String::new(), vec![right]),
        ])
    }

    fn processes(&self) -> BTreeMap<u32, Vec<u64>> {
        let mut sums: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for ((process, _), counts) in &self.accepted {
            let sum = sums.entry(*process).or_insert_with(|| vec![0; self.seconds]);
            for (total, count) in sum.iter_mut().zip(counts) {
                *total += count;
            }
        }
        sums
    }
}

/// Counts per second, smoothed.
fn curve(counts: &[u64]) -> Curve {
    let mean = |second: usize| {
        let window = &counts[second.saturating_sub(SMOOTH_S - 1)..=second];
        Some(window.iter().sum::<u64>() as f64 / window.len() as f64)
    };
    Curve { values: (0..counts.len()).map(mean).collect(), step_s: 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let mut record = Record::new("10/1s".parse().unwrap(), 2);
        for (process, task, status, at_ms) in
            [(7, 0, 200, 100), (7, 1, 200, 1_100), (9, 0, 429, 1_200), (9, 0, 200, 5_000)]
        {
            let line = RequestReport { process, task, status, remaining: None, sleep_for_s: 0.1 };
            record.add(&line, Duration::from_millis(at_ms));
        }
        record
    }

    #[test]
    fn every_client_has_a_bar_under_its_process() {
        let bars = record().bars(None);
        for name in ["1.1", "1.2", "2.1"] {
            assert!(bars.contains(&format!("  {name} █")), "{bars}");
        }
        let narrow = record().bars(Some(30));
        assert!(narrow.lines().skip(1).all(|line| line.chars().count() <= 30), "{narrow}");
    }

    #[test]
    fn what_comes_late_belongs_to_the_last_second() {
        let record = record();
        assert_eq!(record.second(1), "3 clients:   2 accepted,  1 refused");
        assert!(record.sentence().contains("fairness 1.0000"), "{}", record.sentence());
        assert!(record.svg().starts_with("<svg"));
    }
}
