//! A fixed window: at most `units` per window, all of them anew when the next window starts.
//!
//! ```text
//!  epoch-anchored    |--- window 7 ---|--- window 8 ---|     starts are multiples of the period
//!  first-anchored        ^|--------------|      ^|-----     a window starts with its first request
//! ```
//!
//! The simplest algorithm to explain, and what many proxies and APIs do; two windows' worth may
//! pass around a boundary, which is the reason to prefer GCRA or a sliding window.
//!
//! **Invariants.** The start of the window only ever moves forward, also when nothing is left in
//! it: a caller whose reading of the clock is before the start came late, and is decided as of the
//! start. Who moved the window back for him would open it a second time. A denial changes nothing.

use core::fmt;
use core::time::Duration;

use crate::algorithm::{Apply, Parameters, apply_by_value, peek_and_count_by_window};
use crate::carry::{OnChange, Used, scaled};
use crate::decision::{Decision, Retry, Snapshot};
use crate::{Cost, Quota, SKEW, Timestamp};

/// A fixed window of a quota's period with room for its units; its burst plays no part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindow {
    quota: Quota,
    anchor: Anchor,
}

/// Where windows start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Anchor {
    /// At whole multiples of the period since the Unix epoch.
    #[default]
    Epoch,
    /// With the first request after the last window ended.
    FirstRequest,
}

/// When the window started and what was taken in it. The default is an idle key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    start: Timestamp,
    count: u64,
}

impl State {
    /// The state as two words, for stores with fixed-size slots.
    pub const fn to_words(self) -> [u64; 2] {
        [self.start.as_nanos(), self.count]
    }

    /// The state that [`Self::to_words`] made.
    pub const fn from_words([start, count]: [u64; 2]) -> Self {
        Self { start: Timestamp::from_nanos(start), count }
    }
}

impl FixedWindow {
    /// `quota.units()` per window of `quota.period()`.
    pub const fn new(quota: Quota, anchor: Anchor) -> Self {
        Self { quota, anchor }
    }

    /// The quota.
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Where windows start.
    pub const fn anchor(&self) -> Anchor {
        self.anchor
    }

    /// Takes `cost` units if the window has them.
    pub fn decide(&self, state: State, cost: Cost, now: Timestamp) -> (Decision, State) {
        let window = self.roll(state, now);
        let wanted = window.count.saturating_add(cost.get());
        if wanted <= self.quota.units() {
            let taken = State { count: wanted, ..window };
            return (Decision::Allow(self.snapshot(taken, now)), taken);
        }
        let retry = if cost.get() > self.quota.units() {
            Retry::Never
        } else {
            Retry::after_nanos(self.ends_after_ns(window, now))
        };
        (Decision::Deny { snapshot: self.snapshot(window, now), retry }, state)
    }

    peek_and_count_by_window!(count);

    /// Gives `units` back to the current window, unless they were taken in an earlier one: `at` is
    /// when, if that is known.
    #[must_use]
    pub fn refund(&self, state: State, units: u64, at: Option<Timestamp>, now: Timestamp) -> State {
        let window = self.roll(state, now);
        if window.count == 0 || at.is_some_and(|taken_at| taken_at < window.start) {
            return state;
        }
        match window.count.saturating_sub(units) {
            0 => self.emptied(window, now),
            count => State { count, ..window },
        }
    }

    /// Forgets what was taken. The window is empty as of `now`, and not as of any time before.
    #[must_use]
    pub fn clear(&self, state: State, now: Timestamp) -> State {
        if state == State::default() { state } else { self.emptied(self.roll(state, now), now) }
    }

    /// The moment as of which a charge with the reading `now` is decided.
    pub fn moment(&self, state: State, now: Timestamp) -> Timestamp {
        now.max(state.start)
    }

    /// From when on `state` says nothing that an absent state would not.
    pub fn vacant_at(&self, state: State) -> Timestamp {
        if state.count == 0 { Timestamp::MIN } else { state.start.after(self.quota.period()) }
    }

    /// The state after the clock was set back to `now`: a window that starts in the future counts
    /// as the current one, with its count, so that the key is locked for one period at most. Only
    /// for whoever knows that the clock was set back; see [`SKEW`].
    #[must_use]
    pub fn rewind(&self, state: State, now: Timestamp) -> State {
        if state.count == 0 {
            return State::default();
        }
        // Most windows have started: no division for them.
        if state.start <= now {
            return state;
        }
        State { start: state.start.min(self.start(now.after(SKEW))), ..state }
    }

    /// The window whose numbers were `old`, with its count. One that its first request started
    /// keeps its start if it is not over by the new period; if it is, what was taken in it counts
    /// as taken now: what is used stays used.
    pub(crate) fn carry_window(
        &self,
        old: &Self,
        state: State,
        rule: OnChange,
        at: Timestamp,
    ) -> State {
        let State { start, count } = old.roll(state, at);
        let count = match rule {
            OnChange::Proportional => {
                let share = scaled(count.into(), self.quota.units(), old.quota.units());
                u64::try_from(share).unwrap_or(u64::MAX)
            }
            _ => count,
        };
        let is_open = count > 0 && at < start.after(self.quota.period());
        match self.anchor {
            Anchor::FirstRequest if is_open => State { start, count },
            _ => State { start: self.start(at), count },
        }
    }

    /// The window that `now` falls into, or the later one that is open already, with what was taken
    /// in it so far.
    pub(crate) fn roll(&self, state: State, now: Timestamp) -> State {
        if state.count > 0 && now < state.start.after(self.quota.period()) {
            return state;
        }
        State { start: self.start(now).max(state.start), count: 0 }
    }

    /// `window` with nothing left in it as of `now`. A window that its first request starts is over
    /// then: the next one starts with the next request, and somebody late must not start it before
    /// the last one was emptied.
    fn emptied(&self, window: State, now: Timestamp) -> State {
        State { start: self.start(now).max(window.start), count: 0 }
    }

    /// The start of the window that a first request at `now` would open.
    fn start(&self, now: Timestamp) -> Timestamp {
        match self.anchor {
            Anchor::Epoch => {
                let nanos = now.as_nanos();
                Timestamp::from_nanos(nanos - nanos % self.quota.period_ns())
            }
            Anchor::FirstRequest => now,
        }
    }

    fn ends_after_ns(&self, window: State, now: Timestamp) -> u64 {
        window.start.after(self.quota.period()).as_nanos() - now.as_nanos()
    }

    fn snapshot(&self, window: State, now: Timestamp) -> Snapshot {
        let ends_after_ns = if window.count == 0 { 0 } else { self.ends_after_ns(window, now) };
        let (limit, used) = (self.quota.units(), u128::from(window.count));
        Snapshot::used(limit, used, ends_after_ns, ends_after_ns)
    }
}

impl Apply for FixedWindow {
    apply_by_value!();

    const NAME: &'static str = "fixed-window";

    fn label(&self) -> &'static str {
        match self.anchor {
            Anchor::Epoch => Self::NAME,
            Anchor::FirstRequest => "fixed-window (from the first request)",
        }
    }

    fn limit(&self) -> u64 {
        self.quota.units()
    }

    fn window(&self) -> Option<(u64, Duration)> {
        Some((self.quota.units(), self.quota.period()))
    }

    fn numbers(&self) -> [u64; 3] {
        let is_first = u64::from(self.anchor == Anchor::FirstRequest);
        [self.quota.units(), self.quota.period_ns(), is_first]
    }

    fn from_numbers([units, period_ns, is_first]: [u64; 3]) -> Option<Self> {
        let anchor = if is_first == 1 { Anchor::FirstRequest } else { Anchor::Epoch };
        let quota = Quota::new(units, Duration::from_nanos(period_ns)).ok()?;
        Some(Self::new(quota, anchor))
    }

    fn share(&self, _: u32, units: u64) -> Option<Self> {
        Some(Self::new(Quota::new(units, self.quota.period()).ok()?, self.anchor))
    }

    fn from_parameters(given: &dyn Parameters) -> Option<Self> {
        let anchor = match given.choice("anchor", &["epoch", "first-request"]) {
            1 => Anchor::FirstRequest,
            _ => Anchor::Epoch,
        };
        Some(Self::new(given.quota()?, anchor))
    }

    fn refund(&self, it: &mut State, units: u64, at: Option<Timestamp>, now: Timestamp) {
        *it = Self::refund(self, *it, units, at, now);
    }

    fn moment(&self, it: &State, now: Timestamp) -> Timestamp {
        Self::moment(self, *it, now)
    }

    fn forget_past(&self, it: &mut State, now: Timestamp) {
        *it = self.roll(*it, now);
    }

    fn used(&self, it: &State, at: Timestamp) -> Used {
        Used::whole(self.roll(*it, at).count)
    }

    fn having_used(&self, used: Used, at: Timestamp) -> State {
        State { start: self.start(at), count: used.up() }
    }
}

impl fmt::Display for FixedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.quota.fmt(f)
    }
}

#[cfg(test)]
mod tests;
