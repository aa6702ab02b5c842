//! When requests left, so that no more than so many leave in any period.
//!
//! ```text
//!      │◄──── period + jitter ────►│
//!  ──●─●●●──────────────────────────●──► time      the fifth goes when the first is so old
//! ```
//!
//! Exact for any phase of the upstream's windows: two requests that leave `period + jitter` apart
//! arrive at least a period apart. A bucket that refills evenly would let twice the limit through
//! within a window; windows on a grid of our own are broken by every grid that is not ours.

use std::collections::VecDeque;

use tollway_core::Timestamp;

/// Entries kept exactly; beyond that neighbours are merged, counted as the later one.
const EXACT: usize = 1_024;
/// Merged entries lie at least so many parts of the period apart.
const GRAIN: u64 = 512;

/// The last dispatches, by time.
#[derive(Clone, Debug)]
pub(super) struct Dispatches {
    units: u64,
    span_ns: u64,
    log: VecDeque<(u64, u64)>,
    sum: u64,
}

impl Dispatches {
    pub(super) fn new(units: u64, span_ns: u64) -> Self {
        Self { units, span_ns, log: VecDeque::new(), sum: 0 }
    }

    /// When `cost` units may leave; a cost above the limit leaves when nothing else counts.
    pub(super) fn ready_at(&self, cost: u64, now: Timestamp) -> Timestamp {
        let over = (self.live(now) + cost.min(self.units)).saturating_sub(self.units);
        let mut freed = 0;
        for &(at, units) in self.log.iter().filter(|(at, _)| !self.is_over(*at, now)) {
            if freed >= over {
                break;
            }
            freed += units;
            if freed >= over {
                return Timestamp::from_nanos(at.saturating_add(self.span_ns));
            }
        }
        now
    }

    pub(super) fn send(&mut self, cost: u64, now: Timestamp) {
        self.forget(now);
        let at = now.as_nanos();
        self.sum += cost;
        let (is_long, grain_ns) = (self.log.len() >= EXACT, self.span_ns / GRAIN);
        match self.log.back_mut() {
            Some((last, units)) if *last >= at => *units += cost,
            Some((last, units)) if is_long && at - *last < grain_ns => {
                (*last, *units) = (at, *units + cost);
            }
            _ => self.log.push_back((at, cost)),
        }
    }

    /// Units that were sent by `left` were not used after all. The oldest are taken back first:
    /// they end first, so never less counts than was used.
    pub(super) fn give_back(&mut self, units: u64, left: Timestamp, now: Timestamp) {
        self.forget(now);
        let mut rest = units;
        let until = left.as_nanos();
        for (_, sent) in self.log.iter_mut().take_while(|(at, _)| *at <= until) {
            let part = rest.min(*sent);
            *sent -= part;
            self.sum -= part;
            rest -= part;
        }
    }

    /// Units that count at `now`.
    pub(super) fn live(&self, now: Timestamp) -> u64 {
        let over = self.log.iter().take_while(|(at, _)| self.is_over(*at, now));
        self.sum - over.map(|(_, units)| units).sum::<u64>()
    }

    pub(super) fn units(&self) -> u64 {
        self.units
    }

    pub(super) fn span_ns(&self) -> u64 {
        self.span_ns
    }

    pub(super) fn is_empty(&self, now: Timestamp) -> bool {
        self.log.back().is_none_or(|(at, _)| self.is_over(*at, now))
    }

    /// When the newest of them no longer counts.
    pub(super) fn all_over_at(&self) -> Option<Timestamp> {
        self.log.back().map(|(at, _)| Timestamp::from_nanos(at.saturating_add(self.span_ns)))
    }

    fn forget(&mut self, now: Timestamp) {
        while let Some(&(at, units)) = self.log.front() {
            if !self.is_over(at, now) {
                break;
            }
            self.sum -= units;
            self.log.pop_front();
        }
    }

    fn is_over(&self, at: u64, now: Timestamp) -> bool {
        at.saturating_add(self.span_ns) <= now.as_nanos()
    }
}
