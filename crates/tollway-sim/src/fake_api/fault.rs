//! Faults: what a real upstream does by chance and this one on demand, or at a set request or time.

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;

use super::LimitSpec;
use super::model::UsageTold;

/// Something that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    tag = "do",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case",
    deny_unknown_fields
)]
#[non_exhaustive]
pub enum Fault {
    /// Every bucket gets a new hash; what was taken stays taken.
    RenameBuckets,
    /// The limit fields vanish from answers, or come back.
    HideFields {
        /// Whether they are hidden.
        on: bool,
    },
    /// The next answers are 429 in HTML without `Via`, from the network in front.
    Html {
        /// How many answers.
        count: u64,
    },
    /// The limit fields of the next answers are nonsense.
    Garble {
        /// How many answers.
        count: u64,
    },
    /// The next answers come late, and so out of order.
    Late {
        /// How many answers.
        count: u64,
        /// How much later.
        #[serde(deserialize_with = "crate::scenario::text::duration")]
        by: Duration,
    },
    /// The server's clock goes wrong: `Date` and every reset with it.
    Skew {
        /// Milliseconds ahead of the truth.
        ahead_ms: i64,
    },
    /// `Date` alone goes wrong, so that it disagrees with the resets.
    DateSkew {
        /// Milliseconds ahead of the server's clock.
        ahead_ms: i64,
    },
    /// A bucket gets another limit in mid-window.
    SetLimit {
        /// The bucket's name in the description.
        bucket: String,
        /// The new limit.
        limit: u64,
    },
    /// The next answers have that status and take nothing.
    Status {
        /// How many answers.
        count: u64,
        /// The status, such as 502.
        status: u16,
    },
    /// The next answers of models tell what they used not at all or twice.
    Usage {
        /// How many answers.
        count: u64,
        /// How often they tell it.
        told: UsageTold,
    },
    /// The next answers do not arrive whole.
    End {
        /// How many answers.
        count: u64,
        /// How they end.
        ending: Ending,
    },
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Ending {
    /// It arrives whole.
    #[default]
    Whole,
    /// It never comes, and the connection stays open.
    Stall,
    /// The connection closes instead.
    Close,
    /// The head comes, then half the body, then the connection closes.
    CutBody,
    /// The head comes, then half the body, then nothing.
    StallBody,
}

/// A fault that waits for its moment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Scheduled {
    /// With this request, counted from one.
    #[serde(default)]
    pub at_request: Option<u64>,
    /// So long after the first request.
    #[serde(default, deserialize_with = "crate::scenario::text::some_duration")]
    pub at: Option<Duration>,
    /// What happens then.
    #[serde(flatten)]
    pub fault: Fault,
}

/// The faults in force.
#[derive(Debug, Default)]
pub(super) struct Faults {
    scheduled: Vec<Scheduled>,
    generation: u64,
    hidden: bool,
    html: u64,
    garbled: u64,
    late: (u64, Duration),
    skew_ms: i64,
    date_skew_ms: i64,
    limits: HashMap<String, u64>,
    status: (u64, u16),
    ending: (u64, Ending),
    usage: (u64, UsageTold),
}

impl Faults {
    pub(super) fn new(scheduled: Vec<Scheduled>) -> Self {
        Self { scheduled, ..Self::default() }
    }

    /// Lets the scheduled faults happen whose moment has come.
    pub(super) fn schedule(&mut self, request: u64, elapsed: Duration) {
        let is_due = |item: &Scheduled| {
            item.at_request.is_some_and(|at| request >= at)
                || item.at.is_some_and(|at| elapsed >= at)
        };
        let (due, later) = std::mem::take(&mut self.scheduled).into_iter().partition(is_due);
        self.scheduled = later;
        let due: Vec<Scheduled> = due;
        due.into_iter().for_each(|item| self.inject(item.fault));
    }

    pub(super) fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::RenameBuckets => self.generation += 1,
            Fault::HideFields { on } => self.hidden = on,
            Fault::Html { count } => self.html = count,
            Fault::Garble { count } => self.garbled = count,
            Fault::Late { count, by } => self.late = (count, by),
            Fault::Skew { ahead_ms } => self.skew_ms = ahead_ms,
            Fault::DateSkew { ahead_ms } => self.date_skew_ms = ahead_ms,
            Fault::SetLimit { bucket, limit } => {
                self.limits.insert(bucket, limit);
            }
            Fault::Status { count, status } => self.status = (count, status),
            Fault::Usage { count, told } => self.usage = (count, told),
            Fault::End { count, ending } => self.ending = (count, ending),
        }
    }

    /// How often buckets have been renamed.
    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) const fn is_hidden(&self) -> bool {
        self.hidden
    }

    pub(super) const fn is_garbled(&self) -> bool {
        self.garbled > 0
    }

    pub(super) const fn skew_ms(&self) -> i64 {
        self.skew_ms
    }

    pub(super) const fn date_skew_ms(&self) -> i64 {
        self.date_skew_ms
    }

    pub(super) fn lowered(&self, bucket: &str, limit: LimitSpec) -> LimitSpec {
        match self.limits.get(bucket) {
            Some(other) => LimitSpec { limit: *other, ..limit },
            None => limit,
        }
    }

    pub(super) const fn take_html(&mut self) -> bool {
        take(&mut self.html)
    }

    pub(super) fn take_status(&mut self) -> Option<u16> {
        take(&mut self.status.0).then_some(self.status.1)
    }

    pub(super) fn take_usage(&mut self) -> UsageTold {
        if take(&mut self.usage.0) { self.usage.1 } else { UsageTold::Once }
    }

    /// How late this answer is.
    pub(super) const fn lateness(&mut self) -> Duration {
        if take(&mut self.late.0) { self.late.1 } else { Duration::ZERO }
    }

    /// How this answer ends. The last step of an answer: garbled fields are counted here too.
    pub(super) const fn ending(&mut self) -> Ending {
        take(&mut self.garbled);
        if take(&mut self.ending.0) { self.ending.1 } else { Ending::Whole }
    }
}

/// Uses up one of `count`, if there is one.
const fn take(count: &mut u64) -> bool {
    let some = *count > 0;
    *count = count.saturating_sub(1);
    some
}
