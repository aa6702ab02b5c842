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
        match (algorithm, self) {
            (Algorithm::Gcra(gcra), Self::Gcra(state)) => {
                keep(state, gcra.decide(*state, cost, now))
            }
            (Algorithm::LeakyBucket(bucket), Self::LeakyBucket(state)) => {
                keep(state, bucket.decide(*state, cost, now))
            }
            (Algorithm::FixedWindow(window), Self::FixedWindow(state)) => {
                keep(state, window.decide(*state, cost, now))
            }
            (Algorithm::SlidingWindow(window), Self::SlidingWindow(state)) => {
                window.decide(state, cost, now)
            }
            (Algorithm::Concurrency(limit), Self::Concurrency(state)) => {
                limit.decide(state, cost, hold_id, now)
            }
            (algorithm, state) => {
                *state = Self::vacant(algorithm);
                state.charge(charge, hold_id, now)
            }
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
        match (algorithm, self) {
            (Algorithm::Gcra(gcra), Self::Gcra(state)) => {
                keep(state, gcra.count(*state, cost, now))
            }
            (Algorithm::LeakyBucket(bucket), Self::LeakyBucket(state)) => {
                keep(state, bucket.count(*state, cost, now))
            }
            (Algorithm::FixedWindow(window), Self::FixedWindow(state)) => {
                keep(state, window.count(*state, cost, now))
            }
            (Algorithm::SlidingWindow(window), Self::SlidingWindow(state)) => {
                window.count(state, cost, now)
            }
            (Algorithm::Concurrency(limit), Self::Concurrency(state)) => {
                limit.count(state, cost, hold_id, now)
            }
            (algorithm, state) => {
                *state = Self::vacant(algorithm);
                state.count(algorithm, cost, hold_id, now)
            }
        }
    }

    /// What there is to report, with nothing taken.
    #[must_use]
    pub fn peek(&self, algorithm: &Algorithm, now: Timestamp) -> Snapshot {
        match (algorithm, self) {
            (Algorithm::Gcra(gcra), Self::Gcra(state)) => gcra.peek(*state, now),
            (Algorithm::LeakyBucket(bucket), Self::LeakyBucket(state)) => bucket.peek(*state, now),
            (Algorithm::FixedWindow(window), Self::FixedWindow(state)) => window.peek(*state, now),
            (Algorithm::SlidingWindow(window), Self::SlidingWindow(state)) => {
                window.peek(state, now)
            }
            (Algorithm::Concurrency(limit), Self::Concurrency(state)) => limit.peek(state, now),
            (algorithm, _) => Self::vacant(algorithm).peek(algorithm, now),
        }
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

    /// Units that `charge` would take if it were allowed: only a bucket cannot get emptier than
    /// empty; a window counts on beyond its limit.
    fn taken_by(&self, charge: &Charge<'_>, now: Timestamp) -> u64 {
        let (algorithm, cost) = (charge.policy.algorithm(), charge.cost.get());
        match algorithm {
            Algorithm::SlidingWindow(_) | Algorithm::FixedWindow(_) => cost,
            _ if charge.mode == Mode::Enforce => cost,
            _ => cost.min(self.peek(algorithm, now).remaining()),
        }
    }

    /// From when on this state says nothing that an absent one would not.
    #[must_use]
    pub fn vacant_at(&self, algorithm: &Algorithm) -> Timestamp {
        match (algorithm, self) {
            (Algorithm::Gcra(gcra), Self::Gcra(state)) => gcra.vacant_at(*state),
            (Algorithm::LeakyBucket(bucket), Self::LeakyBucket(state)) => bucket.vacant_at(*state),
            (Algorithm::FixedWindow(window), Self::FixedWindow(state)) => window.vacant_at(*state),
            (Algorithm::SlidingWindow(window), Self::SlidingWindow(state)) => {
                window.vacant_at(state)
            }
            (Algorithm::Concurrency(limit), Self::Concurrency(state)) => limit.vacant_at(state),
            _ => Timestamp::MIN,
        }
    }

    /// Brings back what a set-back clock left in the future; see each algorithm.
    fn repair(&mut self, algorithm: &Algorithm, now: Timestamp) {
        match (algorithm, self) {
            (Algorithm::Gcra(gcra), Self::Gcra(state)) => *state = gcra.repair(*state, now),
            (Algorithm::LeakyBucket(bucket), Self::LeakyBucket(state)) => {
                *state = bucket.repair(*state, now);
            }
            (Algorithm::FixedWindow(window), Self::FixedWindow(state)) => {
                *state = window.repair(*state, now);
            }
            (Algorithm::SlidingWindow(window), Self::SlidingWindow(state)) => {
                window.repair(state, now);
            }
            (Algorithm::Concurrency(limit), Self::Concurrency(state)) => limit.repair(state, now),
            (algorithm, state) => *state = Self::vacant(algorithm),
        }
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
    /// When.
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
        let mut states = states.to_vec();
        let hold = |(charge, &slot): (&Charge<'_>, &usize)| {
            let taken = states[slot].taken_by(charge, now);
            let _ = states[slot].charge(charge, id, now);
            Self { id, cost: charge.cost, taken, at: now }
        };
        charges.iter().zip(slots).map(hold).collect()
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
    for (charge, &slot) in charges.iter().zip(slots) {
        states[slot].repair(charge.policy.algorithm(), now);
    }
    let before = states.to_vec();
    let mut decisions = Vec::with_capacity(charges.len());
    for (charge, &slot) in charges.iter().zip(slots) {
        decisions.push(states[slot].charge(charge, hold_id, now));
    }
    if decisions.iter().all(Decision::is_allowed) {
        return Verdict::new(decisions);
    }
    states.clone_from_slice(&before);
    for (index, decision) in decisions.iter_mut().enumerate() {
        let (algorithm, state) = (charges[index].policy.algorithm(), &states[slots[index]]);
        let snapshot = state.peek(algorithm, now);
        *decision = match retry_on_top(charges, slots, index, state, now) {
            None => Decision::Allow(snapshot),
            Some(retry) => Decision::Deny { snapshot, retry },
        };
    }
    Verdict::new(decisions)
}

/// When `charges[index]` is worth another try, given an untouched `state`: once there is room for
/// it on top of what the request asks of the same state before it. Told to wait only for itself,
/// the request would come back too early.
fn retry_on_top(
    charges: &[Charge<'_>],
    slots: &[usize],
    index: usize,
    state: &State,
    now: Timestamp,
) -> Option<Retry> {
    let same = charges[..index].iter().zip(slots).filter(|(_, slot)| **slot == slots[index]);
    let cost = same.fold(charges[index].cost, |sum, (charge, _)| sum.saturating_add(charge.cost));
    state.clone().charge(&charges[index].cost(cost), 0, now).retry()
}
