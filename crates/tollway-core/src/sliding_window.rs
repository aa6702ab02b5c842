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
//! `buckets + 1` cells, nor more than `limit`, but for counted charges (see
//! [`SlidingWindow::count`]). A state knows the last tick at which it was changed. It never moves
//! back: a caller whose reading of the clock is before that tick came late, and is decided as of
//! that tick, because cells that counted at his reading may have been dropped since. A denial
//! changes nothing.
//!
//! **Cost.** The state keeps the sum of its cells, so a check looks at the cells that have been
//! dropped since the last change and, if denied, at those that must be dropped before it is
//! allowed: one or two for a charge of one unit, however many cells there are.
//!
//! Rejected: interpolating between two windows (an estimate cannot say truthfully when to retry).

mod carry;

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::ToString;
use core::fmt;
use core::time::Duration;

use crate::algorithm::{Apply, Parameters, apply_in_place, per};
use crate::carry::Used;
use crate::decision::{Decision, Retry, Snapshot};
use crate::{Cost, Quota, SKEW, Timestamp};

/// A sliding window's limit, length and resolution.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    limit: u64,
    period_ns: u64,
    buckets: u64,
}

/// Units taken per tick, oldest first. The default is an idle key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    cells: VecDeque<Cell>,
    /// Units in all cells, dropped or not.
    total: u128,
    /// The last tick at which it was changed: not before any cell's, unless the clock was set back.
    as_of: u64,
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
    pub fn from_cells(cells: impl IntoIterator<Item = Cell>) -> Self {
        let cells: VecDeque<Cell> = cells.into_iter().collect();
        let total = cells.iter().map(|cell| u128::from(cell.units)).sum();
        let as_of = cells.back().map_or(0, |newest| newest.tick);
        Self { cells, total, as_of }
    }

    /// Gives memory back that was needed for more cells.
    pub(crate) fn shrink(&mut self) {
        if self.cells.capacity() > 4 * self.cells.len() + 16 {
            self.cells.shrink_to(2 * self.cells.len());
        }
    }

    /// The cells, oldest first.
    pub fn cells(&self) -> impl ExactSizeIterator<Item = Cell> + '_ {
        self.cells.iter().copied()
    }

    /// Adds `units` to the cell of `tick`, which is not before any other.
    fn add(&mut self, tick: u64, units: u64) {
        match self.cells.back_mut() {
            Some(newest) if newest.tick >= tick => {
                let before = newest.units;
                newest.units = before.saturating_add(units);
                self.total += u128::from(newest.units - before);
            }
            _ => {
                self.cells.push_back(Cell { tick, units });
                self.total += u128::from(units);
            }
        }
        self.as_of = self.as_of.max(tick);
    }

    /// Adds `units` taken at `tick`, which may be before the last change.
    fn add_in_order(&mut self, tick: u64, units: u64) {
        let as_of = self.as_of;
        self.add(tick, units);
        self.as_of = as_of;
    }

    /// Makes one cell of the two oldest, at the later tick.
    fn merge_oldest(&mut self) {
        if let Some(oldest) = self.cells.pop_front() {
            self.total -= u128::from(oldest.units);
            if let Some(next) = self.cells.front_mut() {
                let before = next.units;
                next.units = before.saturating_add(oldest.units);
                self.total += u128::from(next.units - before);
            }
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
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The length of the window.
    pub const fn period(&self) -> Duration {
        Duration::from_nanos(self.period_ns)
    }

    /// The number of buckets; as many as nanoseconds if exact.
    pub const fn buckets(&self) -> u64 {
        self.buckets
    }

    /// Whether a tick is one nanosecond.
    pub const fn is_exact(&self) -> bool {
        self.buckets == self.period_ns
    }

    /// Takes `cost` units if the window has room for them; changes nothing otherwise.
    pub fn decide(&self, state: &mut State, cost: Cost, now: Timestamp) -> Decision {
        if let Some(retry) = self.retry(state, cost, now) {
            return Decision::Deny { snapshot: self.peek(state, now), retry };
        }
        self.take(state, cost.get(), now);
        Decision::Allow(self.peek(state, now))
    }

    /// When `cost` units are worth another try, if the window has no room for them.
    pub fn retry(&self, state: &State, cost: Cost, now: Timestamp) -> Option<Retry> {
        let live = self.live(state, now);
        let wanted = live.total + u128::from(cost.get());
        let missing = wanted.saturating_sub(u128::from(self.limit));
        if cost.get() > self.limit {
            return Some(Retry::Never);
        }
        (missing > 0).then(|| Retry::after_nanos(self.freed_after_ns(state, &live, missing, now)))
    }

    /// What there is to report, with nothing taken.
    pub fn peek(&self, state: &State, now: Timestamp) -> Snapshot {
        let live = self.live(state, now);
        let limit = u128::from(self.limit);
        let missing = live.total.saturating_sub(limit.saturating_sub(1)).max(1).min(live.total);
        let newest = state.cells.back().filter(|_| live.total > 0);
        let reset_after_ns = newest.map_or(0, |newest| self.dropped_after_ns(newest.tick, now));
        let next_after_ns = self.freed_after_ns(state, &live, missing, now);
        Snapshot::used(self.limit, live.total, reset_after_ns, next_after_ns)
    }

    /// Takes `cost` units whether or not the window has room for them.
    ///
    /// What is counted beyond the limit needs cells too. They are bounded by the limit (twice it
    /// and a few): beyond that the two oldest become one, at the later tick. Nothing remains until
    /// the later of them is dropped anyway, so no decision is another for it; but units that are
    /// given back afterwards may go to the merged cell where they would have gone to a younger one.
    #[must_use]
    pub fn count(&self, state: &mut State, cost: Cost, now: Timestamp) -> Snapshot {
        self.take(state, cost.get(), now);
        if state.cells.len() as u64 > self.cells_max() {
            state.merge_oldest();
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
        let tick = taken_at.map(|taken_at| self.tick(taken_at));
        let meant = |cell: &Cell| tick.is_none_or(|tick| tick == cell.tick);
        let dead = self.live(state, now).dead;
        if units == 0 || !state.cells.iter().skip(dead).any(meant) {
            return;
        }
        self.drop_dead(state, now);
        let mut left = units;
        for cell in state.cells.iter_mut().filter(|cell| meant(cell)) {
            let back = cell.units.min(left);
            cell.units -= back;
            left -= back;
        }
        state.cells.retain(|cell| cell.units > 0);
        state.total -= u128::from(units - left);
    }

    /// Forgets what was taken. The window is empty as of `now`, and not as of any time before.
    pub fn clear(&self, state: &mut State, now: Timestamp) {
        if !state.cells.is_empty() {
            let as_of = self.tick(now).max(state.as_of);
            *state = State { as_of, ..State::default() };
        }
    }

    /// From when on `state` says nothing that an absent state would not.
    pub fn vacant_at(&self, state: &State) -> Timestamp {
        state.cells.back().map_or(Timestamp::MIN, |newest| self.dropped_at(newest.tick))
    }

    /// The moment as of which a charge with the reading `now` is decided.
    pub fn moment(&self, state: &State, now: Timestamp) -> Timestamp {
        if self.tick(now) >= state.as_of { now } else { self.start_of(state.as_of.into()) }
    }

    /// The state after the clock was set back to `now`: cells in the future count as taken at the
    /// latest believable tick, so that the key is locked for one period at most. Only for whoever
    /// knows that the clock was set back; see [`SKEW`].
    pub fn rewind(&self, state: &mut State, now: Timestamp) {
        let latest = self.tick(now.after(SKEW));
        let mut units = 0u64;
        while let Some(newest) = state.cells.back().copied().filter(|it| it.tick > latest) {
            state.cells.pop_back();
            state.total -= u128::from(newest.units);
            units = units.saturating_add(newest.units);
        }
        if units > 0 {
            state.add(latest, units);
        }
        // Cells may be ahead of it by the skew now.
        state.as_of = state.as_of.min(self.tick(now));
    }

    /// Drops the cells that do not count at `now` any more.
    pub(crate) fn drop_dead(&self, state: &mut State, now: Timestamp) {
        state.as_of = self.tick(now).max(state.as_of);
        let as_of = state.as_of;
        while let Some(dead) = state.cells.front().copied().filter(|it| self.is_dead(it, as_of)) {
            state.cells.pop_front();
            state.total -= u128::from(dead.units);
        }
    }

    fn take(&self, state: &mut State, units: u64, now: Timestamp) {
        self.drop_dead(state, now);
        state.add(state.as_of, units);
    }

    /// The most cells of counted charges.
    fn cells_max(&self) -> u64 {
        self.limit.saturating_mul(2).max(self.limit.saturating_add(64)).min(Self::CELLS_MAX + 1)
    }

    /// Which cells still count at `now`.
    fn live(&self, state: &State, now: Timestamp) -> Live {
        let tick = self.tick(now).max(state.as_of);
        let dead = state.cells.partition_point(|cell| self.is_dead(cell, tick));
        let dropped = state.cells.iter().take(dead).map(|cell| u128::from(cell.units));
        Live { dead, total: state.total - dropped.sum::<u128>() }
    }

    const fn is_dead(&self, cell: &Cell, tick: u64) -> bool {
        cell.tick.saturating_add(self.buckets) <= tick
    }

    /// How long after `now` the oldest cells that hold `units` between them are dropped.
    fn freed_after_ns(&self, state: &State, live: &Live, units: u128, now: Timestamp) -> u64 {
        let mut freed = 0u128;
        for cell in state.cells.iter().skip(live.dead) {
            freed += u128::from(cell.units);
            if freed >= units && units > 0 {
                return self.dropped_after_ns(cell.tick, now);
            }
        }
        0
    }

    fn dropped_after_ns(&self, tick: u64, now: Timestamp) -> u64 {
        self.dropped_at(tick).as_nanos().saturating_sub(now.as_nanos())
    }

    const fn tick(&self, at: Timestamp) -> u64 {
        (at.as_nanos() as u128 * self.buckets as u128 / self.period_ns as u128) as u64
    }

    /// The first moment at which a cell of `tick` no longer counts.
    fn dropped_at(&self, tick: u64) -> Timestamp {
        self.start_of(u128::from(tick) + u128::from(self.buckets))
    }

    /// The first moment of a tick.
    fn start_of(&self, tick: u128) -> Timestamp {
        let nanos = (tick * u128::from(self.period_ns)).div_ceil(u128::from(self.buckets));
        Timestamp::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// How many of the oldest cells no longer count, and what the others hold.
struct Live {
    dead: usize,
    total: u128,
}

impl Apply for SlidingWindow {
    apply_in_place!();

    const NAME: &'static str = "sliding-window";

    fn label(&self) -> &'static str {
        if self.is_exact() { "sliding-window (exact)" } else { Self::NAME }
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> Option<(u64, Duration)> {
        Some((self.limit, self.period()))
    }

    fn numbers(&self) -> [u64; 3] {
        [self.limit, self.period_ns, self.buckets]
    }

    fn from_numbers([limit, period_ns, buckets]: [u64; 3]) -> Option<Self> {
        let quota = Quota::new(limit, Duration::from_nanos(period_ns)).ok()?;
        Self::new(quota, buckets).or_else(|_| Self::exact(quota)).ok()
    }

    fn share(&self, _: u32, units: u64) -> Option<Self> {
        Self::from_numbers([units, self.period_ns, self.buckets])
    }

    fn from_parameters(given: &dyn Parameters) -> Option<Self> {
        let buckets = given.has("buckets").then(|| given.number("buckets"));
        let quota = given.quota()?;
        let (field, window) = match buckets {
            Some(buckets) => ("buckets", Self::new(quota, buckets?).map_err(|it| it.to_string())),
            None => (
                "quota",
                Self::exact(quota)
                    .map_err(|error| format!("{error}; give a number of buckets for a larger one")),
            ),
        };
        window.map_err(|why| given.refuse(field, why)).ok()
    }

    fn decide(&self, it: &mut State, cost: Cost, _: u128, now: Timestamp) -> Decision {
        Self::decide(self, it, cost, now)
    }

    fn count(&self, it: &mut State, cost: Cost, _: u128, now: Timestamp) -> Snapshot {
        Self::count(self, it, cost, now)
    }

    fn refund(&self, it: &mut State, units: u64, at: Option<Timestamp>, now: Timestamp) {
        Self::refund(self, it, units, at, now);
    }

    fn forget_past(&self, it: &mut State, now: Timestamp) {
        self.drop_dead(it, now);
    }

    fn used(&self, it: &State, at: Timestamp) -> Used {
        Used::whole(u64::try_from(self.live(it, at).total).unwrap_or(u64::MAX))
    }

    fn having_used(&self, used: Used, at: Timestamp) -> State {
        let mut state = State { as_of: self.tick(at), ..State::default() };
        if used.up() > 0 {
            state.add(state.as_of, used.up());
        }
        state
    }
}

impl fmt::Debug for SlidingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlidingWindow")
            .field("limit", &self.limit)
            .field("period", &self.period())
            .field("buckets", &self.buckets)
            .finish()
    }
}

impl fmt::Display for SlidingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&per(self.limit, self.period()))
    }
}

crate::plain_error! {
    /// Why numbers do not make a sliding window.
    #[non_exhaustive]
    pub enum SlidingWindowError {
        /// No buckets, more than [`SlidingWindow::CELLS_MAX`], or more than the period has
        /// nanoseconds.
        Buckets = "buckets must be between 1 and 65536, and no shorter than 1 nanosecond",
        /// An exact window of more than [`SlidingWindow::CELLS_MAX`] units.
        ExactUnits = "an exact window holds at most 65536 units",
    }
}

#[cfg(test)]
mod tests;
