//! A sliding window counted in buckets: at most `limit` units in the last `period`.
//!
//! Time is cut into ticks of `period / buckets`. A cell counts the units taken in one tick, and is
//! dropped once `buckets` ticks have passed since.
//!
//! ```text
//!   period = 1 s, 10 buckets:          now = …2980, tick 29
//!
//!   tick      19  20  21 … 28 | 29
//!   cell       2   1       2  |  +1
//!             ^^^ dropped: 19 <= 29 - 10
//! ```
//!
//! **Bound.** A cell is dropped when its tick ends, so the window looked at is between `period -
//! width` and `period` long: in no interval of `period - width` are more than `limit` units taken.
//! With [`SlidingWindow::exact`] a tick is one nanosecond and the window is exact.
//!
//! **Invariants.** Cells are in order of ticks; empty ticks have no cell; there are never more than
//! `buckets + 1` cells, nor more than `limit` (counted charges aside: then [`SlidingWindow::CELLS_MAX`]). Cells later than [`SKEW`] from now (the clock was set
//! back) count as taken then. But for that repair, a denial changes nothing.
//!
//! Rejected: interpolating between two windows (an estimate cannot say truthfully when to retry).
//!
//! [`SKEW`]: crate::SKEW

use alloc::collections::VecDeque;
use core::fmt;
use core::time::Duration;

use crate::decision::{Decision, Retry, Snapshot};
use crate::{Cost, Quota, SKEW, Timestamp};

/// A sliding window's limit, length and resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    limit: u64,
    period_ns: u64,
    buckets: u64,
}

/// Units taken per tick, oldest first. The default is an idle key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    cells: VecDeque<Cell>,
}

/// The units taken in one tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The tick: `time * buckets / period`, rounded down.
    pub tick: u64,
    /// Units taken in it.
    pub units: u64,
}

impl State {
    /// The state made of `cells`, which must be in order of ticks.
    #[must_use]
    pub fn from_cells(cells: impl IntoIterator<Item = Cell>) -> Self {
        Self { cells: cells.into_iter().collect() }
    }

    /// The cells, oldest first.
    pub fn cells(&self) -> impl ExactSizeIterator<Item = Cell> + '_ {
        self.cells.iter().copied()
    }

    /// Adds `units` to the cell of `tick`, or of the newest one if a racing thread was ahead.
    fn add(&mut self, tick: u64, units: u64) {
        match self.cells.back_mut() {
            Some(newest) if newest.tick >= tick => {
                newest.units = newest.units.saturating_add(units);
            }
            _ => self.cells.push_back(Cell { tick, units }),
        }
    }
}

impl SlidingWindow {
    /// The most buckets, and the most units of an exact window: what one key may take in memory.
    pub const CELLS_MAX: u64 = 65_536;

    /// `quota.units()` in the last `quota.period()`, counted in `buckets`; the burst plays no part.
    ///
    /// # Errors
    ///
    /// If there are no buckets, more than [`Self::CELLS_MAX`], or more than nanoseconds.
    pub const fn new(quota: Quota, buckets: u64) -> Result<Self, SlidingWindowError> {
        if buckets == 0 || buckets > Self::CELLS_MAX || buckets > quota.period_ns() {
            return Err(SlidingWindowError::Buckets);
        }
        Ok(Self { limit: quota.units(), period_ns: quota.period_ns(), buckets })
    }

    /// `quota.units()` in the last `quota.period()`, exact to the nanosecond, at up to one cell per
    /// unit.
    ///
    /// # Errors
    ///
    /// If the quota has more than [`Self::CELLS_MAX`] units.
    pub const fn exact(quota: Quota) -> Result<Self, SlidingWindowError> {
        if quota.units() > Self::CELLS_MAX {
            return Err(SlidingWindowError::ExactUnits);
        }
        let period_ns = quota.period_ns();
        Ok(Self { limit: quota.units(), period_ns, buckets: period_ns })
    }

    /// Units per period.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The length of the window.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period_ns)
    }

    /// The number of buckets; as many as nanoseconds if exact.
    #[must_use]
    pub const fn buckets(&self) -> u64 {
        self.buckets
    }

    /// Whether a tick is one nanosecond.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.buckets == self.period_ns
    }

    /// Takes `cost` units if the window has room for them; changes nothing otherwise.
    #[must_use]
    pub fn decide(&self, state: &mut State, cost: Cost, now: Timestamp) -> Decision {
        self.repair(state, now);
        let live = self.live(state, now);
        let wanted = live.total.saturating_add(cost.get());
        if wanted <= self.limit {
            self.take(state, live, cost.get(), now);
            return Decision::Allow(self.peek(state, now));
        }
        let retry = if cost.get() > self.limit {
            Retry::Never
        } else {
            Retry::after_nanos(self.freed_after_ns(state, wanted - self.limit, now))
        };
        Decision::Deny { snapshot: self.peek(state, now), retry }
    }

    /// What there is to report, with nothing taken.
    #[must_use]
    pub fn peek(&self, state: &State, now: Timestamp) -> Snapshot {
        let total = self.live(state, now).total;
        let remaining = self.limit.saturating_sub(total);
        let missing = total.saturating_sub(self.limit.saturating_sub(1)).max(1);
        Snapshot {
            limit: self.limit,
            remaining,
            reset_after_ns: self.freed_after_ns(state, total, now),
            next_after_ns: self.freed_after_ns(state, missing.min(total), now),
        }
    }

    /// Takes `cost` units whether or not the window has room for them.
    #[must_use]
    pub fn count(&self, state: &mut State, cost: Cost, now: Timestamp) -> Snapshot {
        self.repair(state, now);
        let live = self.live(state, now);
        self.take(state, live, cost.get(), now);
        // Counted units know no limit, cells do: the two newest become one, at the later tick.
        if state.cells.len() as u64 > Self::CELLS_MAX + 1
            && let (Some(newest), Some(before)) = (state.cells.pop_back(), state.cells.back_mut())
        {
            *before = Cell { tick: newest.tick, units: before.units.saturating_add(newest.units) };
        }
        self.peek(state, now)
    }

    /// Gives `units` back: those taken at `taken_at` if they still count, or, if that is not known,
    /// the oldest, which would have left the window first.
    pub fn refund(
        &self,
        state: &mut State,
        units: u64,
        taken_at: Option<Timestamp>,
        now: Timestamp,
    ) {
        self.repair(state, now);
        let live = self.live(state, now);
        state.cells.drain(..live.dead);
        let tick = taken_at.map(|taken_at| self.tick(taken_at));
        let mut left = units;
        for cell in state.cells.iter_mut().filter(|cell| tick.is_none_or(|tick| tick == cell.tick))
        {
            let back = cell.units.min(left);
            cell.units -= back;
            left -= back;
        }
        state.cells.retain(|cell| cell.units > 0);
    }

    /// From when on `state` says nothing that an absent state would not.
    #[must_use]
    pub fn vacant_at(&self, state: &State) -> Timestamp {
        state.cells.back().map_or(Timestamp::MIN, |newest| self.dropped_at(newest.tick))
    }

    fn take(&self, state: &mut State, live: Live, units: u64, now: Timestamp) {
        state.cells.drain(..live.dead);
        state.add(self.tick(now), units);
    }

    /// Brings cells that a set-back clock left in the future back to the latest believable tick.
    pub(crate) fn repair(&self, state: &mut State, now: Timestamp) {
        let latest = self.tick(now.after(SKEW));
        let mut units = 0u64;
        while let Some(newest) = state.cells.pop_back_if(|newest| newest.tick > latest) {
            units = units.saturating_add(newest.units);
        }
        if units > 0 {
            state.add(latest, units);
        }
    }

    /// Which cells still count at `now`.
    fn live(&self, state: &State, now: Timestamp) -> Live {
        let tick = self.tick(now);
        let dead =
            state.cells.partition_point(|cell| cell.tick.saturating_add(self.buckets) <= tick);
        let counted = state.cells.iter().skip(dead);
        let total = counted.fold(0u64, |total, cell| total.saturating_add(cell.units));
        Live { dead, total }
    }

    /// How long after `now` the oldest cells that hold `units` between them are dropped.
    fn freed_after_ns(&self, state: &State, units: u64, now: Timestamp) -> u64 {
        let latest = self.tick(now.after(SKEW));
        let mut freed = 0u64;
        for cell in state.cells.iter().skip(self.live(state, now).dead) {
            freed = freed.saturating_add(cell.units);
            if freed >= units && units > 0 {
                let dropped_at = self.dropped_at(cell.tick.min(latest));
                return dropped_at.as_nanos().saturating_sub(now.as_nanos());
            }
        }
        0
    }

    const fn tick(&self, at: Timestamp) -> u64 {
        (at.as_nanos() as u128 * self.buckets as u128 / self.period_ns as u128) as u64
    }

    /// The first moment at which a cell of `tick` no longer counts.
    fn dropped_at(&self, tick: u64) -> Timestamp {
        let ticks = u128::from(tick) + u128::from(self.buckets);
        let nanos = (ticks * u128::from(self.period_ns)).div_ceil(u128::from(self.buckets));
        Timestamp::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// How many of the oldest cells no longer count, and what the others hold.
struct Live {
    dead: usize,
    total: u64,
}

/// Why numbers do not make a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlidingWindowError {
    /// No buckets, more than [`SlidingWindow::CELLS_MAX`], or more than the period has nanoseconds.
    Buckets,
    /// An exact window of more than [`SlidingWindow::CELLS_MAX`] units.
    ExactUnits,
}

impl fmt::Display for SlidingWindowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Buckets => {
                "buckets must be between 1 and 65536, and no shorter than 1 nanosecond"
            }
            Self::ExactUnits => "an exact window holds at most 65536 units",
        })
    }
}

impl core::error::Error for SlidingWindowError {}

#[cfg(test)]
mod tests;
