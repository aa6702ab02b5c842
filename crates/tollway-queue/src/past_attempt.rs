//! What became of attempts at a job that did not get it done.

use std::time::Duration;

use tollway_core::Timestamp;

use crate::Outcome;

/// An attempt at a job that did not get it done.
///
/// A job remembers the last [`PastAttempt::COUNT_MAX`] of them for as long as it is known itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastAttempt {
    /// Which one, counted from 1: the fencing token of its lease.
    pub attempt: u32,
    /// The worker that had it.
    pub worker: String,
    /// When it began.
    pub leased_at: Timestamp,
    /// When it was over.
    pub ended_at: Timestamp,
    /// How it ended.
    pub end: AttemptEnd,
}

/// How an attempt ended that did not get its job done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// The worker said that it failed.
    Failed {
        /// Why; cut at 256 bytes.
        reason: String,
    },
    /// The upstream refused.
    Limited {
        /// How long the group was to wait.
        wait: Duration,
    },
    /// The worker gave it back.
    Released,
    /// Nothing was heard of the worker until its lease was over.
    Expired,
}

impl PastAttempt {
    /// How many are remembered of a job; of more, the last ones.
    pub const COUNT_MAX: usize = 8;
    /// The longest reason, in bytes.
    pub const REASON_LEN_MAX: usize = 256;
}

impl AttemptEnd {
    /// How an attempt with this outcome ended; `None` if the job is done.
    pub(crate) fn of(outcome: &Outcome) -> Option<Self> {
        match outcome {
            Outcome::Done { .. } => None,
            Outcome::Failed { reason, .. } => {
                let mut reason = reason.clone();
                cut_text(&mut reason, PastAttempt::REASON_LEN_MAX);
                Some(Self::Failed { reason })
            }
            Outcome::Limited { wait } => Some(Self::Limited { wait: *wait }),
            Outcome::Released => Some(Self::Released),
        }
    }
}

/// Cuts a text to at most so many bytes, and no letter in two.
pub(crate) fn cut_text(text: &mut String, bytes_max: usize) {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
}
