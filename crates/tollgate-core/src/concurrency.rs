//! Concurrency: at most `limit` units in flight, each held until released or until its lease ends.
//!
//! ```text
//!   hold a  |=======| released
//!   hold b      |================|  lease ended: its holder crashed, the slot is free again
//!               <---- lease ---->
//! ```
//!
//! **Invariants.** Holds are in order of expiry, and there are never more than `limit`. Units come
//! back only by release or expiry; time alone refills nothing. A hold that expires later than a
//! lease (and [`SKEW`]) from now was made before the clock was set back, and expires then. But for
//! that repair, a denial changes nothing.
//!
//! [`SKEW`]: crate::SKEW

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::decision::{Decision, Retry, Snapshot};
use crate::{Cost, Quota, SKEW, Timestamp};

/// How many units may be in flight, and for how long each may be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    limit: u64,
    lease_ns: u64,
}

/// The holds, soonest to expire first. The default is an idle key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    holds: Vec<Hold>,
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
    /// The state made of `holds`, which must be in order of expiry.
    #[must_use]
    pub fn from_holds(holds: impl IntoIterator<Item = Hold>) -> Self {
        Self { holds: holds.into_iter().collect() }
    }

    /// The holds, soonest to expire first.
    #[must_use]
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
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a hold lasts unless released.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        Duration::from_nanos(self.lease_ns)
    }

    /// Holds `cost` units under the name `id` if they are free; changes nothing otherwise.
    #[must_use]
    pub fn decide(&self, state: &mut State, cost: Cost, id: u128, now: Timestamp) -> Decision {
        self.repair(state, now);
        let wanted = self.held(state, now).saturating_add(cost.get());
        if wanted <= self.limit {
            self.hold(state, cost.get(), id, now);
            return Decision::Allow(self.peek(state, now));
        }
        let retry = if cost.get() > self.limit {
            Retry::Never
        } else {
            Retry::after_nanos(self.freed_after_ns(state, wanted - self.limit, now))
        };
        Decision::Deny { snapshot: self.peek(state, now), retry }
    }

    /// What there is to report, with nothing held.
    #[must_use]
    pub fn peek(&self, state: &State, now: Timestamp) -> Snapshot {
        let held = self.held(state, now);
        let missing = held.saturating_sub(self.limit.saturating_sub(1)).max(1);
        Snapshot {
            limit: self.limit,
            remaining: self.limit.saturating_sub(held),
            reset_after_ns: self.freed_after_ns(state, held, now),
            next_after_ns: self.freed_after_ns(state, missing.min(held), now),
        }
    }

    /// Holds `cost` units whether or not they are free, as far as the limit goes.
    #[must_use]
    pub fn count(&self, state: &mut State, cost: Cost, id: u128, now: Timestamp) -> Snapshot {
        self.repair(state, now);
        let free = self.limit.saturating_sub(self.held(state, now));
        match cost.get().min(free) {
            0 => {}
            units => self.hold(state, units, id, now),
        }
        self.peek(state, now)
    }

    /// Releases what is held under the name `id`; whether there was such a hold.
    pub fn release(&self, state: &mut State, id: u128, now: Timestamp) -> bool {
        self.forget_expired(state, now);
        let before = state.holds.len();
        state.holds.retain(|hold| hold.id != id);
        state.holds.len() < before
    }

    /// Releases `units`, the soonest to expire first.
    pub fn refund(&self, state: &mut State, units: u64, now: Timestamp) {
        self.forget_expired(state, now);
        let mut left = units;
        for hold in &mut state.holds {
            let back = hold.units.min(left);
            hold.units -= back;
            left -= back;
        }
        state.holds.retain(|hold| hold.units > 0);
    }

    /// From when on `state` says nothing that an absent state would not.
    #[must_use]
    pub fn vacant_at(&self, state: &State) -> Timestamp {
        state.holds.last().map_or(Timestamp::MIN, |hold| hold.expires_at)
    }

    fn hold(&self, state: &mut State, units: u64, id: u128, now: Timestamp) {
        self.forget_expired(state, now);
        let expires_at = now.after(self.lease());
        let at = state.holds.partition_point(|hold| hold.expires_at <= expires_at);
        state.holds.insert(at, Hold { id, units, expires_at });
    }

    /// Shortens holds that were made before the clock was set back.
    pub(crate) fn repair(&self, state: &mut State, now: Timestamp) {
        let latest = self.latest_expiry(now);
        for hold in state.holds.iter_mut().rev().take_while(|hold| hold.expires_at > latest) {
            hold.expires_at = latest;
        }
    }

    fn forget_expired(&self, state: &mut State, now: Timestamp) {
        let expired = state.holds.partition_point(|hold| hold.expires_at <= now);
        state.holds.drain(..expired);
    }

    fn latest_expiry(&self, now: Timestamp) -> Timestamp {
        now.after(self.lease()).after(SKEW)
    }

    fn live<'a>(&self, state: &'a State, now: Timestamp) -> impl Iterator<Item = &'a Hold> {
        state.holds.iter().filter(move |hold| hold.expires_at > now)
    }

    fn held(&self, state: &State, now: Timestamp) -> u64 {
        self.live(state, now).fold(0, |held, hold| held.saturating_add(hold.units))
    }

    /// How long after `now` the leases that hold `units` between them have ended.
    fn freed_after_ns(&self, state: &State, units: u64, now: Timestamp) -> u64 {
        let latest = self.latest_expiry(now);
        let mut freed = 0u64;
        for hold in self.live(state, now) {
            freed = freed.saturating_add(hold.units);
            if freed >= units && units > 0 {
                return hold.expires_at.min(latest).as_nanos() - now.as_nanos();
            }
        }
        0
    }
}

/// Why numbers do not make a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConcurrencyError {
    /// A limit of zero or above [`Concurrency::LIMIT_MAX`].
    Limit,
    /// A lease of zero or longer than [`Quota::PERIOD_MAX`].
    Lease,
}

impl fmt::Display for ConcurrencyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Limit => "the limit must be between 1 and 65536",
            Self::Lease => "the lease must be between 1 nanosecond and 100 years",
        })
    }
}

impl core::error::Error for ConcurrencyError {}

#[cfg(test)]
mod tests;
