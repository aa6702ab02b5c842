//! What goes wrong on the way: lost requests, lost answers, server errors, timeouts.

use serde::Deserialize;
use tollway_core::dice::Dice;

use crate::scenario::text;

/// The chances of faults, each between 0 and 1, and how long clients wait for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Faults {
    /// A request never reaches the server.
    pub lost_requests: f64,
    /// The server counts a request, and its answer never reaches the client.
    pub lost_answers: f64,
    /// The server answers 503 without counting.
    pub server_errors: f64,
    /// A client gives up on an answer after this long.
    #[serde(rename = "timeout", deserialize_with = "text::duration_ns")]
    pub timeout_ns: u64,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            lost_requests: 0.0,
            lost_answers: 0.0,
            server_errors: 0.0,
            timeout_ns: 60_000_000_000,
        }
    }
}

impl Faults {
    pub(crate) fn loses_request(&self, dice: &mut Dice) -> bool {
        happens(self.lost_requests, dice)
    }

    pub(crate) fn loses_answer(&self, dice: &mut Dice) -> bool {
        happens(self.lost_answers, dice)
    }

    pub(crate) fn breaks_server(&self, dice: &mut Dice) -> bool {
        happens(self.server_errors, dice)
    }

    /// Whether every chance is one.
    pub(crate) fn is_valid(&self) -> bool {
        [self.lost_requests, self.lost_answers, self.server_errors]
            .iter()
            .all(|chance| (0.0..=1.0).contains(chance))
    }
}

fn happens(chance: f64, dice: &mut Dice) -> bool {
    chance > 0.0 && dice.unit() < chance
}
