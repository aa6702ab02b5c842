//! Counting decisions: by policy for Prometheus, by key for the top list.

use std::sync::PoisonError;

use tollgate_core::{Decision, Timestamp, Verdict};

use crate::decide::Decided;
use crate::metrics::Tally;
use crate::rules::{Ask, Treatment};
use crate::worker::Worker;

/// Counts of one tally, added up before the shared counters are touched.
#[derive(Default)]
struct Sums {
    allowed: u64,
    denied: u64,
    near_limit: u64,
    degraded: u64,
}

impl Worker {
    /// Counts a batch of independent answers.
    pub(crate) fn count(&self, asks: &[Ask<'_>], answers: &[Decided], now: Timestamp) {
        let mut sums = Sums::default();
        let mut tally: Option<&Tally> = None;
        let mut tops = self.tops.lock().unwrap_or_else(PoisonError::into_inner);
        for (ask, answer) in asks.iter().zip(answers) {
            // A pipeline mostly asks one policy: its shared counters are touched once.
            if !tally.is_some_and(|tally| std::ptr::eq(tally, ask.tally)) {
                sums.flush(tally);
                tally = Some(ask.tally);
            }
            let Ok(verdict) = answer else { continue };
            let Some(decision) = verdict.decisions().first() else { continue };
            sums.add(decision, verdict.is_degraded());
            tops.see(decision.is_allowed(), ask.charge.key.as_bytes(), now);
        }
        sums.flush(tally);
    }

    /// Counts the answer to one request of several charges.
    pub(crate) fn count_verdict(&self, asks: &[Ask<'_>], answer: &Decided, now: Timestamp) {
        if let Ok(verdict) = answer {
            self.count_decisions(asks, verdict, now);
        }
    }

    /// Counts the decisions of a verdict, one per ask.
    pub(crate) fn count_decisions(&self, asks: &[Ask<'_>], verdict: &Verdict, now: Timestamp) {
        let mut tops = self.tops.lock().unwrap_or_else(PoisonError::into_inner);
        for (ask, decision) in asks.iter().zip(verdict.decisions()) {
            let mut sums = Sums::default();
            sums.add(decision, verdict.is_degraded());
            sums.flush(Some(ask.tally));
            if ask.treatment != Treatment::Exempt {
                tops.see(decision.is_allowed(), ask.charge.key.as_bytes(), now);
            }
        }
    }
}

impl Sums {
    #[inline]
    fn add(&mut self, decision: &Decision, degraded: bool) {
        let snapshot = decision.snapshot();
        let is_allowed = decision.is_allowed();
        self.allowed += u64::from(is_allowed);
        self.denied += u64::from(!is_allowed);
        self.near_limit += u64::from(is_allowed && snapshot.remaining() < snapshot.limit() / 5);
        self.degraded += u64::from(degraded);
    }

    fn flush(&mut self, tally: Option<&Tally>) {
        if let Some(tally) = tally {
            tally.allowed.add(self.allowed);
            tally.denied.add(self.denied);
            tally.near_limit.add(self.near_limit);
            tally.degraded.add(self.degraded);
        }
        *self = Self::default();
    }
}
