//! A leaky bucket with discrete drips: requests fill it, `drip_size` units leave every interval.
//!
//! The state is the fill `level` and the moment of the last drip. Both move together: after `n`
//! whole intervals the level falls by `n * drip_size` and the moment advances by `n` intervals.
//!
//! ```text
//!  level 3 ──┐
//!            └ 2 ──┐               request: level + 1
//!                  └ 1 ──┐     ┌── 2 ──
//!                        └ 0 ──┘
//!  ----+-----+-----+-----+-----^-------> time      an empty bucket has no phase:
//!    drip  drip  drip  drip  now           the next drip is one interval after `now`
//! ```
//!
//! **Invariants.** An empty bucket equals an absent one, so idle time is never banked and a bucket
//! of size 1 enforces its interval as a minimum spacing. The drip moment only ever moves forward,
//! also in an empty bucket: a caller whose reading of the clock is before it came late, and is
//! decided as of that moment; moved back for him, the bucket would drip twice. A level above the
//! size (the policy shrank) drains, it is not forgiven. A denial changes nothing.

use alloc::string::ToString;
use core::fmt;
use core::time::Duration;

use crate::algorithm::{Apply, Parameters, apply_by_value, per, stretched};
use crate::carry::Used;
use crate::decision::{Decision, Retry, Snapshot};
use crate::{Cost, Quota, SKEW, Timestamp};

/// A leaky bucket's size and drips.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LeakyBucket {
    size: u64,
    drip_size: u64,
    interval_ns: u64,
}

/// Fill level and the moment of the last drip. The default is an empty bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    level: u64,
    dripped_at: Timestamp,
}

impl State {
    /// A bucket filled to `level` that dripped last at `dripped_at`.
    pub const fn new(level: u64, dripped_at: Timestamp) -> Self {
        Self { level, dripped_at }
    }

    /// Units in the bucket at the last drip.
    pub const fn level(self) -> u64 {
        self.level
    }

    /// When it dripped last.
    pub const fn dripped_at(self) -> Timestamp {
        self.dripped_at
    }

    /// The same level with the drips of `phase`.
    pub(crate) const fn in_phase_with(self, phase: Self) -> Self {
        Self { level: self.level, dripped_at: phase.dripped_at }
    }

    /// The state as two words, for stores with fixed-size slots.
    pub const fn to_words(self) -> [u64; 2] {
        [self.level, self.dripped_at.as_nanos()]
    }

    /// The state that [`Self::to_words`] made.
    pub const fn from_words([level, dripped_at]: [u64; 2]) -> Self {
        Self { level, dripped_at: Timestamp::from_nanos(dripped_at) }
    }
}

impl LeakyBucket {
    /// A bucket of `size` units from which `drip_size` units leave every `interval`.
    ///
    /// # Errors
    ///
    /// If a number is zero or above [`Quota::UNITS_MAX`], the interval zero, or a full bucket would
    /// take longer than [`Quota::PERIOD_MAX`] to empty.
    pub const fn new(
        size: u64,
        drip_size: u64,
        interval: Duration,
    ) -> Result<Self, LeakyBucketError> {
        if size == 0 || size > Quota::UNITS_MAX {
            return Err(LeakyBucketError::Size);
        }
        if drip_size == 0 || drip_size > Quota::UNITS_MAX {
            return Err(LeakyBucketError::DripSize);
        }
        let drain_ns = (size.div_ceil(drip_size) as u128).saturating_mul(interval.as_nanos());
        if interval.is_zero() || drain_ns > Quota::PERIOD_MAX.as_nanos() {
            return Err(LeakyBucketError::Interval);
        }
        Ok(Self { size, drip_size, interval_ns: interval.as_nanos() as u64 })
    }

    /// The same bucket for a caller with a `factor` of `numerator / denominator`: above 1 the limit
    /// is stricter (a smaller bucket, slower drips), below 1 laxer. Both roundings are upwards, and
    /// the interval keeps whole milliseconds: a size that does not come out even favours the
    /// requester by less than one unit, as in the service that this comes from.
    ///
    /// # Errors
    ///
    /// If a part of the factor is zero, or the scaled bucket out of bounds.
    pub const fn with_factor(
        self,
        numerator: u32,
        denominator: u32,
    ) -> Result<Self, LeakyBucketError> {
        if numerator == 0 || denominator == 0 {
            return Err(LeakyBucketError::Factor);
        }
        let size = (self.size as u128 * denominator as u128).div_ceil(numerator as u128);
        let interval_ms = (self.interval_ns as u128 * numerator as u128)
            .div_ceil(denominator as u128 * NANOS_PER_MILLI);
        if size > Quota::UNITS_MAX as u128 || interval_ms > u64::MAX as u128 {
            return Err(LeakyBucketError::Factor);
        }
        Self::new(size as u64, self.drip_size, Duration::from_millis(interval_ms as u64))
    }

    /// The bucket by the parameter `factor`, if it is given.
    pub(crate) fn scaled(self, given: &dyn Parameters) -> Option<Self> {
        if !given.has("factor") {
            return Some(self);
        }
        let factor = given.factor("factor")?;
        let scaled = self.with_factor(factor.numerator(), factor.denominator());
        scaled.map_err(|error| given.refuse("factor", error.to_string())).ok()
    }

    /// Units that a full bucket holds.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Units that leave with each drip.
    pub const fn drip_size(&self) -> u64 {
        self.drip_size
    }

    /// Time between drips.
    pub const fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval_ns)
    }

    /// Adds `cost` units if they fit.
    pub fn decide(&self, state: State, cost: Cost, now: Timestamp) -> (Decision, State) {
        let dripped = self.drip(state, now);
        let wanted = dripped.level.saturating_add(cost.get());
        if wanted <= self.size {
            let filled = State { level: wanted, ..dripped };
            return (Decision::Allow(self.snapshot(filled, now)), filled);
        }
        let retry = if cost.get() > self.size {
            Retry::Never
        } else {
            Retry::after_nanos(self.drips_ns(dripped, wanted - self.size, now))
        };
        (Decision::Deny { snapshot: self.snapshot(dripped, now), retry }, state)
    }

    /// What there is to report, with nothing added.
    pub fn peek(&self, state: State, now: Timestamp) -> Snapshot {
        self.snapshot(self.drip(state, now), now)
    }

    /// Adds `cost` units whether or not they fit; the bucket cannot get fuller than full.
    #[must_use]
    pub fn count(&self, state: State, cost: Cost, now: Timestamp) -> (Snapshot, State) {
        let dripped = self.drip(state, now);
        let level = dripped.level.saturating_add(cost.get()).min(self.size.max(dripped.level));
        let filled = State { level, ..dripped };
        (self.snapshot(filled, now), filled)
    }

    /// Takes `units` out again; the bucket cannot get emptier than empty.
    #[must_use]
    pub fn refund(&self, state: State, units: u64, now: Timestamp) -> State {
        let dripped = self.drip(state, now);
        if dripped.level == 0 {
            return state;
        }
        match dripped.level.saturating_sub(units) {
            0 => State { level: 0, dripped_at: self.moment(state, now) },
            level => State { level, ..dripped },
        }
    }

    /// Forgets what was taken. The bucket is empty as of `now`, and not as of any time before.
    #[must_use]
    pub fn clear(&self, state: State, now: Timestamp) -> State {
        if state == State::default() {
            return state;
        }
        State { level: 0, dripped_at: self.moment(state, now) }
    }

    /// The moment as of which a charge with the reading `now` is decided.
    pub fn moment(&self, state: State, now: Timestamp) -> Timestamp {
        now.max(state.dripped_at)
    }

    /// From when on `state` says nothing that an absent state would not.
    pub fn vacant_at(&self, state: State) -> Timestamp {
        let drips_ns = self.drips_ns(state, state.level, state.dripped_at);
        state.dripped_at.after(Duration::from_nanos(drips_ns))
    }

    /// The state after the clock was set back to `now`: a drip moment in the future is brought
    /// back, so that the key is locked no longer than a drain takes. Only for whoever knows that
    /// the clock was set back; see [`SKEW`].
    #[must_use]
    pub fn rewind(&self, state: State, now: Timestamp) -> State {
        match state.level {
            0 => State::default(),
            level => State { level, dripped_at: state.dripped_at.min(now.after(SKEW)) },
        }
    }

    /// The last drip of a bucket whose numbers were `old`, if its drips come as often as here: then
    /// a change moves none of them.
    pub(crate) fn carry_phase(&self, old: &Self, state: State, at: Timestamp) -> Option<State> {
        let dripped = old.drip(state, at);
        (old.interval_ns == self.interval_ns && dripped.level > 0).then_some(dripped)
    }

    /// The state after all drips until `now`.
    pub(crate) fn drip(&self, state: State, now: Timestamp) -> State {
        let dripped_at = state.dripped_at;
        let drips = now.as_nanos().saturating_sub(dripped_at.as_nanos()) / self.interval_ns;
        let level = state.level.saturating_sub(drips.saturating_mul(self.drip_size));
        if level == 0 {
            return State { level, dripped_at: self.moment(state, now) };
        }
        let moved_ns = dripped_at.as_nanos() + drips * self.interval_ns;
        State { level, dripped_at: Timestamp::from_nanos(moved_ns) }
    }

    /// How long after `now` the drips that take `units` out of a dripped `state` are done.
    fn drips_ns(&self, state: State, units: u64, now: Timestamp) -> u64 {
        let drips_ns = units.div_ceil(self.drip_size).saturating_mul(self.interval_ns);
        let done_at = state.dripped_at.as_nanos().saturating_add(drips_ns);
        done_at.saturating_sub(now.as_nanos())
    }

    fn snapshot(&self, dripped: State, now: Timestamp) -> Snapshot {
        let remaining = self.size.saturating_sub(dripped.level);
        // The smallest fall of the level that shows in `remaining`: past the size, then one unit.
        let missing = dripped.level.saturating_sub(self.size.saturating_sub(1)).max(1);
        // An empty bucket is as good as new, also to who comes late and has its drip moment ahead.
        let after_ns =
            |units| if dripped.level == 0 { 0 } else { self.drips_ns(dripped, units, now) };
        Snapshot::of(self.size, remaining, after_ns(dripped.level), after_ns(missing))
    }
}

impl Apply for LeakyBucket {
    apply_by_value!();

    const NAME: &'static str = "leaky-bucket";

    fn limit(&self) -> u64 {
        self.size
    }

    fn window(&self) -> Option<(u64, Duration)> {
        Some((self.drip_size, self.interval()))
    }

    fn numbers(&self) -> [u64; 3] {
        [self.size, self.drip_size, self.interval_ns]
    }

    fn from_numbers([size, drip_size, interval_ns]: [u64; 3]) -> Option<Self> {
        Self::new(size, drip_size, Duration::from_nanos(interval_ns)).ok()
    }

    fn share(&self, shares: u32, units: u64) -> Option<Self> {
        Self::new(units, self.drip_size, stretched(self.interval(), shares)?).ok()
    }

    fn from_parameters(given: &dyn Parameters) -> Option<Self> {
        let size = given.number("size");
        let drip_size = if given.has("drip_size") { given.number("drip_size") } else { Some(1) };
        let interval = given.duration("drip_interval");
        let bucket = Self::new(size?, drip_size?, interval?);
        bucket.map_err(|error| given.refuse("", error.to_string())).ok()?.scaled(given)
    }

    fn refund(&self, it: &mut State, units: u64, _: Option<Timestamp>, now: Timestamp) {
        *it = Self::refund(self, *it, units, now);
    }

    fn moment(&self, it: &State, now: Timestamp) -> Timestamp {
        Self::moment(self, *it, now)
    }

    fn forget_past(&self, it: &mut State, now: Timestamp) {
        *it = self.drip(*it, now);
    }

    fn used(&self, it: &State, at: Timestamp) -> Used {
        Used::whole(self.drip(*it, at).level)
    }

    fn having_used(&self, used: Used, at: Timestamp) -> State {
        State { level: used.up(), dripped_at: at }
    }
}

impl fmt::Debug for LeakyBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeakyBucket")
            .field("size", &self.size)
            .field("drip_size", &self.drip_size)
            .field("interval", &self.interval())
            .finish()
    }
}

impl fmt::Display for LeakyBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in all, {}", self.size, per(self.drip_size, self.interval()))
    }
}

const NANOS_PER_MILLI: u128 = 1_000_000;

crate::plain_error! {
    /// Why numbers do not make a leaky bucket.
    #[non_exhaustive]
    pub enum LeakyBucketError {
        /// A size of zero or above [`Quota::UNITS_MAX`].
        Size = "size must be between 1 and 999999999999999",
        /// A drip size of zero or above [`Quota::UNITS_MAX`].
        DripSize = "drip size must be between 1 and 999999999999999",
        /// An interval of zero, or a bucket that would take more than [`Quota::PERIOD_MAX`] to
        /// empty.
        Interval = "the bucket must empty within 1 nanosecond to 100 years",
        /// A factor with a zero in it, or one that takes the bucket out of bounds.
        Factor = "the factor must be above zero and keep the bucket within bounds",
    }
}

#[cfg(test)]
mod tests;
