//! Concurrency: at most `limit` units in flight, each held until released or until its lease ends.
//!
//! ```text
//!   hold a  |=======| released
//!   hold b      |================|  lease ended: its holder crashed, the slot is free again
//!               <---- lease ---->
//! ```
//!
//! **Invariants.** Holds are in order of expiry, and there are never more than `limit`. Units come
//! back only by release or expiry; time alone refills nothing. A state knows when it was last
//! changed, and never moves back: a caller whose reading of the clock is before that came late, and
//! is decided (and his lease begins) as of then, because holds that were live at his reading may
//! have been forgotten since. A denial changes nothing.
//!
//! **Cost.** The state keeps the sum of its holds: a check looks only at those whose leases have
//! ended since the last change, and, if denied, at those that must end first. A release looks for
//! its name.

use alloc::string::ToString;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::algorithm::{Apply, Parameters, apply_in_place};
use crate::carry::Used;
use crate::decision::{Decision, Retry, Snapshot};
use crate::{Cost, Quota, SKEW, Timestamp};

/// How many units may be in flight, and for how long each may be held.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Concurrency {
    limit: u64,
    lease_ns: u64,
}

/// The holds, soonest to expire first. The default is an idle key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    holds: Vec<Hold>,
    /// Units of all holds, ended or not.
    total: u128,
    /// When it was last changed.
    as_of: Timestamp,
}

/// Units in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The name by which the holder releases it, chosen by whoever asks.
    pub id: u128,
    /// Units held.
    pub units: u64,
    /// When it counts as released at the latest.
    pub expires_at: Timestamp,
}

impl State {
    /// Gives memory back that was needed for more holds.
    pub(crate) fn shrink(&mut self) {
        if self.holds.capacity() > 4 * self.holds.len() + 16 {
            self.holds.shrink_to(2 * self.holds.len());
        }
    }

    /// The state made of `holds`, which must be in order of expiry.
    pub fn from_holds(holds: impl IntoIterator<Item = Hold>) -> Self {
        let holds: Vec<Hold> = holds.into_iter().collect();
        let total = total(&holds);
        Self { holds, total, as_of: Timestamp::MIN }
    }

    /// The holds, soonest to expire first.
    pub fn holds(&self) -> &[Hold] {
        &self.holds
    }
}

impl Concurrency {
    /// The most units in flight: what one key may take in memory.
    pub const LIMIT_MAX: u64 = 65_536;

    /// At most `limit` units in flight, each for at most `lease`.
    ///
    /// # Errors
    ///
    /// If the limit is zero or above [`Self::LIMIT_MAX`], or the lease zero or longer than
    /// [`Quota::PERIOD_MAX`].
    pub const fn new(limit: u64, lease: Duration) -> Result<Self, ConcurrencyError> {
        if limit == 0 || limit > Self::LIMIT_MAX {
            return Err(ConcurrencyError::Limit);
        }
        if lease.is_zero() || lease.as_nanos() > Quota::PERIOD_MAX.as_nanos() {
            return Err(ConcurrencyError::Lease);
        }
        Ok(Self { limit, lease_ns: lease.as_nanos() as u64 })
    }

    /// The most units in flight.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a hold lasts unless released.
    pub const fn lease(&self) -> Duration {
        Duration::from_nanos(self.lease_ns)
    }

    /// Holds `cost` units under the name `id` if they are free; changes nothing otherwise.
    pub fn decide(&self, state: &mut State, cost: Cost, id: u128, now: Timestamp) -> Decision {
        if let Some(retry) = self.retry(state, cost, now) {
            return Decision::Deny { snapshot: self.peek(state, now), retry };
        }
        self.hold(state, cost.get(), id, now);
        Decision::Allow(self.peek(state, now))
    }

    /// When `cost` units are worth another try, if they are not free.
    pub fn retry(&self, state: &State, cost: Cost, now: Timestamp) -> Option<Retry> {
        let live = self.live(state, now);
        let wanted = live.held + u128::from(cost.get());
        let missing = wanted.saturating_sub(u128::from(self.limit));
        if cost.get() > self.limit {
            return Some(Retry::Never);
        }
        (missing > 0).then(|| Retry::after_nanos(freed_after_ns(live.holds, missing, now)))
    }

    /// What there is to report, with nothing held.
    pub fn peek(&self, state: &State, now: Timestamp) -> Snapshot {
        let live = self.live(state, now);
        let limit = u128::from(self.limit);
        let missing = live.held.saturating_sub(limit.saturating_sub(1)).max(1).min(live.held);
        let last = live.holds.last().map_or(now, |hold| hold.expires_at);
        let remaining = limit.saturating_sub(live.held) as u64;
        let reset_after_ns = last.as_nanos().saturating_sub(now.as_nanos());
        let next_after_ns = freed_after_ns(live.holds, missing, now);
        Snapshot::of(self.limit, remaining, reset_after_ns, next_after_ns)
    }

    /// Holds `cost` units whether or not they are free, as far as the limit goes.
    #[must_use]
    pub fn count(&self, state: &mut State, cost: Cost, id: u128, now: Timestamp) -> Snapshot {
        match cost.get().min(self.peek(state, now).remaining()) {
            0 => {}
            units => self.hold(state, units, id, now),
        }
        self.peek(state, now)
    }

    /// Releases what is held under the name `id`; whether there was such a hold.
    pub fn release(&self, state: &mut State, id: u128, now: Timestamp) -> bool {
        if !self.live(state, now).holds.iter().any(|hold| hold.id == id) {
            return false;
        }
        self.forget_expired(state, now);
        state.holds.retain(|hold| hold.id != id);
        state.total = total(&state.holds);
        true
    }

    /// Releases `units`, the soonest to expire first.
    pub fn refund(&self, state: &mut State, units: u64, now: Timestamp) {
        if units == 0 || self.live(state, now).holds.is_empty() {
            return;
        }
        self.forget_expired(state, now);
        let mut left = units;
        for hold in &mut state.holds {
            let back = hold.units.min(left);
            hold.units -= back;
            left -= back;
        }
        state.holds.retain(|hold| hold.units > 0);
        state.total -= u128::from(units - left);
    }

    /// Forgets every hold. All are free as of `now`, and not as of any time before.
    pub fn clear(&self, state: &mut State, now: Timestamp) {
        if !state.holds.is_empty() {
            *state = State { as_of: self.moment(state, now), ..State::default() };
        }
    }

    /// From when on `state` says nothing that an absent state would not.
    pub fn vacant_at(&self, state: &State) -> Timestamp {
        state.holds.last().map_or(Timestamp::MIN, |hold| hold.expires_at)
    }

    /// The moment as of which a charge with the reading `now` is decided.
    pub fn moment(&self, state: &State, now: Timestamp) -> Timestamp {
        now.max(state.as_of)
    }

    /// The state after the clock was set back to `now`: holds that would last longer than a lease
    /// from now are shortened. Only for whoever knows that the clock was set back; see [`SKEW`].
    pub fn rewind(&self, state: &mut State, now: Timestamp) {
        let latest = now.after(self.lease()).after(SKEW);
        for hold in state.holds.iter_mut().rev().take_while(|hold| hold.expires_at > latest) {
            hold.expires_at = latest;
        }
        state.as_of = state.as_of.min(now);
    }

    /// Forgets the holds whose leases have ended at `now`.
    pub(crate) fn forget_expired(&self, state: &mut State, now: Timestamp) {
        state.as_of = self.moment(state, now);
        let expired = state.holds.partition_point(|hold| hold.expires_at <= state.as_of);
        state.total -= total(&state.holds[..expired]);
        state.holds.drain(..expired);
    }

    fn hold(&self, state: &mut State, units: u64, id: u128, now: Timestamp) {
        self.forget_expired(state, now);
        let expires_at = state.as_of.after(self.lease());
        let at = state.holds.partition_point(|hold| hold.expires_at <= expires_at);
        state.holds.insert(at, Hold { id, units, expires_at });
        state.total += u128::from(units);
    }

    /// Which holds still count at `now`.
    fn live<'a>(&self, state: &'a State, now: Timestamp) -> Live<'a> {
        let moment = self.moment(state, now);
        let expired = state.holds.partition_point(|hold| hold.expires_at <= moment);
        let (ended, holds) = state.holds.split_at(expired);
        Live { holds, held: state.total - total(ended) }
    }
}

impl Apply for Concurrency {
    apply_in_place!();

    const NAME: &'static str = "concurrency";

    fn limit(&self) -> u64 {
        self.limit
    }

    fn window(&self) -> Option<(u64, Duration)> {
        None
    }

    fn numbers(&self) -> [u64; 3] {
        [self.limit, self.lease_ns, 0]
    }

    fn from_numbers([limit, lease_ns, _]: [u64; 3]) -> Option<Self> {
        Self::new(limit, Duration::from_nanos(lease_ns)).ok()
    }

    fn share(&self, _: u32, units: u64) -> Option<Self> {
        Self::new(units, self.lease()).ok()
    }

    fn from_parameters(given: &dyn Parameters) -> Option<Self> {
        let (limit, lease) = (given.number("limit"), given.duration("lease"));
        let limit = Self::new(limit?, lease?);
        limit.map_err(|error| given.refuse("", error.to_string())).ok()
    }

    fn decide(&self, it: &mut State, cost: Cost, id: u128, now: Timestamp) -> Decision {
        Self::decide(self, it, cost, id, now)
    }

    fn count(&self, it: &mut State, cost: Cost, id: u128, now: Timestamp) -> Snapshot {
        Self::count(self, it, cost, id, now)
    }

    fn refund(&self, it: &mut State, units: u64, _: Option<Timestamp>, now: Timestamp) {
        Self::refund(self, it, units, now);
    }

    fn forget_past(&self, it: &mut State, now: Timestamp) {
        self.forget_expired(it, now);
    }

    fn used(&self, it: &State, at: Timestamp) -> Used {
        Used::whole(u64::try_from(self.live(it, at).held).unwrap_or(u64::MAX))
    }

    /// Units that were used by another algorithm are not in flight.
    fn having_used(&self, _: Used, at: Timestamp) -> State {
        State { as_of: at, ..State::default() }
    }
}

impl fmt::Debug for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Concurrency")
            .field("limit", &self.limit)
            .field("lease", &self.lease())
            .finish()
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lease_s = self.lease().as_secs_f64();
        write!(f, "{} in flight, each for at most {lease_s} s", self.limit)
    }
}

/// The holds that still count, and the units in them.
struct Live<'a> {
    holds: &'a [Hold],
    held: u128,
}

fn total(holds: &[Hold]) -> u128 {
    holds.iter().map(|hold| u128::from(hold.units)).sum()
}

/// How long after `now` the leases that hold `units` between them have ended.
fn freed_after_ns(holds: &[Hold], units: u128, now: Timestamp) -> u64 {
    let mut freed = 0u128;
    for hold in holds {
        freed += u128::from(hold.units);
        if freed >= units && units > 0 {
            return hold.expires_at.as_nanos().saturating_sub(now.as_nanos());
        }
    }
    0
}

crate::plain_error! {
    /// Why numbers do not make a concurrency limit.
    #[non_exhaustive]
    pub enum ConcurrencyError {
        /// A limit of zero or above [`Concurrency::LIMIT_MAX`].
        Limit = "the limit must be between 1 and 65536",
        /// A lease of zero or longer than [`Quota::PERIOD_MAX`].
        Lease = "the lease must be between 1 nanosecond and 100 years",
    }
}

#[cfg(test)]
mod tests;
