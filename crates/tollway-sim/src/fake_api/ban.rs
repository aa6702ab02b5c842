//! The ban: too many invalid requests from one address, and nothing is answered any more.

use std::collections::VecDeque;
use std::time::Duration;

use tollway_core::Timestamp;

use super::BanSpec;

/// Invalid requests within the period, and the ban that they brought.
#[derive(Debug)]
pub(super) struct Ban {
    spec: Option<BanSpec>,
    log: VecDeque<u64>,
    until: Timestamp,
}

impl Ban {
    pub(super) fn new(spec: Option<BanSpec>) -> Self {
        Self { spec, log: VecDeque::new(), until: Timestamp::MIN }
    }

    pub(super) fn is_banned(&self, now: Timestamp) -> bool {
        now < self.until
    }

    pub(super) fn left(&self, now: Timestamp) -> Duration {
        self.until.since(now)
    }

    /// Counts an invalid request; whether it was the one too many.
    pub(super) fn count_one(&mut self, now: Timestamp) -> bool {
        let Some(spec) = self.spec.clone() else { return false };
        self.forget(spec.per, now);
        self.log.push_back(now.as_nanos());
        if (self.log.len() as u64) < spec.invalid {
            return false;
        }
        self.log.clear();
        self.until = now.after(spec.lasting);
        true
    }

    pub(super) fn count(&mut self, now: Timestamp) -> u64 {
        if let Some(per) = self.spec.as_ref().map(|spec| spec.per) {
            self.forget(per, now);
        }
        self.log.len() as u64
    }

    fn forget(&mut self, per: Duration, now: Timestamp) {
        let oldest_ns = now.before(per).as_nanos();
        while self.log.front().is_some_and(|at_ns| *at_ns <= oldest_ns) {
            self.log.pop_front();
        }
    }
}
