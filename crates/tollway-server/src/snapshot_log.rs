//! When the snapshot of the states in memory was last written, and why not since then.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollway_core::Timestamp;

/// A snapshot is written every minute; one that is older than this has been missed twice.
const OLD: Duration = Duration::from_secs(150);

/// What became of the snapshots; of none, if none are to be written.
#[derive(Debug, Default)]
pub(crate) struct SnapshotLog(Mutex<Option<Snapshots>>);

#[derive(Clone, Debug)]
struct Snapshots {
    /// When the last one was written, or when the service began to write them.
    written_at: Timestamp,
    failure: Option<String>,
}

/// A snapshot that is older than it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OldSnapshot {
    /// How old it is.
    pub age: Duration,
    /// Why there is no newer one, if that is known.
    pub failure: Option<String>,
}

impl SnapshotLog {
    /// Snapshots are written from now on, or one was written now.
    pub(crate) fn written(&self, now: Timestamp) {
        *self.lock() = Some(Snapshots { written_at: now, failure: None });
    }

    /// A snapshot could not be written.
    pub(crate) fn failed(&self, reason: String) {
        if let Some(snapshots) = &mut *self.lock() {
            snapshots.failure = Some(reason);
        }
    }

    /// Whether the last snapshot is too old, or the last attempt has failed.
    pub(crate) fn old(&self, now: Timestamp) -> Option<OldSnapshot> {
        let Snapshots { written_at, failure } = self.lock().clone()?;
        let age = now.since(written_at);
        (failure.is_some() || age > OLD).then_some(OldSnapshot { age, failure })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Snapshots>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_old_when_two_were_missed_or_one_has_failed() {
        let (log, at) =
            (SnapshotLog::default(), |seconds: u64| Timestamp::from_millis(seconds * 1_000));
        assert_eq!(log.old(at(1_000)), None, "none are to be written");
        log.failed("nobody writes any".to_owned());
        log.written(at(1_000));
        assert_eq!(log.old(at(1_150)), None);
        let age = Duration::from_secs(151);
        assert_eq!(log.old(at(1_151)), Some(OldSnapshot { age, failure: None }));
        log.written(at(1_160));
        log.failed("the disk is full".to_owned());
        let old = log.old(at(1_161)).unwrap();
        assert_eq!(old.failure.as_deref(), Some("the disk is full"));
        log.written(at(1_170));
        assert_eq!(log.old(at(1_171)), None);
    }
}
