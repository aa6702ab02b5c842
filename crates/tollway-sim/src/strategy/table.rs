//! A strategy as a table of numbers: how long to pause with so many units left.
//!
//! ```toml
//! first = 1.0                       # seconds before the first request; 0 if left out
//! refused = 2.0                     # each refusal in a row multiplies the pause; 2 if left out
//! pauses = [[0, 9.6], [100, 8.0], [4500, 0.8]]     # units left, seconds; rising units
//! ```
//!
//! Between two rows the pause is on the line between them; before the first and after the last it
//! is theirs. An answer that does not say what is left changes nothing. A refusal counts as nothing
//! left.

use std::sync::Arc;

use serde::Deserialize;
use tollway_upstream::pace::{Feedback, Outcome};

use super::{NANOS_PER_S, NextSend, Setting, Strategy, to_ns};

/// The longest pause, in seconds: an hour.
const PAUSE_S_MAX: f64 = 3_600.0;
/// The most rows.
const ROWS_MAX: usize = 10_000;

/// Pauses by units left.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    name: String,
    written: Written,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    first: f64,
    #[serde(default = "twice")]
    refused: f64,
    pauses: Vec<(f64, f64)>,
}

const fn twice() -> f64 {
    2.0
}

/// What is wrong with a table; displays it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableError(String);

tollway_core::plain_error!(TableError, self => &self.0);

impl Table {
    /// The table in a text, called `name` in reports.
    ///
    /// # Errors
    ///
    /// If the text is no such table.
    pub fn from_toml(name: &str, text: &str) -> Result<Self, TableError> {
        let written: Written =
            toml::from_str(text).map_err(|error| TableError(error.to_string()))?;
        let is_pause = |seconds: f64| (0.0..=PAUSE_S_MAX).contains(&seconds);
        let wrong = |what: &str| Err(TableError(what.to_owned()));
        let rows = &written.pauses;
        if rows.is_empty() || rows.len() > ROWS_MAX {
            return wrong("pauses must have 1 to 10000 rows, each of units left and seconds");
        }
        if !rows.iter().all(|(left, pause)| *left >= 0.0 && left.is_finite() && is_pause(*pause)) {
            return wrong("a row of pauses must be units from 0 and seconds from 0 to 3600");
        }
        if !rows.windows(2).all(|pair| pair[0].0 < pair[1].0) {
            return wrong("the units of pauses must rise from row to row");
        }
        if !is_pause(written.first) {
            return wrong("first must be seconds from 0 to 3600");
        }
        if !(1.0..=1e6).contains(&written.refused) {
            return wrong("refused must be a number from 1 to 1000000");
        }
        Ok(Self { name: name.to_owned(), written })
    }

    /// What it is called in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pause with so many units left, in seconds.
    pub fn pause_s(&self, left: f64) -> f64 {
        let rows = &self.written.pauses;
        let after = rows.partition_point(|(units, _)| *units <= left);
        let Some((below, pause_below)) = after.checked_sub(1).map(|before| rows[before]) else {
            return rows[0].1;
        };
        let Some((above, pause_above)) = rows.get(after) else { return pause_below };
        pause_below + (pause_above - pause_below) * (left - below) / (above - below)
    }

    /// The strategy of one process.
    pub(super) fn follow(table: &Arc<Self>, setting: &Setting) -> Box<dyn Strategy> {
        let given_s = setting.start_sleep_ns as f64 / NANOS_PER_S;
        let first_s = if given_s > 0.0 { given_s } else { table.written.first };
        Box::new(Following { table: Arc::clone(table), pause_s: first_s, was_refused: false })
    }
}

/// One process that follows a table.
struct Following {
    table: Arc<Table>,
    pause_s: f64,
    was_refused: bool,
}

impl Strategy for Following {
    fn next_send(&mut self, _task: usize, _retry: bool, now_ns: u64) -> NextSend {
        NextSend::At(now_ns.saturating_add(self.pause_ns()))
    }

    fn on_response(&mut self, _task: usize, answer: &Feedback, _now_ns: u64) {
        match answer.outcome {
            Outcome::Limited => {
                // Multiplied one by one: a power would differ in its last bits by machine.
                let longer_s = match self.was_refused {
                    true => self.pause_s * self.table.written.refused,
                    false => self.table.pause_s(0.0),
                };
                self.pause_s = longer_s.min(PAUSE_S_MAX);
                self.was_refused = true;
            }
            Outcome::Accepted => {
                self.was_refused = false;
                if let Some(left) = answer.remaining {
                    self.pause_s = self.table.pause_s(left);
                }
            }
            Outcome::Failed => {}
        }
    }

    fn pause_ns(&self) -> u64 {
        to_ns(self.pause_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_on_the_line_between_two_rows() {
        let text = "pauses = [[0, 10.0], [100, 5.0], [200, 1.0]]";
        let table = Table::from_toml("mine", text).unwrap();
        let pauses = [0.0, 50.0, 100.0, 150.0, 200.0, 9e9].map(|left| table.pause_s(left));
        assert_eq!(pauses, [10.0, 7.5, 5.0, 3.0, 1.0, 1.0]);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        for (text, expected) in [
            ("", "pauses"),
            ("pauses = []", "1 to 10000 rows"),
            ("pauses = [[5, 1.0], [5, 2.0]]", "must rise"),
            ("pauses = [[0, -1.0]]", "seconds from 0"),
            ("pauses = [[0, nan]]", "seconds from 0"),
            ("pauses = [[0, 1.0]]\nrefused = 0.5", "refused must be"),
            ("pauses = [[0, 1.0]]\nspeed = 1", "unknown field `speed`"),
        ] {
            let told = Table::from_toml("mine", text).unwrap_err().to_string();
            assert!(told.contains(expected), "{text}: {told}");
        }
    }

    #[test]
    fn refusals_in_a_row_multiply_the_pause_up_to_an_hour() {
        let table = Table::from_toml("mine", "pauses = [[0, 10.0], [100, 1.0]]").unwrap();
        let mut client = Following { table: Arc::new(table), pause_s: 0.0, was_refused: false };
        let refused = Feedback::bare(Outcome::Limited);
        let mut after = |answer: &Feedback| {
            client.on_response(0, answer, 0);
            client.pause_s
        };
        assert_eq!([&refused; 3].map(&mut after), [10.0, 20.0, 40.0]);
        for _ in 0..100 {
            after(&refused);
        }
        assert_eq!(after(&refused), 3_600.0);
        let accepted = Feedback { remaining: Some(100.0), ..Feedback::bare(Outcome::Accepted) };
        assert_eq!(after(&accepted), 1.0);
    }
}
