//! The live lines of the demo, and what they add up to.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tollway_sim::measure::jain;

/// One request as a client reports it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RequestReport {
    pub(super) process: u32,
    pub(super) task: u32,
    pub(super) status: u16,
    pub(super) remaining: Option<u64>,
    pub(super) sleep_for_s: f64,
}

impl fmt::Display for RequestReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}: #status={} #remaining=", self.process, self.task, self.status)?;
        match self.remaining {
            Some(units) => write!(f, "{units}")?,
            None => f.write_str("?")?,
        }
        write!(f, " #sleep_for={:.3}", self.sleep_for_s)
    }
}

impl RequestReport {
    /// The line that [`fmt::Display`] wrote, if `text` is one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (who, rest) = text.split_once(": ")?;
        let (process, task) = who.split_once('#')?;
        let field = |name: &str| {
            let value = rest.split_once(&format!("#{name}="))?.1;
            Some(value.split(' ').next().unwrap_or(value))
        };
        Some(Self {
            process: process.parse().ok()?,
            task: task.parse().ok()?,
            status: field("status")?.parse().ok()?,
            remaining: field("remaining")?.parse().ok(),
            sleep_for_s: field("sleep_for")?.parse().ok()?,
        })
    }
}

/// Requests so far, by task.
#[derive(Debug, Default)]
pub(super) struct Tally {
    tasks: BTreeMap<(u32, u32), (u64, u64)>,
    failed: u64,
    longest_sleep_s: f64,
}

/// What a demo came to; times and rates are simulated ones.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) processes: usize,
    pub(super) threads: usize,
    pub(super) accepted: u64,
    pub(super) limited: u64,
    pub(super) failed: u64,
    pub(super) limited_share: f64,
    pub(super) utilisation: f64,
    pub(super) jain_process: f64,
    pub(super) jain_thread: f64,
    pub(super) longest_sleep_s: f64,
}

impl Tally {
    pub(super) fn add(&mut self, line: &RequestReport) {
        let (accepted, limited) = self.tasks.entry((line.process, line.task)).or_default();
        match line.status {
            200 => *accepted += 1,
            429 => *limited += 1,
            _ => self.failed += 1,
        }
        self.longest_sleep_s = self.longest_sleep_s.max(line.sleep_for_s);
    }

    /// The sum of it, of `capacity` units that could have been spent.
    pub(super) fn summary(&self, capacity: f64) -> Summary {
        let mut by_process: BTreeMap<u32, u64> = BTreeMap::new();
        for ((process, _), (accepted, _)) in &self.tasks {
            *by_process.entry(*process).or_default() += accepted;
        }
        let accepted: u64 = self.tasks.values().map(|(accepted, _)| accepted).sum();
        let limited: u64 = self.tasks.values().map(|(_, limited)| limited).sum();
        Summary {
            processes: by_process.len(),
            threads: self.tasks.len(),
            accepted,
            limited,
            failed: self.failed,
            limited_share: limited as f64 / (accepted + limited).max(1) as f64,
            utilisation: accepted as f64 / capacity,
            jain_process: jain(by_process.into_values()),
            jain_thread: jain(self.tasks.values().map(|(accepted, _)| *accepted)),
            longest_sleep_s: self.longest_sleep_s,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "processes     {} with {} threads together", self.processes, self.threads)?;
        writeln!(f, "accepted      {}", self.accepted)?;
        writeln!(f, "429s          {} ({:.2} %)", self.limited, self.limited_share * 100.0)?;
        writeln!(f, "failed        {}", self.failed)?;
        writeln!(f, "utilisation   {:.1} %", self.utilisation * 100.0)?;
        writeln!(
            f,
            "Jain's index  {:.4} by process, {:.4} by thread",
            self.jain_process, self.jain_thread
        )?;
        writeln!(f, "longest sleep {:.1} s", self.longest_sleep_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_writes_is_what_the_parent_reads() {
        for remaining in [Some(74), None] {
            let line = RequestReport {
                process: 13_946,
                task: 3,
                status: 200,
                remaining,
                sleep_for_s: 6.163,
            };
            assert_eq!(RequestReport::parse(&line.to_string()), Some(line));
        }
        for other in ["", "ready", "13946#3: #status=", "a#b: #status=200 #remaining=1"] {
            assert_eq!(RequestReport::parse(other), None, "{other}");
        }
    }

    #[test]
    fn refused_requests_are_not_shares() {
        let mut tally = Tally::default();
        for (process, status) in [(1, 200), (1, 429), (2, 200), (2, 503)] {
            tally.add(&RequestReport {
                process,
                task: 0,
                status,
                remaining: None,
                sleep_for_s: 1.0,
            });
        }
        let summary = tally.summary(4.0);
        assert_eq!((summary.accepted, summary.limited, summary.failed), (2, 1, 1));
        assert_eq!((summary.jain_process, summary.utilisation), (1.0, 0.5));
    }
}
