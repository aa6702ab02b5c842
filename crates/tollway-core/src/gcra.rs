//! The generic cell rate algorithm: a bucket of `burst` units that refills continuously.
//!
//! The state is one number, the *theoretical arrival time* (TAT): when the bucket would be full
//! again if nobody asked any more. A unit costs `period / units` of time, so taking units moves the
//! TAT into the future, and waiting lets `now` catch up with it.
//!
//! ```text
//!           used             free
//!      |<------------->|<------------>|
//!  ----+---------------+--------------+-----> time
//!     now             TAT       now + fill time       allowed while TAT stays within the fill time
//! ```
//!
//! **Exact.** `period / units` is rarely a whole number of nanoseconds, so time is measured in
//! nanoseconds × units: `now` becomes `now * units`, one unit costs `period`, and both are integers
//! (units and period reduced by their common divisor). No division decides anything, nothing is
//! rounded, nothing accumulates. Only reported durations are rounded, up, and remaining units,
//! down.
//!
//! **Invariants.** A TAT in the past says nothing that an absent state would not. A charge only
//! ever moves the TAT forward, and never beyond the fill time after the reading of the clock that
//! came with it. So what is admitted at readings between `a` and `b` is at most `burst` and what
//! refills from `a` to `b`, in whatever order the charges arrive: each moves the TAT, which was at
//! least `a` after the first and is at most `b` and a fill time after the last. A TAT beyond the
//! fill time is seen by a caller who read the clock long ago, and denies; a denial changes nothing.
//! A key that became full again by a refund keeps the time at which it did, or such a caller could
//! take units as of the past.
//!
//! Rejected: a TAT in nanoseconds (drifts by up to a nanosecond per unit, 0.1 % at a million per
//! second), floating point (drifts and depends on the epoch), a token count with a timestamp (two
//! numbers to keep in step, and a division per decision).

mod word;

pub use word::Word;

use core::fmt;
use core::time::Duration;

use crate::algorithm::{Apply, Parameters, apply_by_value, stretched};
use crate::carry::Used;
use crate::decision::{Decision, Retry, Snapshot};
use crate::{Cost, Quota, SKEW, Timestamp};

/// GCRA for one quota.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Gcra {
    quota: Quota,
    /// Units per period, reduced: the scale that turns nanoseconds into ticks.
    scale: u64,
    /// What one unit costs, in ticks.
    unit: u64,
    /// What a full bucket holds, in ticks.
    capacity: u128,
    /// Whether the quota comes with the call.
    per_call: bool,
    /// Until when a state is one word; see [`Gcra::word_until`].
    word_until: Timestamp,
}

/// The theoretical arrival time, in nanoseconds × units. The default is an idle key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    tat: u128,
}

impl State {
    /// Nothing to remember: the key is as good as new from this moment on.
    const IDLE: Self = Self { tat: 0 };

    /// The state as two words, for stores with fixed-size slots.
    pub const fn to_words(self) -> [u64; 2] {
        [self.tat as u64, (self.tat >> 64) as u64]
    }

    /// The state that [`Self::to_words`] made.
    pub const fn from_words([low, high]: [u64; 2]) -> Self {
        Self { tat: low as u128 | (high as u128) << 64 }
    }
}

impl Gcra {
    /// GCRA for `quota`.
    pub const fn new(quota: Quota) -> Self {
        let common = gcd(quota.units(), quota.period_ns());
        let unit = quota.period_ns() / common;
        let scale = quota.units() / common;
        let capacity = quota.burst() as u128 * unit as u128;
        let word_until = word::until(scale, capacity);
        Self { quota, scale, unit, capacity, per_call: false, word_until }
    }

    /// GCRA for a quota that comes with the call: calls on one key may bring different ones and
    /// still move one arrival time, if a unit of each lasts whole nanoseconds. So [`Self::rewind`]
    /// believes an arrival time however far ahead it is: a clock that was set back is not told
    /// apart from an earlier call with a longer fill time.
    pub const fn per_call(quota: Quota) -> Self {
        Self { per_call: true, ..Self::new(quota) }
    }

    /// Whether the quota comes with the call.
    pub const fn is_per_call(&self) -> bool {
        self.per_call
    }

    /// The quota.
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// Takes `cost` units if the bucket holds them.
    #[inline]
    pub fn decide(&self, state: State, cost: Cost, now: Timestamp) -> (Decision, State) {
        let used = self.used(state, now);
        let wanted = used + u128::from(cost.get()) * u128::from(self.unit);
        if wanted <= self.capacity {
            return (Decision::Allow(self.snapshot(wanted)), self.state(wanted, now));
        }
        let retry = if wanted - used > self.capacity {
            Retry::Never
        } else {
            Retry::after_nanos(self.nanos(wanted - self.capacity))
        };
        (Decision::Deny { snapshot: self.snapshot(used), retry }, state)
    }

    /// What there is to report, with nothing taken.
    pub fn peek(&self, state: State, now: Timestamp) -> Snapshot {
        self.snapshot(self.used(state, now))
    }

    /// Takes `cost` units whether or not the bucket holds them; it cannot get emptier than empty.
    #[must_use]
    pub fn count(&self, state: State, cost: Cost, now: Timestamp) -> (Snapshot, State) {
        let used = self.used(state, now);
        let wanted = used + u128::from(cost.get()) * u128::from(self.unit);
        let used = wanted.min(self.capacity.max(used));
        (self.snapshot(used), self.state(used, now))
    }

    /// Puts `units` back; the bucket cannot get fuller than full.
    #[must_use]
    pub fn refund(&self, state: State, units: u64, now: Timestamp) -> State {
        let back = u128::from(units) * u128::from(self.unit);
        match self.used(state, now) {
            0 => state,
            used => self.state(used.saturating_sub(back), now),
        }
    }

    /// Forgets what was taken. The bucket is full as of `now`, and not as of any time before.
    #[must_use]
    pub fn clear(&self, state: State, now: Timestamp) -> State {
        if state == State::IDLE { state } else { self.state(0, now) }
    }

    /// From when on `state` says nothing that an absent state would not.
    pub fn vacant_at(&self, state: State) -> Timestamp {
        Timestamp::from_nanos(self.nanos(state.tat))
    }

    /// The state after the clock was set back to `now`: what was taken by a time that is now in the
    /// future becomes an empty bucket, so that the key is locked no longer than a fill takes. Only
    /// for whoever knows that the clock was set back; see [`SKEW`].
    #[must_use]
    pub fn rewind(&self, state: State, now: Timestamp) -> State {
        let believed = self.capacity + SKEW.as_nanos() * u128::from(self.scale);
        if !self.per_call && self.used(state, now) > believed {
            return self.state(self.capacity, now);
        }
        state
    }

    /// The state of a key that was asked by the numbers `old` of another call. Units up to the
    /// smaller of both limits are units under both; what is beyond is the time until it has come
    /// back. So nothing is lost on the way there and back.
    pub(crate) fn carry_between_calls(&self, old: &Self, state: State, at: Timestamp) -> State {
        let common = u128::from(self.quota.burst().min(old.quota.burst()));
        let used = old.used(state, at);
        let units = used.min(common * u128::from(old.unit));
        let (whole, part) =
            ((used - units) / u128::from(old.scale), (used - units) % u128::from(old.scale));
        let scale = u128::from(self.scale);
        let beyond = (part * scale).div_ceil(u128::from(old.scale));
        let beyond = whole.saturating_mul(scale).saturating_add(beyond);
        let units = Used::of_ticks(units, old.unit).ticks(self.unit);
        State { tat: self.ticks(at).saturating_add(units).saturating_add(beyond) }
    }

    /// Ticks by which the bucket is short of full.
    #[inline]
    fn used(&self, state: State, now: Timestamp) -> u128 {
        state.tat.saturating_sub(self.ticks(now))
    }

    #[inline]
    fn state(&self, used: u128, now: Timestamp) -> State {
        State { tat: self.ticks(now) + used }
    }

    #[inline]
    fn snapshot(&self, used: u128) -> Snapshot {
        let (remaining, part) = divide(self.capacity.saturating_sub(used), self.unit);
        // A part of the next unit is there already; none is coming if all of them are there.
        let missing = if used == 0 { 0 } else { u128::from(self.unit - part) };
        let overdrawn = used.saturating_sub(self.capacity);
        let next_after_ns = self.nanos(missing + overdrawn);
        Snapshot::of(self.quota.burst(), remaining, self.nanos(used), next_after_ns)
    }

    #[inline]
    const fn ticks(&self, now: Timestamp) -> u128 {
        now.as_nanos() as u128 * self.scale as u128
    }

    /// Ticks as nanoseconds, rounded up: told a moment too early, a client is denied again.
    #[inline]
    fn nanos(&self, ticks: u128) -> u64 {
        if self.scale == 1 {
            return u64::try_from(ticks).unwrap_or(u64::MAX);
        }
        divide(ticks + u128::from(self.scale - 1), self.scale).0
    }
}

impl Apply for Gcra {
    apply_by_value!();

    const NAME: &'static str = "gcra";

    fn limit(&self) -> u64 {
        self.quota.burst()
    }

    fn window(&self) -> Option<(u64, Duration)> {
        Some((self.quota.units(), self.quota.period()))
    }

    fn numbers(&self) -> [u64; 3] {
        [self.quota.units(), self.quota.period_ns(), self.quota.burst()]
    }

    fn from_numbers([units, period_ns, burst]: [u64; 3]) -> Option<Self> {
        Quota::with_burst(units, Duration::from_nanos(period_ns), burst).ok().map(Self::new)
    }

    fn share(&self, shares: u32, units: u64) -> Option<Self> {
        let period = stretched(self.quota.period(), shares)?;
        Quota::with_burst(self.quota.units(), period, units).ok().map(Self::new)
    }

    fn from_parameters(given: &dyn Parameters) -> Option<Self> {
        given.quota().map(Self::new)
    }

    fn refund(&self, it: &mut State, units: u64, _: Option<Timestamp>, now: Timestamp) {
        *it = Self::refund(self, *it, units, now);
    }

    fn used(&self, it: &State, at: Timestamp) -> Used {
        Used::of_ticks(Self::used(self, *it, at), self.unit)
    }

    fn having_used(&self, used: Used, at: Timestamp) -> State {
        State { tat: self.ticks(at).saturating_add(used.ticks(self.unit)) }
    }
}

impl fmt::Debug for Gcra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gcra({self})")
    }
}

impl fmt::Display for Gcra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.quota.fmt(f)
    }
}

/// Quotient (at most [`u64::MAX`]) and remainder, fast where the dividend is one word.
#[inline]
fn divide(dividend: u128, divisor: u64) -> (u64, u64) {
    if let Ok(word) = u64::try_from(dividend) {
        return (word / divisor, word % divisor);
    }
    let wide = u128::from(divisor);
    (u64::try_from(dividend / wide).unwrap_or(u64::MAX), (dividend % wide) as u64)
}

/// The greatest common divisor. Public for `tollway-redis`, whose scripts reduce quotas the same
/// way.
#[doc(hidden)]
pub const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests;
