//! A process's own share of a quota, enforced in process while the store is gone.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tollway_core::{
    Algorithm, Charge, Cost, Decision, Key, Mode, Policy, Retry, Snapshot, State, Timestamp,
    decide_all,
};

use crate::request::KeyCharge;

/// States of this process's shares, at most as many as it was made for.
pub(crate) struct LocalShares {
    shares: Mutex<Shares>,
    max: usize,
}

#[derive(Default)]
struct Shares {
    states: HashMap<Vec<u8>, Held>,
    /// The newest reading of the clock that came with a call: who comes late is decided as of then,
    /// or a share that was dropped could begin anew in the past.
    newest: Timestamp,
}

struct Held {
    state: State,
    algorithm: Algorithm,
}

/// A part of a request, and how many processes share its quota.
pub(crate) type LocalCharge<'a> = (&'a KeyCharge, u32);

impl LocalShares {
    pub(crate) fn new(max: usize) -> Self {
        Self { shares: Mutex::default(), max }
    }

    /// Decides the parts together. With `take` unset nothing is taken.
    pub(crate) fn decide(
        &self,
        parts: &[LocalCharge<'_>],
        hold_id: u128,
        now: Timestamp,
        take: bool,
    ) -> Vec<Decision> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let at = now.max(shares.newest);
        shares.newest = at;
        let held = &mut shares.states;
        let policies: Option<Vec<Policy>> = parts.iter().map(local_policy).collect();
        let Some(policies) = policies else { return deny_all(parts) };
        if !make_room(held, parts, self.max, at) {
            return deny_all(parts);
        }
        let keys: Vec<&Vec<u8>> = distinct(parts);
        let mut states: Vec<State> = Vec::with_capacity(keys.len());
        let mut slots = Vec::with_capacity(parts.len());
        for (part, _) in parts {
            slots.push(keys.iter().position(|key| **key == part.key).unwrap_or_default());
        }
        for key in &keys {
            let policy = slots.iter().position(|slot| keys[*slot] == *key).unwrap_or_default();
            let (algorithm, rule) = (policies[policy].algorithm(), policies[policy].change_rule());
            let known = held.get(*key).map(|held| match held.algorithm == *algorithm {
                true => held.state.clone(),
                false => held.state.carry(&held.algorithm, algorithm, rule, at),
            });
            states.push(known.unwrap_or_else(|| State::vacant(algorithm)));
        }
        let charges: Vec<Charge<'_>> =
            parts.iter().zip(&policies).map(|((part, _), policy)| charge(part, policy)).collect();
        let verdict = decide_all(&charges, &slots, &mut states, hold_id, at).told_at(now, at);
        if take {
            for (slot, policy) in slots.iter().zip(&policies) {
                let entry = Held { state: states[*slot].clone(), algorithm: *policy.algorithm() };
                held.insert(keys[*slot].clone(), entry);
            }
        }
        verdict.decisions().to_vec()
    }
}

fn local_policy((part, shares): &LocalCharge<'_>) -> Option<Policy> {
    let algorithm = part.encoded.algorithm().smallest_share(*shares)?;
    let rule = part.encoded.policy.change_rule();
    Policy::new(part.encoded.policy.name(), algorithm).ok().map(|policy| policy.on_change(rule))
}

fn charge<'a>(part: &KeyCharge, policy: &'a Policy) -> Charge<'a> {
    let key = Key::new("k").expect("one byte is a key");
    let charge = Charge::new(policy, key).cost(Cost::new(part.units).unwrap_or(Cost::ONE));
    if part.mode == Mode::Count { charge.counted() } else { charge }
}

fn distinct<'a>(parts: &[LocalCharge<'a>]) -> Vec<&'a Vec<u8>> {
    let mut keys: Vec<&Vec<u8>> = Vec::with_capacity(parts.len());
    for (part, _) in parts {
        if !keys.contains(&&part.key) {
            keys.push(&part.key);
        }
    }
    keys
}

/// Forgets what says nothing any more if there is no room. A share that is being limited is kept:
/// a flood of new keys must not free the others.
fn make_room(
    held: &mut HashMap<Vec<u8>, Held>,
    parts: &[LocalCharge<'_>],
    max: usize,
    now: Timestamp,
) -> bool {
    let missing = parts.iter().filter(|(part, _)| !held.contains_key(&part.key)).count();
    if held.len() + missing <= max {
        return true;
    }
    held.retain(|_, held| held.state.vacant_at(&held.algorithm) > now);
    held.len() + missing <= max
}

fn deny_all(parts: &[LocalCharge<'_>]) -> Vec<Decision> {
    parts.iter().map(|(part, _)| denied(part.encoded.algorithm().limit())).collect()
}

/// The denial of a policy whose store is gone, or whose share cannot be kept.
pub(crate) fn denied(limit: u64) -> Decision {
    let wait = std::time::Duration::from_secs(1);
    Decision::Deny { snapshot: Snapshot::new(limit, 0, wait, wait), retry: Retry::After(wait) }
}
