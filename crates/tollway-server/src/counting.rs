//! Counting decisions: by policy for Prometheus, by key for the top list.
//!
//! A key that is never limited is not on the top list: there is nothing to do about it.

use std::sync::{Mutex, PoisonError};

use tollway_core::{Decision, StoreError, Timestamp, Verdict};

use crate::decide::Decided;
use crate::fallback::Fallback;
use crate::metrics::Tally;
use crate::rules::{Ask, Treatment};
use crate::top::{Record, Tops};

/// Counts of one tally, added up before the shared counters are touched.
#[derive(Default)]
struct Sums {
    allowed: u64,
    denied: u64,
    near_limit: u64,
    in_grace: u64,
    degraded: [u64; Fallback::ALL.len()],
}

/// Counts the decisions of one request, or of one batch.
#[derive(Clone, Copy)]
pub(crate) struct Counting<'a> {
    /// The most frequent keys of the worker.
    pub tops: &'a Mutex<Tops>,
    /// When it was decided.
    pub now: Timestamp,
}

impl Counting<'_> {
    /// Counts a batch of independent answers.
    pub(crate) fn count(&self, asks: &[Ask<'_>], answers: &[Decided]) {
        let mut sums = Sums::default();
        let mut tally: Option<&Tally> = None;
        let mut tops = self.tops.lock().unwrap_or_else(PoisonError::into_inner);
        for (ask, answer) in asks.iter().zip(answers) {
            // A pipeline mostly asks one policy: its shared counters are touched once.
            if !tally.is_some_and(|tally| std::ptr::eq(tally, ask.tally)) {
                sums.flush(tally);
                tally = Some(ask.tally);
            }
            let Ok(verdict) = answer else {
                sums.degraded[Fallback::Unavailable as usize] += u64::from(is_unavailable(answer));
                continue;
            };
            let Some(decision) = verdict.decisions().first() else { continue };
            sums.add(ask, decision, verdict.is_degraded());
            if ask.treatment != Treatment::Exempt {
                let record = Record::of(ask, decision, verdict.is_degraded(), self.now);
                tops.see(ask.charge.key.as_bytes(), record);
            }
        }
        sums.flush(tally);
    }

    /// Counts the answer to one request of several charges.
    pub(crate) fn count_verdict(&self, asks: &[Ask<'_>], answer: &Decided) {
        match answer {
            Ok(verdict) => self.count_decisions(asks, verdict),
            Err(_) if is_unavailable(answer) => asks
                .iter()
                .filter(|ask| ask.is_asked())
                .for_each(|ask| ask.tally.degraded.add(Fallback::Unavailable, 1)),
            Err(_) => {}
        }
    }

    /// Counts the decisions of a verdict, one per ask.
    pub(crate) fn count_decisions(&self, asks: &[Ask<'_>], verdict: &Verdict) {
        let mut tops = self.tops.lock().unwrap_or_else(PoisonError::into_inner);
        for (ask, decision) in asks.iter().zip(verdict.decisions()) {
            let mut sums = Sums::default();
            sums.add(ask, decision, verdict.is_degraded());
            sums.flush(Some(ask.tally));
            if ask.treatment != Treatment::Exempt {
                let record = Record::of(ask, decision, verdict.is_degraded(), self.now);
                tops.see(ask.charge.key.as_bytes(), record);
            }
        }
    }
}

/// Whether a caller was told that the store does not answer, and nothing else.
fn is_unavailable(answer: &Decided) -> bool {
    answer.as_ref().is_err_and(StoreError::is_transient)
}

impl Sums {
    #[inline]
    fn add(&mut self, ask: &Ask<'_>, decision: &Decision, degraded: bool) {
        let snapshot = decision.snapshot();
        let is_allowed = decision.is_allowed();
        self.allowed += u64::from(is_allowed);
        self.denied += u64::from(!is_allowed);
        self.near_limit += u64::from(is_allowed && snapshot.remaining() < snapshot.limit() / 5);
        let grace_used = ask.charge.policy.algorithm().grace_used(snapshot);
        self.in_grace += u64::from(is_allowed && grace_used > Some(0));
        if degraded && ask.is_asked() {
            self.degraded[Fallback::of(ask, decision) as usize] += 1;
        }
    }

    fn flush(&mut self, tally: Option<&Tally>) {
        if let Some(tally) = tally {
            tally.allowed.add(self.allowed);
            tally.denied.add(self.denied);
            tally.near_limit.add(self.near_limit);
            tally.in_grace.add(self.in_grace);
            for (fallback, count) in Fallback::ALL.into_iter().zip(self.degraded) {
                tally.degraded.add(fallback, count);
            }
        }
        *self = Self::default();
    }
}
