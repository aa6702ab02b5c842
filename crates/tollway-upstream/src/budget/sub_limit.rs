//! A sub-limit of a bucket: requests that may meet a limit of their own.
//!
//! Two renames of a channel in ten minutes, a crosspost in an hour: limits that no field announces
//! and that only a refusal shows. They must not stop the other requests of the bucket. After its
//! first refusal a sub-limit goes one request at a time, and what was counted between two refusals
//! is its limit from then on: the upstream need not say it twice.

use std::time::Duration;

use tollway_core::Timestamp;

use super::budgets::Waiting;
use super::encoding::encoded;
use super::meter::When;
use crate::fair_queue::FairQueue;

/// How long what a refusal taught is remembered after it.
const MEMORY: Duration = Duration::from_secs(3_600);

/// What refusals have taught of a sub-limit's limit.
#[derive(Clone, Copy, Debug)]
struct Learned {
    units: u32,
    window: Duration,
}

encoded!(Learned { units, window });

/// A sub-limit of a bucket.
#[derive(Debug, Default)]
pub(super) struct SubLimit {
    pub(super) label: Box<str>,
    pub(super) queue: FairQueue<Waiting>,
    pub(super) in_flight: u32,
    /// Whether it was refused, so that requests go one by one.
    refused: bool,
    blocked_until: Timestamp,
    learned: Option<Learned>,
    /// Accepted since the last refusal or window, and when the first of them was.
    accepted: u32,
    first: Timestamp,
    touched: Timestamp,
}

encoded!(SubLimit {
    label, in_flight, refused, blocked_until, learned, accepted, first, touched,
} made { queue });

impl SubLimit {
    pub(super) fn new(label: &str) -> Self {
        Self { label: label.into(), ..Self::default() }
    }

    /// When its next request may go, as far as the sub-limit is concerned.
    pub(super) fn ready(&self, now: Timestamp) -> When {
        if self.blocked_until > now {
            When::At(self.blocked_until)
        } else if self.refused && self.in_flight > 0 {
            When::Answer
        } else {
            When::Now
        }
    }

    pub(super) fn accept(&mut self, now: Timestamp) {
        if self.accepted == 0 {
            self.first = now;
        }
        self.accepted = self.accepted.saturating_add(1);
        self.touched = now;
        if let Some(learned) = self.learned
            && self.accepted >= learned.units
        {
            self.block(self.first.after(learned.window));
        }
    }

    pub(super) fn refuse(&mut self, wait: Duration, now: Timestamp) {
        if self.accepted > 0 && self.refused {
            let window = now.since(self.first).saturating_add(wait);
            self.learned = Some(Learned { units: self.accepted, window });
        }
        self.refused = true;
        self.touched = now;
        self.block(now.after(wait));
    }

    pub(super) fn blocked_for(&self, now: Timestamp) -> Option<Duration> {
        (self.blocked_until > now).then(|| self.blocked_until.since(now))
    }

    pub(super) fn unlock(&mut self) {
        self.blocked_until = Timestamp::MIN;
    }

    pub(super) fn can_be_forgotten(&self, now: Timestamp) -> bool {
        let remembered = self.refused && now < self.touched.after(MEMORY);
        self.queue.is_empty() && self.in_flight == 0 && self.blocked_until <= now && !remembered
    }

    fn block(&mut self, until: Timestamp) {
        self.blocked_until = self.blocked_until.max(until);
        self.accepted = 0;
    }
}
