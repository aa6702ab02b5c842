//! What a response said about the limits, in numbers.

use std::sync::Arc;
use std::time::Duration;

use crate::budget::encoding::encoded_names;
use crate::pace::Outcome;

/// The shortest wait after a refusal, whatever it says.
const WAIT_MIN: Duration = Duration::from_millis(50);

/// Whom a refusal concerns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Scope {
    /// The bucket of the request: this credential has used it up.
    #[default]
    User,
    /// The resource, used up by others too: blocks only the lane, and is no fault of ours.
    Shared,
    /// Every request of the credential that is not exempt.
    Global,
}

encoded_names!(Scope { User = 0, Shared = 1, Global = 2 });

/// What a response said about one dimension of a limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Which dimension of the profile, from 0.
    pub dimension: u8,
    /// Which of several windows of that dimension (Riot's `20:1,100:120`), from 0.
    pub part: u8,
    /// Units per window.
    pub limit: Option<u64>,
    /// Units left, rounded down.
    pub remaining: Option<u64>,
    /// Time until the whole limit is back, by the upstream's own account; clamped to a day, and
    /// five minutes if it is told to be longer than a month.
    pub reset_after: Option<Duration>,
    /// Whether the upstream told a reset that nobody can mean: then one request sees what is true.
    pub is_doubtful: bool,
    /// Whether `reset_after` was told as such, and not worked out from `resets_at` and the `Date`.
    pub told_after: bool,
    /// When the whole limit is back, since the Unix epoch on the upstream's clock.
    pub resets_at: Option<Duration>,
    /// The length of the window.
    pub window: Option<Duration>,
}

/// What a response said about the limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// The status code.
    pub status: u16,
    /// How the request ended, as far as limits are concerned.
    pub outcome: Outcome,
    /// The upstream's name of the bucket that the request was counted in.
    pub bucket: Option<Arc<str>>,
    /// What was said about each dimension.
    pub readings: Vec<Reading>,
    /// Time until another try is worthwhile; clamped to a day, and five minutes if it is told to be
    /// longer than a month.
    pub retry_after: Option<Duration>,
    /// Whom a refusal concerns; none if it was not said.
    pub scope: Option<Scope>,
    /// The `Date` of the response, since the Unix epoch: the upstream's clock, truncated to a
    /// second.
    pub date: Option<Duration>,
    /// Whether the upstream counts it as an invalid request (Discord's 10,000 per 10 minutes).
    pub invalid: bool,
    /// Fields that were there and made no sense.
    pub malformed: u32,
}

impl Default for Observation {
    /// An accepted request whose answer said nothing.
    fn default() -> Self {
        Self {
            status: 200,
            outcome: Outcome::Accepted,
            bucket: None,
            readings: Vec::new(),
            retry_after: None,
            scope: None,
            date: None,
            invalid: false,
            malformed: 0,
        }
    }
}

impl Observation {
    /// Whether the upstream refused because of a limit.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.outcome == Outcome::Limited
    }

    /// Whom a refusal concerns, as far as can be told.
    ///
    /// A refusal although something is left in every dimension comes from a limit that no field
    /// tells. It must not block the whole bucket, even if the upstream says that it is the user's.
    pub(crate) fn concerns(&self) -> Scope {
        let mut left = self.readings.iter().filter_map(|reading| reading.remaining).peekable();
        let has_some_left = left.peek().is_some() && left.all(|remaining| remaining > 0);
        match self.scope {
            Some(Scope::Global) => Scope::Global,
            _ if has_some_left => Scope::Shared,
            said => said.unwrap_or_default(),
        }
    }

    /// How long to wait after a refusal: as told, else until the reset of what is spent, else
    /// `unsaid`. Never less than [`WAIT_MIN`]: some upstreams say 0 and refuse again.
    pub(crate) fn refused_for(&self, unsaid: Duration) -> Duration {
        self.told_wait().unwrap_or(unsaid.max(WAIT_MIN))
    }

    /// The same, if the upstream says how long.
    pub(crate) fn told_wait(&self) -> Option<Duration> {
        let spent = self.readings.iter().filter(|reading| reading.remaining == Some(0));
        let reset = spent.filter_map(|reading| reading.reset_after).max();
        self.retry_after.or(reset).map(|wait| wait.max(WAIT_MIN))
    }
}
