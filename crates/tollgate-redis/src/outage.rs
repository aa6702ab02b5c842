//! Since when a server has been failing without a break, which bounds what `allow` may allow.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Since when a server has been failing.
#[derive(Debug, Default)]
pub(crate) struct Outage(Mutex<Record>);

#[derive(Debug, Default)]
struct Record {
    since: Option<Instant>,
    last: Option<Instant>,
}

/// Failures further apart than this, with answers in between, are two outages.
const APART: Duration = Duration::from_secs(10);

impl Outage {
    /// Notes a failure.
    pub(crate) fn failed(&self) {
        let now = Instant::now();
        let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        record.since.get_or_insert(now);
        record.last = Some(now);
    }

    /// Notes an answer. One that was written ends the outage; one that was only read does so after
    /// a while: a full store answers reads and refuses writes.
    pub(crate) fn answered(&self, written: bool) {
        let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if record.since.is_some() && (written || record.last.is_some_and(|at| at.elapsed() > APART))
        {
            *record = Record::default();
        }
    }

    /// How long the outage has lasted; zero if there is none.
    pub(crate) fn lasted(&self) -> Duration {
        let record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        record.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}
