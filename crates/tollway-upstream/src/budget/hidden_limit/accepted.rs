//! When requests were accepted, in bounded memory.
//!
//! ```text
//!   12 ●   3 ●  1 ● ● ●●●● now      neighbours become one, counted at the later of the two
//! ```
//!
//! What counts as later leaves a window later, so merging only ever makes a belief more careful.

use std::collections::VecDeque;

use tollway_core::Timestamp;

use crate::budget::encoding::encoded;

/// Entries kept; beyond that the closest neighbours are merged.
const ENTRIES_MAX: usize = 64;

/// Times in order, and how many units were accepted at each.
#[derive(Clone, Debug, Default)]
pub(super) struct Accepted {
    entries: VecDeque<(u64, u64)>,
}

encoded!(Accepted { entries });

impl Accepted {
    /// One more is accepted at `now`; what is older than `kept_ns` is forgotten.
    pub(super) fn add(&mut self, now: Timestamp, kept_ns: u64) {
        let now_ns = now.as_nanos();
        while self.entries.front().is_some_and(|(at, _)| at.saturating_add(kept_ns) <= now_ns) {
            self.entries.pop_front();
        }
        match self.entries.back_mut() {
            // Answers of several processes may be told a little out of order.
            Some((last, units)) if *last >= now_ns => *units += 1,
            _ => self.entries.push_back((now_ns, 1)),
        }
        if self.entries.len() > ENTRIES_MAX {
            self.merge();
        }
    }

    /// Units accepted after `from`.
    pub(super) fn since(&self, from: Timestamp) -> u64 {
        self.after(from).map(|(_, units)| units).sum()
    }

    /// When the `nth` unit after `from` was accepted.
    pub(super) fn nth_since(&self, from: Timestamp, nth: u64) -> Option<Timestamp> {
        let mut seen = 0;
        let mut found = self.after(from).filter(|(_, units)| {
            seen += units;
            seen >= nth
        });
        found.next().map(|(at, _)| Timestamp::from_nanos(at))
    }

    /// When the `nth` newest unit was accepted; the oldest, if there are fewer.
    pub(super) fn newest(&self, nth: u64) -> Option<Timestamp> {
        let mut seen = 0;
        let mut found = self.entries.iter().rev().filter(|(_, units)| {
            seen += units;
            seen >= nth
        });
        let found = found.next().or(self.entries.front());
        found.map(|(at, _)| Timestamp::from_nanos(*at))
    }

    /// The least limit with a window that ends at `end` and is not contradicted by what was
    /// accepted from `since` on: its units, and when the first of them was accepted.
    ///
    /// The window began before the answer at `refused`, unless all others came later.
    pub(super) fn least_limit(
        &self,
        since: Timestamp,
        refused: Timestamp,
        end: Timestamp,
    ) -> Option<(u64, Timestamp)> {
        let span = since.as_nanos()..end.as_nanos();
        let group: Vec<(u64, u64)> =
            self.entries.iter().filter(|(at, _)| span.contains(at)).copied().collect();
        let is_first = group.iter().all(|(at, _)| *at > refused.as_nanos());
        let mut units = 0;
        for (first, more) in group.iter().rev() {
            units += more;
            let window_ns = end.as_nanos().saturating_sub(*first);
            let may_be = is_first || *first <= refused.as_nanos();
            if may_be && most_within(&group, window_ns) <= units {
                return Some((units, Timestamp::from_nanos(*first)));
            }
        }
        None
    }

    fn after(&self, from: Timestamp) -> impl Iterator<Item = (u64, u64)> {
        let from_ns = from.as_nanos();
        self.entries.iter().copied().filter(move |(at, _)| *at > from_ns)
    }

    /// Makes one of the two neighbours that lie closest together.
    fn merge(&mut self) {
        let gap = |index: &usize| self.entries[index + 1].0 - self.entries[*index].0;
        let Some(closest) = (0..self.entries.len() - 1).min_by_key(gap) else { return };
        if let Some((_, units)) = self.entries.remove(closest) {
            self.entries[closest].1 += units;
        }
    }
}

/// The most units in any span of that length.
fn most_within(group: &[(u64, u64)], window_ns: u64) -> u64 {
    let spans = group.iter().enumerate().map(|(index, (first, _))| {
        let within = group[index..].iter().take_while(|(at, _)| at - first < window_ns);
        within.map(|(_, units)| units).sum()
    });
    spans.max().unwrap_or(0)
}
