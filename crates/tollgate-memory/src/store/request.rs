//! Several charges in one request: found, locked in a fixed order, decided together.
//!
//! The order is: shards of wide states by number, then slots of packed states by index. Everybody
//! who holds more than one lock takes them in this order, so nobody waits in a circle.

use tollgate_core::{Algorithm, Charge, Decision, State, Timestamp, Verdict, decide_all};

use super::{MemoryStore, refuse};
use crate::hash::Fingerprint;
use crate::packed::{self, is_packed};
use crate::slot::Content;
use crate::sync::MutexGuard;
use crate::table::Full;
use crate::wide::{Shard, Wide};

/// The distinct states that a request is about: packed ones first, then wide ones.
struct Plan<'a> {
    packed: Vec<Fingerprint>,
    wide: Vec<Fingerprint>,
    /// The algorithm of each state, in the same order.
    algorithms: Vec<&'a Algorithm>,
    /// For each charge, the number of its state.
    slots: Vec<usize>,
}

impl<'a> Plan<'a> {
    fn new(store: &MemoryStore, charges: &[Charge<'a>]) -> Self {
        let mut plan = Plan {
            packed: Vec::new(),
            wide: Vec::new(),
            algorithms: Vec::new(),
            slots: Vec::new(),
        };
        let fingerprints: Vec<_> = charges.iter().map(|charge| store.fingerprint(charge)).collect();
        for wide in [false, true] {
            for (charge, fingerprint) in charges.iter().zip(&fingerprints) {
                let algorithm = charge.policy.algorithm();
                if is_packed(algorithm) != wide {
                    plan.add(*fingerprint, algorithm);
                }
            }
        }
        // Charges are few: looking through them beats a map.
        let number = |fingerprint| plan.states().position(|known| known == fingerprint);
        plan.slots = fingerprints.into_iter().filter_map(number).collect();
        plan
    }

    fn states(&self) -> impl Iterator<Item = Fingerprint> {
        self.packed.iter().chain(&self.wide).copied()
    }

    fn add(&mut self, fingerprint: Fingerprint, algorithm: &'a Algorithm) {
        if self.states().any(|known| known == fingerprint) {
            return;
        }
        let states = if is_packed(algorithm) { &mut self.packed } else { &mut self.wide };
        states.push(fingerprint);
        self.algorithms.push(algorithm);
    }

    /// Wide states with their algorithms.
    fn wide(&self) -> impl Iterator<Item = (Fingerprint, &'a Algorithm)> {
        self.wide.iter().copied().zip(self.algorithms[self.packed.len()..].iter().copied())
    }
}

type Shards<'s> = Vec<(usize, MutexGuard<'s, Shard>)>;

impl MemoryStore {
    /// Takes every charge if all are allowed, or none.
    pub(super) fn request(&self, charges: &[Charge<'_>], hold_id: u128, now: Timestamp) -> Verdict {
        let plan = Plan::new(self, charges);
        let mut shards = self.lock_shards(&plan);
        let mut wide = Vec::new();
        let decided = load_wide(&plan, &mut shards, now).and_then(|loaded| {
            self.table.update_all(&plan.packed, now, |words| {
                let mut states = unpack_all(&plan, words);
                states.extend(loaded);
                let verdict = decide_all(charges, &plan.slots, &mut states, hold_id, now);
                wide = states.split_off(plan.packed.len());
                (verdict, contents(&plan, words, &states, now))
            })
        });
        match decided {
            Ok(verdict) => {
                store_wide(&plan, &mut shards, wide, now);
                verdict
            }
            Err((number, full)) => {
                drop(shards);
                self.refuse_request(charges, &plan, number, full, now)
            }
        }
    }

    /// What [`Self::request`] would answer. Nothing is locked for long: each state is consistent in
    /// itself, the request as a whole a look at things in motion.
    pub(super) fn peek_request(&self, charges: &[Charge<'_>], now: Timestamp) -> Verdict {
        let plan = Plan::new(self, charges);
        let states = plan.states().zip(&plan.algorithms);
        let before: Vec<State> =
            states.map(|(key, algorithm)| self.state(key, algorithm)).collect();
        let verdict = decide_all(charges, &plan.slots, &mut before.clone(), 0, now);
        if !verdict.is_allowed() {
            return verdict;
        }
        let untouched = charges.iter().zip(&plan.slots).map(|(charge, &number)| {
            Decision::Allow(before[number].peek(charge.policy.algorithm(), now))
        });
        Verdict::new(untouched.collect())
    }

    fn lock_shards(&self, plan: &Plan<'_>) -> Shards<'_> {
        let mut numbers: Vec<usize> = plan.wide.iter().copied().map(Wide::shard_of).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| (number, self.wide.lock(number))).collect()
    }

    /// The verdict on a request of which one state has no room.
    fn refuse_request(
        &self,
        charges: &[Charge<'_>],
        plan: &Plan<'_>,
        refused: usize,
        full: Full,
        now: Timestamp,
    ) -> Verdict {
        let decide = |(charge, &number): (&Charge<'_>, &usize)| {
            if number == refused {
                return refuse(charge.policy.algorithm(), full, now);
            }
            Decision::Allow(self.peek(charge, now))
        };
        Verdict::new(charges.iter().zip(&plan.slots).map(decide).collect())
    }
}

fn unpack_all(plan: &Plan<'_>, words: &[[u64; 2]]) -> Vec<State> {
    let pairs = words.iter().zip(&plan.algorithms);
    pairs.map(|(words, algorithm)| packed::unpack(algorithm, *words)).collect()
}

/// What to write into the packed slots; `None` if nothing has changed.
fn contents(
    plan: &Plan<'_>,
    words: &[[u64; 2]],
    states: &[State],
    now: Timestamp,
) -> Option<Vec<Content>> {
    let after: Vec<[u64; 2]> = states.iter().map(packed::pack).collect();
    if after == words {
        return None;
    }
    let snapshots =
        states.iter().zip(&plan.algorithms).map(|(state, algorithm)| state.peek(algorithm, now));
    let pairs = after.into_iter().zip(snapshots);
    Some(pairs.map(|(words, snapshot)| packed::content(words, snapshot, now)).collect())
}

fn load_wide(
    plan: &Plan<'_>,
    shards: &mut Shards<'_>,
    now: Timestamp,
) -> Result<Vec<State>, (usize, Full)> {
    let load = |(number, (fingerprint, algorithm)): (usize, (Fingerprint, &Algorithm))| {
        let shard = shard_mut(shards, fingerprint);
        if let Some(state) = shard.get(fingerprint) {
            return Ok(state.clone());
        }
        shard.make_room(now).map_err(|full| (plan.packed.len() + number, full))?;
        Ok(State::vacant(algorithm))
    };
    plan.wide().enumerate().map(load).collect()
}

fn store_wide(plan: &Plan<'_>, shards: &mut Shards<'_>, states: Vec<State>, now: Timestamp) {
    for ((fingerprint, algorithm), state) in plan.wide().zip(states) {
        let shard = shard_mut(shards, fingerprint);
        if shard.get(fingerprint) != Some(&state) {
            shard.put(fingerprint, state, algorithm, now);
        }
    }
}

fn shard_mut<'s>(shards: &'s mut Shards<'_>, fingerprint: Fingerprint) -> &'s mut Shard {
    let number = Wide::shard_of(fingerprint);
    let locked = shards.iter_mut().find(|(locked, _)| *locked == number);
    &mut locked.expect("the shard of every wide state was locked").1
}
