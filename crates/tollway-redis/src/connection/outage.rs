//! Since when a server has been failing without a break, and why; it bounds what `allow` may allow.
//!
//! ```text
//!   failed ── failed ── failed ──┬── a decision ─────────────────────────> over
//!     ^                          ├── a decision that wrote nothing,
//!   since                        │   after a write was refused ──┐
//!                                └── an answer to a probe ───────┴─ 10 s without a failure ─> over
//! ```
//!
//! A decision within the budget is what the store is there for, so it ends the outage at once,
//! whether it allowed or denied. Two answers prove less. A full store answers reads and refuses
//! writes: once it has refused one, only a write shows that it takes them again. And a server that
//! greets a new connection may still be too slow to decide: taken for the end, every reconnection
//! would begin the time of `allow` afresh.
//!
//! Failures come late: an attempt that ran into the end of the outage fails after others were
//! answered. So each says when its attempt began, and one that began before the last decision says
//! nothing that the decision has not overtaken.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::failure::{Failure, FailureKind};

/// Since when a server has been failing, and why.
#[derive(Debug, Default)]
pub struct OutageRecord(Mutex<Record>);

#[derive(Debug, Default)]
struct Record {
    since: Option<Instant>,
    last: Option<Instant>,
    /// When the last attempt began that the server decided.
    decided: Option<Instant>,
    /// When the last attempt that failed began.
    failed_began: Option<Instant>,
    /// Whether the server answered, and refused to write.
    refuses_writes: bool,
    reason: Arc<str>,
}

/// What a server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proof {
    /// A decision that it wrote down.
    Written,
    /// A decision that changed nothing.
    Read,
    /// That it is there.
    Alive,
}

/// After so long without a failure any answer ends an outage.
const APART: Duration = Duration::from_secs(10);

/// Reasons come from servers too, and are kept.
const REASON_LEN_MAX: usize = 256;

impl OutageRecord {
    /// Notes the failure of an attempt that began at `began`, and says nothing new about its cause.
    pub fn failed(&self, began: Instant) {
        self.note(began, None, false);
    }

    /// Notes the failure of an attempt that began at `began`, and its cause.
    pub(crate) fn failed_by(&self, began: Instant, reason: &str) {
        self.note(began, Some(reason), false);
    }

    /// Notes that the server answered an attempt that began at `began`, and refused to do what it
    /// was asked.
    pub(crate) fn refused_by(&self, began: Instant, reason: &str) {
        self.note(began, Some(reason), true);
    }

    /// Notes why an attempt that began at `began` has failed.
    pub(crate) fn note_failure(&self, began: Instant, failure: &Failure) {
        let refuses_writes = failure.kind() == FailureKind::RefusesWrites;
        // That there is no connection is no news: why there is none was noted when it was lost.
        let is_news = failure.kind() != FailureKind::Away || failure.code().is_some();
        let reason = is_news.then(|| failure.to_string());
        self.note(began, reason.as_deref(), refuses_writes);
    }

    fn note(&self, began: Instant, reason: Option<&str>, refuses_writes: bool) {
        let now = Instant::now();
        let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if record.decided.is_some_and(|decided| began < decided) {
            return;
        }
        record.since.get_or_insert(now);
        record.last = Some(now);
        record.failed_began = record.failed_began.max(Some(began));
        record.refuses_writes |= refuses_writes;
        if let Some(reason) = reason
            && *record.reason != *shortened(reason)
        {
            record.reason = shortened(reason).into();
        }
    }

    /// Notes an answer.
    pub fn answered(&self, proof: Proof) {
        self.answered_to(Instant::now(), proof);
    }

    /// Notes the answer to an attempt that began at `began`. It says nothing against the failure of
    /// an attempt that began later, although it may be noted after it.
    pub(crate) fn answered_to(&self, began: Instant, proof: Proof) {
        let mut record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_decided = match proof {
            Proof::Written => true,
            Proof::Read => !record.refuses_writes,
            Proof::Alive => false,
        };
        let is_decided = is_decided && record.failed_began.is_none_or(|failed| failed <= began);
        if is_decided {
            record.decided = record.decided.max(Some(began));
        }
        let is_past = record.last.is_some_and(|at| at.elapsed() > APART);
        if record.since.is_some() && (is_decided || is_past) {
            *record = Record { decided: record.decided, ..Record::default() };
        }
    }

    /// How long the outage has lasted; zero if there is none.
    pub fn lasted(&self) -> Duration {
        let record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        record.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// The outage under way, if there is one.
    pub fn told(&self) -> Option<tollway_core::Outage> {
        let record = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lasted = record.since?.elapsed();
        Some(tollway_core::Outage { lasted, reason: record.reason.as_ref().to_owned() })
    }
}

fn shortened(reason: &str) -> &str {
    &reason[..reason.floor_char_boundary(REASON_LEN_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pass(ms: u64) {
        tokio::time::advance(Duration::from_millis(ms)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn short_outages_do_not_add_up_though_every_answer_between_is_a_denial() {
        let outage = OutageRecord::default();
        for _ in 0..8 {
            outage.failed(Instant::now());
            pass(600).await;
            assert_eq!(outage.lasted(), Duration::from_millis(600));
            outage.answered(Proof::Read);
            assert_eq!((outage.lasted(), outage.told()), (Duration::ZERO, None));
            pass(100).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_refuses_writes_is_not_well_because_it_answers_reads() {
        let outage = OutageRecord::default();
        outage.refused_by(Instant::now(), "OOM");
        pass(1_000).await;
        outage.failed(Instant::now());
        outage.answered(Proof::Read);
        assert_eq!(outage.lasted(), Duration::from_secs(1));
        outage.answered(Proof::Written);
        assert_eq!(outage.told(), None);
        outage.failed(Instant::now());
        outage.answered(Proof::Read);
        assert_eq!(outage.told(), None, "the next outage is another");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_to_a_probe_ends_an_outage_only_after_a_while() {
        let outage = OutageRecord::default();
        outage.failed_by(Instant::now(), "it broke");
        pass(5_000).await;
        outage.failed(Instant::now());
        pass(10_000).await;
        outage.answered(Proof::Alive);
        let told = outage.told().unwrap();
        assert_eq!((told.lasted, &*told.reason), (Duration::from_secs(15), "it broke"));
        pass(1).await;
        outage.answered(Proof::Alive);
        assert_eq!(outage.told(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_to_what_began_before_the_last_failure_ends_no_outage() {
        let outage = OutageRecord::default();
        let before = Instant::now();
        pass(1).await;
        outage.failed_by(Instant::now(), "it broke");
        outage.answered_to(before, Proof::Written);
        assert!(outage.told().is_some(), "noted late, it says what was true before");
        outage.answered_to(Instant::now(), Proof::Written);
        assert_eq!(outage.told(), None);
        // Two are under way at once: the first is answered, and the second, sent later, fails.
        let first = Instant::now();
        pass(1).await;
        let second = Instant::now();
        pass(1).await;
        outage.answered_to(first, Proof::Written);
        outage.failed(second);
        assert!(outage.told().is_some(), "it failed after what was answered had been sent");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_of_what_began_before_the_last_decision_opens_no_outage() {
        for proof in [Proof::Written, Proof::Read] {
            let outage = OutageRecord::default();
            let began = Instant::now();
            outage.failed(began);
            pass(100).await;
            outage.answered(proof);
            pass(100).await;
            outage.failed(began);
            outage.failed_by(began, "late");
            outage.refused_by(began, "late");
            assert_eq!(outage.told(), None, "{proof:?}: what is over stays over");
            outage.failed_by(Instant::now(), "anew");
            outage.failed_by(began, "late");
            assert_eq!(outage.told().unwrap().reason, "anew", "{proof:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_no_decision_overtakes_no_failure() {
        let outage = OutageRecord::default();
        let began = Instant::now();
        pass(100).await;
        outage.answered(Proof::Alive);
        outage.refused_by(began, "OOM");
        assert!(outage.told().is_some(), "it greets, and does not decide");
        outage.answered(Proof::Read);
        pass(100).await;
        outage.failed(began);
        assert_eq!(outage.lasted(), Duration::from_millis(100), "it reads, and does not write");
    }

    #[test]
    fn a_reason_is_kept_short_and_whole() {
        let outage = OutageRecord::default();
        outage.failed_by(Instant::now(), &"é".repeat(1_000));
        assert_eq!(outage.told().unwrap().reason, "é".repeat(REASON_LEN_MAX / 2));
    }
}
