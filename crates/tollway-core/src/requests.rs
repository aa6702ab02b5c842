//! One request of several charges: every charge is taken, or none.

use alloc::vec::Vec;

use crate::charge::{Charge, Mode};
use crate::decision::{Decision, Retry, Verdict};
use crate::{Cost, State, Timestamp};

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
