//! One state for any algorithm, and the rule for several charges: all or nothing.

use alloc::vec::Vec;

use crate::charge::{Charge, Mode};
use crate::decision::{Decision, Retry, Snapshot, Verdict};
use crate::{Algorithm, Cost, Timestamp};
use crate::{concurrency, fixed_window, gcra, leaky_bucket, sliding_window};

/// What is stored for one key under one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// See [`gcra`].
    Gcra(gcra::State),
    /// See [`leaky_bucket`].
    LeakyBucket(leaky_bucket::State),
    /// See [`sliding_window`].
    SlidingWindow(sliding_window::State),
    /// See [`fixed_window`].
    FixedWindow(fixed_window::State),
    /// See [`concurrency`].
    Concurrency(concurrency::State),
}

/// Brings a limit and the state of the same algorithm together. States of two `words` are copied;
/// those of a sliding `window` and of `holds` in flight change in place. A state that an `other`
/// algorithm left behind says nothing, as if the key had never been seen.
macro_rules! matched {
    (
        ($algorithm:ident, $self:expr), |$limit:ident, $state:ident|
        words: $words:expr, window: $window:expr, holds: $holds:expr, other: $other:expr
    ) => {
        match ($algorithm, $self) {
            (Algorithm::Gcra($limit), State::Gcra($state)) => $words,
            (Algorithm::LeakyBucket($limit), State::LeakyBucket($state)) => $words,
            (Algorithm::FixedWindow($limit), State::FixedWindow($state)) => $words,
            (Algorithm::SlidingWindow($limit), State::SlidingWindow($state)) => $window,
            (Algorithm::Concurrency($limit), State::Concurrency($state)) => $holds,
            #[allow(unused_variables, reason = "not every fallback looks at both")]
            ($algorithm, $state) => $other,
        }
    };
}

impl State {
    /// The state of a key that was never seen.
    #[must_use]
    pub fn vacant(algorithm: &Algorithm) -> Self {
        match algorithm {
            Algorithm::Gcra(_) => Self::Gcra(Default::default()),
            Algorithm::LeakyBucket(_) => Self::LeakyBucket(Default::default()),
            Algorithm::SlidingWindow(_) => Self::SlidingWindow(Default::default()),
            Algorithm::FixedWindow(_) => Self::FixedWindow(Default::default()),
            Algorithm::Concurrency(_) => Self::Concurrency(Default::default()),
        }
    }

    /// Answers one charge, taking its units if it is allowed (or only counted). `hold_id` names the
    /// units of a [`concurrency`] policy, so that they can be released.
    #[must_use]
    pub fn charge(&mut self, charge: &Charge<'_>, hold_id: u128, now: Timestamp) -> Decision {
        let (algorithm, cost) = (charge.policy.algorithm(), charge.cost);
        if charge.mode == Mode::Count {
            return Decision::Allow(self.count(algorithm, cost, hold_id, now));
        }
        matched!((algorithm, self), |limit, state|
            words: keep(state, limit.decide(*state, cost, now)),
            window: limit.decide(state, cost, now),
            holds: limit.decide(state, cost, hold_id, now),
            other: {
                *state = Self::vacant(algorithm);
                state.charge(charge, hold_id, now)
            }
        )
    }

    /// Gives memory back that was needed for more than is kept now: at most four times as much as
    /// that stays allocated, and a little.
    pub fn shrink(&mut self) {
        match self {
            Self::SlidingWindow(state) => state.shrink(),
            Self::Concurrency(state) => state.shrink(),
            Self::Gcra(_) | Self::LeakyBucket(_) | Self::FixedWindow(_) => {}
        }
    }

    /// Takes `cost` units whether or not the policy would allow it.
    pub fn count(
        &mut self,
        algorithm: &Algorithm,
        cost: Cost,
        hold_id: u128,
        now: Timestamp,
    ) -> Snapshot {
        matched!((algorithm, self), |limit, state|
            words: keep(state, limit.count(*state, cost, now)),
            window: limit.count(state, cost, now),
            holds: limit.count(state, cost, hold_id, now),
            other: {
                *state = Self::vacant(algorithm);
                state.count(algorithm, cost, hold_id, now)
            }
        )
    }

    /// When `cost` units are worth another try, if the policy would not allow them: what
    /// [`Self::charge`] would deny, with nothing taken and nothing copied.
    #[must_use]
    pub fn retry(&self, algorithm: &Algorithm, cost: Cost, now: Timestamp) -> Option<Retry> {
        matched!((algorithm, self), |limit, state|
            words: limit.decide(*state, cost, now).0.retry(),
            window: limit.retry(state, cost, now),
            holds: limit.retry(state, cost, now),
            other: Self::vacant(algorithm).retry(algorithm, cost, now)
        )
    }

    /// What there is to report, with nothing taken.
    #[must_use]
    pub fn peek(&self, algorithm: &Algorithm, now: Timestamp) -> Snapshot {
        matched!((algorithm, self), |limit, state|
            words: limit.peek(*state, now),
            window: limit.peek(state, now),
            holds: limit.peek(state, now),
            other: Self::vacant(algorithm).peek(algorithm, now)
        )
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
        match (algorithm, self) {
            (Algorithm::Gcra(gcra), Self::Gcra(state)) => {
                *state = gcra.refund(*state, units, now);
            }
            (Algorithm::LeakyBucket(bucket), Self::LeakyBucket(state)) => {
                *state = bucket.refund(*state, units, now);
            }
            (Algorithm::FixedWindow(window), Self::FixedWindow(state)) => {
                *state = window.refund(*state, units, taken_at, now);
            }
            (Algorithm::SlidingWindow(window), Self::SlidingWindow(state)) => {
                window.refund(state, units, taken_at, now);
            }
            (Algorithm::Concurrency(limit), Self::Concurrency(state)) => {
                limit.refund(state, units, now);
            }
            (algorithm, state) => *state = Self::vacant(algorithm),
        }
    }

    /// Brings what a reservation holds to what it really cost. Units in flight are over, whatever
    /// they cost; what was counted without being there is not given back.
    pub fn settle(&mut self, algorithm: &Algorithm, held: &Held, cost: u64, now: Timestamp) {
        if let (Algorithm::Concurrency(limit), Self::Concurrency(state)) = (algorithm, &mut *self) {
            limit.release(state, held.id, now);
        } else if let Some(more) = cost.checked_sub(held.cost.get()).and_then(Cost::new) {
            let _ = self.count(algorithm, more, held.id, now);
        } else if cost < held.taken {
            self.refund(algorithm, held.taken - cost, Some(held.at), now);
        }
    }

    /// Units that `charge` would take if it were allowed, after `earlier` units: only a bucket
    /// cannot get emptier than empty; a window counts on beyond its limit.
    fn taken_by(&self, charge: &Charge<'_>, earlier: u64, now: Timestamp) -> u64 {
        let (algorithm, cost) = (charge.policy.algorithm(), charge.cost.get());
        match algorithm {
            Algorithm::SlidingWindow(_) | Algorithm::FixedWindow(_) => cost,
            _ if charge.mode == Mode::Enforce => cost,
            _ => cost.min(self.peek(algorithm, now).remaining().saturating_sub(earlier)),
        }
    }

    /// From when on this state says nothing that an absent one would not.
    #[must_use]
    pub fn vacant_at(&self, algorithm: &Algorithm) -> Timestamp {
        matched!((algorithm, self), |limit, state|
            words: limit.vacant_at(*state),
            window: limit.vacant_at(state),
            holds: limit.vacant_at(state),
            other: Timestamp::MIN
        )
    }

    /// Forgets what was taken. The key is as good as new as of `now`, and not as of any time
    /// before: a caller who read the clock earlier and comes later does not begin anew in the past.
    pub fn clear(&mut self, algorithm: &Algorithm, now: Timestamp) {
        matched!((algorithm, self), |limit, state|
            words: *state = limit.clear(*state, now),
            window: limit.clear(state, now),
            holds: limit.clear(state, now),
            other: *state = Self::vacant(algorithm)
        )
    }

    /// The moment as of which a charge with the reading `now` is decided: `now`, or the later
    /// moment up to which this state has been brought already.
    #[must_use]
    pub fn moment(&self, algorithm: &Algorithm, now: Timestamp) -> Timestamp {
        match (algorithm, self) {
            (Algorithm::LeakyBucket(bucket), Self::LeakyBucket(state)) => {
                bucket.moment(*state, now)
            }
            (Algorithm::FixedWindow(window), Self::FixedWindow(state)) => {
                window.moment(*state, now)
            }
            (Algorithm::SlidingWindow(window), Self::SlidingWindow(state)) => {
                window.moment(state, now)
            }
            (Algorithm::Concurrency(limit), Self::Concurrency(state)) => limit.moment(state, now),
            // An arrival time says how much is used, and not when that was found out.
            _ => now,
        }
    }

    /// Drops what does not count at `now` any more.
    pub fn forget_past(&mut self, algorithm: &Algorithm, now: Timestamp) {
        match (algorithm, self) {
            (Algorithm::LeakyBucket(bucket), Self::LeakyBucket(state)) => {
                *state = bucket.drip(*state, now);
            }
            (Algorithm::FixedWindow(window), Self::FixedWindow(state)) => {
                *state = window.roll(*state, now);
            }
            (Algorithm::SlidingWindow(window), Self::SlidingWindow(state)) => {
                window.drop_dead(state, now);
            }
            (Algorithm::Concurrency(limit), Self::Concurrency(state)) => {
                limit.forget_expired(state, now);
            }
            (algorithm, state) if state.vacant_at(algorithm) <= now => {
                *state = Self::vacant(algorithm);
            }
            _ => {}
        }
    }

    /// Brings back what a clock that was set back left in the future, so that nothing is granted
    /// twice and no key is locked for longer than its policy says (and [`SKEW`]); see each
    /// algorithm. Only for whoever knows that the *clock* was set back: a store that decides by one
    /// server's clock, one request at a time. Called for a reading that merely comes late, it would
    /// grant units a second time.
    ///
    /// [`SKEW`]: crate::SKEW
    pub fn rewind(&mut self, algorithm: &Algorithm, now: Timestamp) {
        matched!((algorithm, self), |limit, state|
            words: *state = limit.rewind(*state, now),
            window: limit.rewind(state, now),
            holds: limit.rewind(state, now),
            other: *state = Self::vacant(algorithm)
        )
    }
}

fn keep<A, S>(slot: &mut S, (answer, state): (A, S)) -> A {
    *slot = state;
    answer
}

/// What one charge of a reservation took, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The name under which units in flight are held.
    pub id: u128,
    /// Units asked for.
    pub cost: Cost,
    /// Units taken: fewer than asked for where a charge was counted and there were fewer.
    pub taken: u64,
    /// The moment as of which they were taken; see [`State::moment`].
    pub at: Timestamp,
}

impl Held {
    /// What each charge of a request takes if it is allowed, given the `states` before it; see
    /// [`decide_all`] for `slots`.
    ///
    /// # Panics
    ///
    /// As [`decide_all`].
    #[must_use]
    pub fn by_all(
        charges: &[Charge<'_>],
        slots: &[usize],
        states: &[State],
        id: u128,
        now: Timestamp,
    ) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::with_capacity(charges.len());
        for (charge, &slot) in charges.iter().zip(slots) {
            let same = all.iter().zip(slots).filter(|(_, other)| **other == slot);
            let earlier = same.fold(0u64, |sum, (held, _)| sum.saturating_add(held.taken));
            let taken = states[slot].taken_by(charge, earlier, now);
            let at = states[slot].moment(charge.policy.algorithm(), now);
            all.push(Self { id, cost: charge.cost, taken, at });
        }
        all
    }
}

/// Answers one request: every charge is taken, or none.
///
/// `slots[i]` is the index in `states` of the state that `charges[i]` is about; charges on the same
/// key and policy name the same slot, and the later sees what the earlier took.
///
/// # Panics
///
/// If `slots` is shorter than `charges`, or names a state that is not there.
#[must_use]
pub fn decide_all(
    charges: &[Charge<'_>],
    slots: &[usize],
    states: &mut [State],
    hold_id: u128,
    now: Timestamp,
) -> Verdict {
    let retries: Vec<Option<Retry>> =
        (0..charges.len()).map(|index| retry_on_top(charges, slots, index, states, now)).collect();
    if retries.iter().all(Option::is_none) {
        let take =
            |(charge, &slot): (&Charge<'_>, &usize)| states[slot].charge(charge, hold_id, now);
        return Verdict::new(charges.iter().zip(slots).map(take).collect());
    }
    let untouched = charges.iter().zip(slots).zip(retries).map(|((charge, &slot), retry)| {
        let snapshot = states[slot].peek(charge.policy.algorithm(), now);
        match retry {
            None => Decision::Allow(snapshot),
            Some(retry) => Decision::Deny { snapshot, retry },
        }
    });
    Verdict::new(untouched.collect())
}

/// When `charges[index]` is worth another try: once there is room for it on top of what the request
/// asks of the same state before it. Told to wait only for itself, the request would come back too
/// early.
fn retry_on_top(
    charges: &[Charge<'_>],
    slots: &[usize],
    index: usize,
    states: &[State],
    now: Timestamp,
) -> Option<Retry> {
    let charge = &charges[index];
    if charge.mode == Mode::Count {
        return None;
    }
    let same = charges[..index].iter().zip(slots).filter(|(_, slot)| **slot == slots[index]);
    let cost = same.fold(charge.cost, |sum, (charge, _)| sum.saturating_add(charge.cost));
    states[slots[index]].retry(charge.policy.algorithm(), cost, now)
}
