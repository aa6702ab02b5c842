//! What is done with a state, whichever its algorithm is.

use super::{Algorithm, Apply, State};
use crate::charge::{Charge, Mode};
use crate::decision::{Decision, Retry, Snapshot};
use crate::requests::Held;
use crate::{Cost, Timestamp};

impl State {
    /// Answers one charge, taking its units if it is allowed (or only counted). `hold_id` names the
    /// units of a [`concurrency`](crate::concurrency) policy, so that they can be released.
    pub fn charge(&mut self, charge: &Charge<'_>, hold_id: u128, now: Timestamp) -> Decision {
        let (algorithm, cost) = (charge.policy.algorithm(), charge.cost);
        if charge.mode == Mode::Count {
            return Decision::Allow(self.count(algorithm, cost, hold_id, now));
        }
        each!(algorithm, &mut *self, (own, it) => Apply::decide(own, it, cost, hold_id, now), else {
            *self = Self::vacant(algorithm);
            self.charge(charge, hold_id, now)
        })
    }

    /// Takes `cost` units whether or not the policy would allow it.
    pub fn count(
        &mut self,
        algorithm: &Algorithm,
        cost: Cost,
        hold_id: u128,
        now: Timestamp,
    ) -> Snapshot {
        each!(algorithm, &mut *self, (own, it) => Apply::count(own, it, cost, hold_id, now), else {
            *self = Self::vacant(algorithm);
            self.count(algorithm, cost, hold_id, now)
        })
    }

    /// When `cost` units are worth another try, if the policy would not allow them: what
    /// [`Self::charge`] would deny, with nothing taken and nothing copied.
    pub fn retry(&self, algorithm: &Algorithm, cost: Cost, now: Timestamp) -> Option<Retry> {
        each!(algorithm, self, (own, it) => Apply::retry(own, it, cost, now), else {
            Self::vacant(algorithm).retry(algorithm, cost, now)
        })
    }

    /// What there is to report, with nothing taken.
    pub fn peek(&self, algorithm: &Algorithm, now: Timestamp) -> Snapshot {
        each!(algorithm, self, (own, it) => Apply::peek(own, it, now), else {
            Self::vacant(algorithm).peek(algorithm, now)
        })
    }

    /// Gives `units` back. Algorithms with windows give back only what still counts in them:
    /// `taken_at` says when the units were taken, if that is known.
    pub fn refund(
        &mut self,
        algorithm: &Algorithm,
        units: u64,
        taken_at: Option<Timestamp>,
        now: Timestamp,
    ) {
        let at = taken_at;
        each!(algorithm, &mut *self, (own, it) => Apply::refund(own, it, units, at, now), else {
            *self = Self::vacant(algorithm);
        });
    }

    /// Brings what a reservation holds to what it really cost. Units in flight are over, whatever
    /// they cost; what was counted without being there is not given back.
    pub fn settle(&mut self, algorithm: &Algorithm, held: &Held, cost: u64, now: Timestamp) {
        self.settle_taken(algorithm, held, cost, Some(held.at), now);
    }

    /// As [`Self::settle`], where the numbers have changed since: a window does not know any more
    /// when the units were taken.
    pub fn settle_carried(
        &mut self,
        algorithm: &Algorithm,
        held: &Held,
        cost: u64,
        now: Timestamp,
    ) {
        self.settle_taken(algorithm, held, cost, None, now);
    }

    fn settle_taken(
        &mut self,
        algorithm: &Algorithm,
        held: &Held,
        cost: u64,
        taken_at: Option<Timestamp>,
        now: Timestamp,
    ) {
        if let (Algorithm::Concurrency(limit), Self::Concurrency(state)) = (algorithm, &mut *self) {
            limit.release(state, held.id, now);
        } else if let Some(more) = cost.checked_sub(held.cost.get()).and_then(Cost::new) {
            let _ = self.count(algorithm, more, held.id, now);
        } else if cost < held.taken {
            self.refund(algorithm, held.taken - cost, taken_at, now);
        }
    }

    /// Units that `charge` would take if it were allowed, after `earlier` units: only a bucket
    /// cannot get emptier than empty; a window counts on beyond its limit.
    pub(crate) fn taken_by(&self, charge: &Charge<'_>, earlier: u64, now: Timestamp) -> u64 {
        let (algorithm, cost) = (charge.policy.algorithm(), charge.cost.get());
        match algorithm {
            Algorithm::SlidingWindow(_)
            | Algorithm::FixedWindow(_)
            | Algorithm::CalendarWindow(_) => cost,
            _ if charge.mode == Mode::Enforce => cost,
            _ => cost.min(self.peek(algorithm, now).remaining().saturating_sub(earlier)),
        }
    }

    /// From when on this state says nothing that an absent one would not.
    pub fn vacant_at(&self, algorithm: &Algorithm) -> Timestamp {
        each!(algorithm, self, (own, it) => Apply::vacant_at(own, it), else Timestamp::MIN)
    }

    /// Forgets what was taken. The key is as good as new as of `now`, and not as of any time
    /// before: a caller who read the clock earlier and comes later does not begin anew in the past.
    pub fn clear(&mut self, algorithm: &Algorithm, now: Timestamp) {
        each!(algorithm, &mut *self, (own, it) => Apply::clear(own, it, now), else {
            *self = Self::vacant(algorithm);
        });
    }

    /// The moment as of which a charge with the reading `now` is decided: `now`, or the later
    /// moment up to which this state has been brought already.
    pub fn moment(&self, algorithm: &Algorithm, now: Timestamp) -> Timestamp {
        each!(algorithm, self, (own, it) => Apply::moment(own, it, now), else now)
    }

    /// Drops what does not count at `now` any more.
    pub fn forget_past(&mut self, algorithm: &Algorithm, now: Timestamp) {
        each!(algorithm, &mut *self, (own, it) => own.forget_past(it, now), else {
            *self = Self::vacant(algorithm);
        });
    }

    /// Brings back what a clock that was set back left in the future, so that nothing is granted
    /// twice and no key is locked for longer than its policy says (and [`SKEW`]); see each
    /// algorithm. Only for whoever knows that the *clock* was set back: a store that decides by one
    /// server's clock, one request at a time. Called for a reading that merely comes late, it would
    /// grant units a second time.
    ///
    /// [`SKEW`]: crate::SKEW
    pub fn rewind(&mut self, algorithm: &Algorithm, now: Timestamp) {
        each!(algorithm, &mut *self, (own, it) => Apply::rewind(own, it, now), else {
            *self = Self::vacant(algorithm);
        });
    }
}
