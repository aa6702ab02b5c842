//! A calendar window: at most `units` per hour, day, week, month, quarter or year of a time zone.
//!
//! ```text
//!   month tz Europe/Berlin anchor 15
//!        |----- 15 Feb to 15 Mar -----|------ 15 Mar to 15 Apr ------|     31 days less one hour:
//!                                             ^ clocks go forward          exact all the same
//!   units, carry, grace
//!        |<------- units ------->|<- carry ->|<- grace ->|   what one window may take at most
//!        0 ............ debt ....................................> goes up with every charge
//!        at the next window      debt = min(debt - units, carry)
//! ```
//!
//! **Debt.** What is stored is how much of the most that a window may hold is gone. A new window
//! pays `units` of it back, and forgives what is then still above `carry`. So what was left unused
//! is carried over, up to `carry`, and a key that is new, or has long been idle, has all of it, as
//! a bucket begins full. Without `carry` every window begins empty.
//!
//! **Grace.** A soft limit lets `grace` units pass beyond the others, and says how many of those
//! were used; see [`CalendarWindow::grace_used`].
//!
//! **Invariants.** A state knows its window, start and end: who opened it decides when it ends, and
//! whoever has other rules for the zone (a process with older data) follows until then. The next
//! window does not begin before. Its start only ever moves forward, and a denial changes nothing;
//! see [`fixed_window`](crate::fixed_window).

mod text;

use core::time::Duration;

use crate::algorithm::{Apply, Parameters, apply_by_value, peek_and_count_by_window};
use crate::carry::Used;
use crate::civil::{Calendar, Window, Zone};
use crate::decision::{Decision, Retry, Snapshot};
use crate::{Cost, Quota, SKEW, Timestamp};

/// So many units per window of a calendar.
///
/// ```
/// use tollway_core::calendar_window::CalendarWindow;
/// use tollway_core::civil::Zone;
///
/// let no_zones = |name: &str| Err(format!("{name}: only UTC is known here"));
/// let plan = CalendarWindow::parse("10000/month anchor 15 grace 500", &no_zones)?;
/// assert_eq!((plan.units(), plan.grace()), (10_000, 500));
/// assert_eq!(plan.calendar().zone(), Zone::UTC);
/// # Ok::<(), tollway_core::ParseQuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarWindow {
    calendar: Calendar,
    units: u64,
    carry: u64,
    grace: u64,
}

/// A window, and how much of what it may hold is gone. The default is an idle key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    start: Timestamp,
    end: Timestamp,
    debt: u64,
}

impl State {
    /// The state as words: start, end and debt.
    pub const fn to_words(self) -> [u64; 3] {
        [self.start.as_nanos(), self.end.as_nanos(), self.debt]
    }

    /// The state that [`Self::to_words`] made.
    pub const fn from_words([start, end, debt]: [u64; 3]) -> Self {
        Self { start: Timestamp::from_nanos(start), end: Timestamp::from_nanos(end), debt }
    }

    /// The window that was opened last; `None` for an idle key.
    pub fn window(self) -> Option<Window> {
        (self.end > Timestamp::MIN).then_some(Window { start: self.start, end: self.end })
    }
}

impl CalendarWindow {
    /// `units` per window of `calendar`: nothing is carried over, and the limit is hard.
    ///
    /// # Errors
    ///
    /// If `units` is zero or above [`Quota::UNITS_MAX`].
    pub const fn new(units: u64, calendar: Calendar) -> Result<Self, CalendarWindowError> {
        Self { calendar, units, carry: 0, grace: 0 }.checked()
    }

    /// The same limit, with up to `carry` unused units carried over to the next window.
    ///
    /// # Errors
    ///
    /// If `carry` is more than the units of a window, or all together more than
    /// [`Quota::UNITS_MAX`].
    pub const fn with_carry(self, carry: u64) -> Result<Self, CalendarWindowError> {
        Self { carry, ..self }.checked()
    }

    /// The same limit, soft: `grace` units more may pass, and are reported.
    ///
    /// # Errors
    ///
    /// If all together is more than [`Quota::UNITS_MAX`].
    pub const fn with_grace(self, grace: u64) -> Result<Self, CalendarWindowError> {
        Self { grace, ..self }.checked()
    }

    /// The same limit by the clocks of another zone.
    #[must_use]
    pub const fn in_zone(self, zone: Zone) -> Self {
        Self { calendar: self.calendar.in_zone(zone), ..self }
    }

    const fn checked(self) -> Result<Self, CalendarWindowError> {
        const MAX: u64 = Quota::UNITS_MAX;
        if self.units == 0 || self.units > MAX {
            return Err(CalendarWindowError::Units);
        }
        // More would be owed for longer than one window, which a state says nothing about.
        if self.carry > self.units {
            return Err(CalendarWindowError::Carry);
        }
        if self.grace > MAX || self.units + self.carry + self.grace > MAX {
            return Err(CalendarWindowError::Sum);
        }
        Ok(self)
    }

    /// The windows.
    pub const fn calendar(&self) -> Calendar {
        self.calendar
    }

    /// Units per window.
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// The most unused units that are carried over.
    pub const fn carry(&self) -> u64 {
        self.carry
    }

    /// Units that may pass beyond the limit.
    pub const fn grace(&self) -> u64 {
        self.grace
    }

    /// How many units of the grace band are used, of a key of which this was reported.
    pub const fn grace_used(&self, snapshot: Snapshot) -> u64 {
        self.grace.saturating_sub(snapshot.remaining())
    }

    /// Takes `cost` units if the window has them.
    pub fn decide(&self, state: State, cost: Cost, now: Timestamp) -> (Decision, State) {
        let window = self.roll(state, now);
        let wanted = window.debt.saturating_add(cost.get());
        if wanted <= self.most() {
            let taken = State { debt: wanted, ..window };
            return (Decision::Allow(self.snapshot(taken, now)), taken);
        }
        let retry = if cost.get() > self.most() {
            Retry::Never
        } else if self.owed(window.debt) + cost.get() <= self.most() {
            Retry::after_nanos(after_ns(window.end, now))
        } else {
            Retry::after_nanos(after_ns(self.second_end(window), now))
        };
        (Decision::Deny { snapshot: self.snapshot(window, now), retry }, state)
    }

    peek_and_count_by_window!(debt);

    /// Gives `units` back to the window from which they were taken, as long as it is the last one
    /// that was charged; to the current window if `at`, when they were taken, is not known. What is
    /// then unused of a window that is over is carried over, so it makes no difference when they
    /// are given back.
    #[must_use]
    pub fn refund(&self, state: State, units: u64, at: Option<Timestamp>, now: Timestamp) -> State {
        let window = if at.is_some() { state } else { self.roll(state, now) };
        if window.debt == 0 || at.is_some_and(|taken_at| taken_at < window.start) {
            return state;
        }
        let left = State { debt: window.debt.saturating_sub(units), ..window };
        // Nothing owed is no state at all: whoever comes late to it is decided as of now.
        if left.debt == 0 { self.roll(left, now) } else { left }
    }

    /// Forgets what was taken. The window is empty as of `now`, and not as of any time before.
    #[must_use]
    pub fn clear(&self, state: State, now: Timestamp) -> State {
        if state.debt == 0 { state } else { State { debt: 0, ..self.roll(state, now) } }
    }

    /// The moment as of which a charge with the reading `now` is decided.
    pub fn moment(&self, state: State, now: Timestamp) -> Timestamp {
        now.max(state.start)
    }

    /// From when on `state` says nothing that an absent state would not.
    pub fn vacant_at(&self, state: State) -> Timestamp {
        match (state.debt, self.owed(state.debt)) {
            (0, _) => Timestamp::MIN,
            (_, 0) => state.end,
            _ => self.second_end(state),
        }
    }

    /// The state after the clock was set back to `now`: a window that starts in the future counts
    /// as the current one, with its debt. Only for whoever knows that the clock was set back; see
    /// [`SKEW`].
    #[must_use]
    pub fn rewind(&self, state: State, now: Timestamp) -> State {
        if state.debt == 0 {
            return State::default();
        }
        if state.start <= now {
            return state;
        }
        let Window { start, end } = self.calendar.window_at(now.after(SKEW));
        if state.start <= start { state } else { State { start, end, ..state } }
    }

    /// The window that `now` falls into, or the later one that is open already, with its debt.
    pub(crate) fn roll(&self, state: State, now: Timestamp) -> State {
        if now < state.end {
            return state;
        }
        let Window { start, end } = self.calendar.window_at(now);
        // The last window may end in this one, if it was opened by other rules.
        let debt = if state.end >= start { self.owed(state.debt) } else { 0 };
        State { start: start.max(state.end), end, debt }
    }

    /// All that a window may hold.
    const fn most(&self) -> u64 {
        self.units + self.carry + self.grace
    }

    /// What is owed of `debt` when the next window begins.
    const fn owed(&self, debt: u64) -> u64 {
        let rest = debt.saturating_sub(self.units);
        if rest < self.carry { rest } else { self.carry }
    }

    /// When the window after this one ends.
    fn second_end(&self, window: State) -> Timestamp {
        self.calendar.window_at(window.end).end
    }

    fn snapshot(&self, window: State, now: Timestamp) -> Snapshot {
        let ends_after_ns = if window.debt == 0 { 0 } else { after_ns(window.end, now) };
        let is_owed = self.owed(window.debt) > 0;
        let reset_after_ns =
            if is_owed { after_ns(self.second_end(window), now) } else { ends_after_ns };
        Snapshot::used(self.most(), u128::from(window.debt), reset_after_ns, ends_after_ns)
    }
}

const fn after_ns(end: Timestamp, now: Timestamp) -> u64 {
    end.as_nanos().saturating_sub(now.as_nanos())
}

/// Above every bit of the units that a number of the algorithm holds beside others.
const UNITS_BITS: u32 = 50;
/// A calendar has 26 bits, so each of two numbers takes half.
const HALF_BITS: u32 = 13;

impl Apply for CalendarWindow {
    apply_by_value!();

    const NAME: &'static str = "calendar-window";

    fn limit(&self) -> u64 {
        self.most()
    }

    /// No two months are alike: the time is [about](crate::civil::Unit::about) that of a window.
    fn window(&self) -> Option<(u64, Duration)> {
        Some((self.units, self.calendar.unit().about()))
    }

    /// All but the zone, which has a name.
    fn numbers(&self) -> [u64; 3] {
        let bits = self.calendar.to_bits();
        let low = bits & ((1 << HALF_BITS) - 1);
        [self.units | low << UNITS_BITS, self.carry | (bits >> HALF_BITS) << UNITS_BITS, self.grace]
    }

    fn from_numbers([units, carry, grace]: [u64; 3]) -> Option<Self> {
        let bits = units >> UNITS_BITS | (carry >> UNITS_BITS) << HALF_BITS;
        let amount = |number: u64| number & ((1 << UNITS_BITS) - 1);
        let calendar = Calendar::from_bits(bits, Zone::UTC)?;
        let (units, carry) = (amount(units), amount(carry));
        Self { calendar, units, carry, grace }.checked().ok()
    }

    fn share(&self, _: u32, units: u64) -> Option<Self> {
        let part =
            |whole: u64| (u128::from(whole) * u128::from(units) / u128::from(self.most())) as u64;
        let (carry, grace) = (part(self.carry), part(self.grace));
        Self { units: units - carry - grace, carry, grace, ..*self }.checked().ok()
    }

    fn from_parameters(given: &dyn Parameters) -> Option<Self> {
        given.calendar_window()
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
        Used::whole(self.roll(*it, at).debt)
    }

    fn having_used(&self, used: Used, at: Timestamp) -> State {
        let Window { start, end } = self.calendar.window_at(at);
        State { start, end, debt: used.up() }
    }
}

crate::plain_error! {
    /// Why numbers do not make a calendar window.
    #[non_exhaustive]
    pub enum CalendarWindowError {
        /// Zero units, or more than [`Quota::UNITS_MAX`].
        Units = "units must be between 1 and 999999999999999",
        /// More to carry over than a window has.
        Carry = "carry must not be more than the units of one window",
        /// Units, carry and grace are together more than [`Quota::UNITS_MAX`].
        Sum = "units, carry and grace must together be at most 999999999999999",
    }
}

#[cfg(test)]
mod tests;
