//! Jobs that ended, and the order in which they did.

use std::fmt;
use std::str::FromStr;

use tollway_core::Timestamp;

use crate::error::Error;
use crate::{Job, JobId, JobState};

impl Job {
    /// Where it stands in the order in which jobs ended; `None` if it is not over.
    pub const fn end_mark(&self) -> Option<EndMark> {
        match self.state {
            JobState::Done { at, .. } | JobState::Dead { at, .. } => {
                Some(EndMark { at, id: self.id })
            }
            JobState::Waiting { .. } | JobState::Running { .. } => None,
        }
    }
}

/// A place in the order in which jobs ended: behind this one.
///
/// By the clock of the backend. What ends after a clock was set back comes before what ended until
/// then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndMark {
    /// When the job ended.
    pub at: Timestamp,
    /// Which it was.
    pub id: JobId,
}

impl EndMark {
    /// Before every job.
    pub const FIRST: Self = Self { at: Timestamp::MIN, id: JobId(0) };
}

impl fmt::Display for EndMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.at.as_nanos(), self.id)
    }
}

impl FromStr for EndMark {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let read = || {
            let (at, id) = text.split_once('-')?;
            let at = Timestamp::from_nanos(at.parse().ok()?);
            Some(Self { at, id: JobId(id.parse().ok()?) })
        };
        read().ok_or_else(|| {
            Error::outside("mark", format_args!("{text:?}"), "one that an answer gave")
        })
    }
}

/// Jobs that have ended, those first that ended first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Jobs that are done or dead.
    pub jobs: Vec<Job>,
    /// Behind which to go on: the last of these, or if there is none where the search began.
    pub mark: EndMark,
}
