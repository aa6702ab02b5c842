//! A sub-limit of a bucket: requests that may meet a limit of their own.
//!
//! Two renames of a channel in ten minutes, a crosspost in an hour: limits that no field announces
//! and that only a refusal shows. They must not stop the other requests of the bucket. What is
//! learned of them is in [`hidden_limit`](super::hidden_limit). Where the upstream announces the
//! bucket's limit and the profile names no sub-limit, nothing is counted until one is refused.

use std::time::Duration;

use tollway_core::Timestamp;

use super::budgets::Waiting;
use super::encoding::encoded;
use super::hidden_limit::{HiddenLimit, Refused};
use super::meter::When;
use crate::fair_queue::FairQueue;
use crate::profile::{Profile, Route};

/// Requests in flight that a sub-limit which the profile names may refuse at once.
const NAMED_OPENS_UP_TO: u32 = 2;

/// A sub-limit of a bucket.
#[derive(Debug, Default)]
pub(super) struct SubLimit {
    pub(super) label: Box<str>,
    pub(super) queue: FairQueue<Waiting>,
    pub(super) in_flight: u32,
    /// Whether the profile says that there may be a limit.
    is_named: bool,
    hidden: HiddenLimit,
    /// The limit that people were told of last.
    noted_units: u64,
}

encoded!(SubLimit { label, in_flight, is_named, hidden, noted_units } made { queue });

impl SubLimit {
    pub(super) fn new(label: &str, route: &Route, profile: &Profile) -> Self {
        let is_named = route.lane().is_some();
        let pace = profile.documented_pace().filter(|_| !is_named);
        let hidden = HiddenLimit::new(profile.first_burst()).documented(pace);
        Self { label: label.into(), is_named, hidden, ..Self::default() }
    }

    /// When its next request may go, as far as the sub-limit is concerned; `is_silent` says that
    /// the upstream announces no limit of the bucket.
    pub(super) fn ready(&self, is_silent: bool, now: Timestamp) -> When {
        match is_silent || self.is_watched() {
            true => self.hidden.ready(self.in_flight, now),
            false => When::Now,
        }
    }

    /// A request leaves.
    pub(super) fn send(&mut self, id: u64, is_silent: bool, now: Timestamp) {
        if is_silent || self.is_watched() {
            self.hidden.sent(id, self.in_flight, now);
        }
        self.in_flight += 1;
    }

    pub(super) fn leave(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// It was accepted; `most` may be in flight as long as nothing is known, and fewer where the
    /// profile expects a limit.
    pub(super) fn accept(&mut self, id: u64, left: Timestamp, most: u32, now: Timestamp) {
        let most = if self.is_named { most.min(NAMED_OPENS_UP_TO) } else { most };
        self.hidden.accept(id, left, most, now);
    }

    /// It was refused; how long to wait.
    pub(super) fn refuse(&mut self, refused: &Refused, now: Timestamp) -> Duration {
        self.hidden.refuse(refused, now)
    }

    /// A request ended without saying anything of the limit.
    pub(super) fn end(&mut self, id: u64) {
        self.hidden.end(id);
    }

    /// Whether the profile says that there may be a limit.
    pub(super) fn is_named(&self) -> bool {
        self.is_named
    }

    /// How long a newcomer would wait behind those who wait already.
    pub(super) fn wait(&self, now: Timestamp) -> Duration {
        self.hidden.wait(self.queue.len() as u64, self.in_flight, now)
    }

    pub(super) fn blocked_for(&self, now: Timestamp) -> Option<Duration> {
        self.hidden.blocked_for(now)
    }

    /// Whether it was refused, and the request that goes first is not answered yet.
    pub(super) fn is_probing(&self) -> bool {
        self.hidden.is_probing()
    }

    /// What was learned since people were last told of it: units in a window, and those told
    /// before.
    pub(super) fn take_news(&mut self) -> Option<(u64, Duration, u64)> {
        let (units, window) = self.hidden.belief().filter(|_| !self.hidden.is_probing())?;
        let before = std::mem::replace(&mut self.noted_units, units);
        (units != before).then_some((units, window, before))
    }

    pub(super) fn unlock(&mut self) {
        self.hidden.unlock();
    }

    pub(super) fn can_be_forgotten(&self, now: Timestamp) -> bool {
        self.queue.is_empty() && self.in_flight == 0 && self.hidden.can_be_forgotten(now)
    }

    /// Whether there is, or may be, a limit besides the one that the upstream announces.
    pub(super) fn is_watched(&self) -> bool {
        self.is_named || self.hidden.was_refused()
    }
}
