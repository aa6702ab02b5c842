//! Several charges in one request: found, locked in a fixed order, decided together.
//!
//! The order is: shards of states of variable size by number, narrow slots by index, double slots
//! by index. Everybody who holds more than one lock takes them in this order, so nobody waits in a
//! circle.

use std::sync::MutexGuard;

use tollway_core::shares::Expanded;
use tollway_core::{
    Algorithm, Charge, Decision, Held, OnChange, State, Timestamp, Verdict, decide_all,
};

use super::changed_numbers::Refused;
use super::{MemoryStore, refuse};
use crate::hash::Fingerprint;
use crate::numbers::{Asked, Lineage, Newcomer};
use crate::packed::{self, Layout};
use crate::slot::Slot;
use crate::table::{Full, LockedSlots, Miss, Table};
use crate::variable_states::{Shard, VariableStates};

/// A request as it is put to the states: as it came, or with charges to trees of owners in parts.
pub(super) enum RequestParts<'r, 'a> {
    Plain(&'r [Charge<'a>]),
    Shared(&'r [Charge<'a>], Expanded<'a>),
}

impl<'r, 'a> RequestParts<'r, 'a> {
    pub(super) fn new(charges: &'r [Charge<'a>]) -> Self {
        match Expanded::is_needed(charges) {
            false => Self::Plain(charges),
            true => Self::Shared(charges, Expanded::of(charges)),
        }
    }

    /// The request as it came.
    fn whole(&self) -> &'r [Charge<'a>] {
        match self {
            Self::Plain(charges) | Self::Shared(charges, _) => charges,
        }
    }

    /// The charges to states.
    pub(super) fn charges(&self) -> &[Charge<'a>] {
        match self {
            Self::Plain(charges) => charges,
            Self::Shared(_, expanded) => expanded.charges(),
        }
    }

    /// Which charge of the request a part belongs to.
    pub(super) fn charge_of(&self, part: usize) -> usize {
        match self {
            Self::Plain(_) => part,
            Self::Shared(_, expanded) => expanded.charge_of(part),
        }
    }

    /// What each part takes if the request is allowed.
    pub(super) fn held(
        &self,
        slots: &[usize],
        states: &[State],
        id: u128,
        at: Timestamp,
    ) -> Vec<Held> {
        match self {
            Self::Plain(charges) => Held::by_all(charges, slots, states, id, at),
            Self::Shared(_, expanded) => expanded.held(slots, states, id, at),
        }
    }

    pub(super) fn decide(
        &self,
        slots: &[usize],
        states: &mut [State],
        hold_id: u128,
        at: Timestamp,
    ) -> Verdict {
        match self {
            Self::Plain(charges) => decide_all(charges, slots, states, hold_id, at),
            Self::Shared(_, expanded) => expanded.decide(slots, states, hold_id, at),
        }
    }
}

/// The distinct states that a request is about: by layout, in the order in which they are locked.
struct RequestStates<'a> {
    states: Vec<(Asked<'a>, Layout)>,
    /// For each charge, the number of its state.
    slots: Vec<usize>,
}

impl<'a> RequestStates<'a> {
    fn new(store: &MemoryStore, charges: &[Charge<'a>], now: Timestamp) -> Self {
        let layout =
            |asked: Asked<'a>| (asked, store.layout(|| asked.fingerprint, asked.algorithm, now));
        let asked: Vec<_> = store.asked_together(charges).into_iter().map(layout).collect();
        let mut states = Vec::with_capacity(asked.len());
        // Charges are few: looking through them beats a map.
        for layout in [Layout::Variable, Layout::Narrow, Layout::Double] {
            for state in asked.iter().filter(|state| state.1 == layout) {
                if !states.iter().any(|known| is_same(known, state)) {
                    states.push(*state);
                }
            }
        }
        let number = |state| states.iter().position(|known| is_same(known, state));
        let slots = asked.iter().filter_map(number).collect();
        Self { states, slots }
    }

    fn asked(&self) -> Vec<Asked<'a>> {
        self.states.iter().map(|(asked, _)| *asked).collect()
    }

    /// The numbers and fingerprints of the states of one layout.
    fn of(&self, layout: Layout) -> impl Iterator<Item = (usize, Fingerprint, &'a Algorithm)> + '_ {
        self.asked_of(layout).map(|(number, asked)| (number, asked.fingerprint, asked.algorithm))
    }

    fn asked_of(&self, layout: Layout) -> impl Iterator<Item = (usize, Asked<'a>)> + '_ {
        let numbered = self.states.iter().enumerate();
        numbered
            .filter(move |(_, state)| state.1 == layout)
            .map(|(number, (asked, _))| (number, *asked))
    }
}

/// Whether two charges are about one state: to lock its slot twice would be to wait for ourselves.
fn is_same(one: &(Asked<'_>, Layout), other: &(Asked<'_>, Layout)) -> bool {
    (one.0.fingerprint, one.1) == (other.0.fingerprint, other.1)
}

type Shards<'s> = Vec<(usize, MutexGuard<'s, Shard>)>;

impl MemoryStore {
    /// What each charge of a request is asked under. A key cannot be kept under two sets of numbers
    /// at once: where a request names it twice in one family, with different numbers, the later
    /// ones count for themselves.
    pub(super) fn asked_together<'a>(&self, charges: &[Charge<'a>]) -> Vec<Asked<'a>> {
        let mut all: Vec<Asked<'a>> = Vec::with_capacity(charges.len());
        for charge in charges {
            let asked = self.asked(charge);
            let is_other = |other: &Asked<'_>| {
                let (one, other) = (asked.fingerprint, other.fingerprint);
                one.of_key() == other.of_key() && one.mark != other.mark
            };
            let apart = all.iter().any(is_other).then(|| self.asked_apart(charge));
            all.push(apart.unwrap_or(asked));
        }
        all
    }

    fn asked_apart<'a>(&self, charge: &Charge<'a>) -> Asked<'a> {
        let Charge { policy, key, .. } = charge;
        let (family, mark) = (policy.id() ^ policy.numbers_mark(), policy.numbers_mark());
        let tag = self.seed.tag(family, key.as_bytes(), || mark);
        let fingerprint = Fingerprint { tag, mark, owner: policy.name_id() };
        let lineage = Lineage { family, rule: OnChange::Reset, is_plan: false };
        Asked { fingerprint, algorithm: policy.algorithm(), lineage }
    }

    /// Takes every charge if all are allowed, or none.
    pub(super) fn request(&self, charges: &[Charge<'_>], hold_id: u128, now: Timestamp) -> Verdict {
        let parts = RequestParts::new(charges);
        let decided = self
            .request_by(&parts, now, |slots, states, at| parts.decide(slots, states, hold_id, at));
        decided.unwrap_or_else(|| {
            let again = |charges: &[Charge<'_>]| self.request(charges, self.hold_id(charges), now);
            self.under_newer(charges, now, again)
        })
    }

    /// As [`Self::request`]; `decide` decides on the states, as of a moment that it is told. `None`
    /// if a key is kept under newer numbers.
    pub(super) fn request_by(
        &self,
        parts: &RequestParts<'_, '_>,
        now: Timestamp,
        mut decide: impl FnMut(&[usize], &mut [State], Timestamp) -> Verdict,
    ) -> Option<Verdict> {
        let request = RequestStates::new(self, parts.charges(), now);
        let mut refused = 0;
        let mut ask = |is_alone| {
            self.decide(&request, now, is_alone, &mut decide).map_err(|(number, miss)| {
                refused = number;
                miss
            })
        };
        let decided = match ask(false) {
            Err(Miss::Elsewhere) => self.ask_alone(&request.asked(), now, || ask(true)),
            Err(Miss::Full(full)) => Err(Refused::Full(full)),
            Ok(verdict) => Ok(verdict),
        };
        match decided {
            Ok(verdict) => Some(verdict),
            Err(Refused::Full(full)) => {
                Some(self.refuse_request(parts, &request, refused, full, now))
            }
            Err(Refused::Older) => None,
        }
    }

    /// Locks everything, decides, writes; or says which state has no room or is kept under other
    /// numbers.
    fn decide(
        &self,
        request: &RequestStates<'_>,
        now: Timestamp,
        is_alone: bool,
        decide: &mut impl FnMut(&[usize], &mut [State], Timestamp) -> Verdict,
    ) -> Result<Verdict, (usize, Miss)> {
        let newcomer = |asked: &Asked<'_>| Newcomer::new(&self.numbers, asked, is_alone);
        let mut shards = self.lock_shards(request);
        for (number, asked) in request.asked_of(Layout::Variable) {
            let shard = shard_mut(&mut shards, asked.fingerprint);
            if shard.is_elsewhere(asked.fingerprint, newcomer(&asked)) {
                return Err((number, Miss::Elsewhere));
            }
        }
        make_room(request, &mut shards, now)?;
        let mut taken = Taken::out_of(request, &mut shards, now);
        let narrow = lock_slots(&self.narrow, request, Layout::Narrow, newcomer, now)?;
        unpack_into(&mut taken.states, request, &narrow);
        let double = lock_slots(&self.double, request, Layout::Double, newcomer, now)?;
        unpack_into(&mut taken.states, request, &double);
        // One moment for the whole request, so that all its waits are told from the same one.
        let at = taken.at.max(narrow.at).max(double.at);
        let verdict = decide(&request.slots, &mut taken.states, at);
        write_slots(request, Layout::Narrow, narrow, &taken.states, at);
        write_slots(request, Layout::Double, double, &taken.states, at);
        taken.at = at;
        Ok(verdict.told_at(now, at))
    }

    /// What [`Self::request`] would answer. Nothing is locked for long: each state is consistent in
    /// itself, the request as a whole a look at things in motion.
    pub(super) fn peek_request(&self, charges: &[Charge<'_>], now: Timestamp) -> Verdict {
        let parts = RequestParts::new(charges);
        let request = RequestStates::new(self, parts.charges(), now);
        let mut at = now;
        let mut before = Vec::with_capacity(request.states.len());
        for (asked, _) in &request.states {
            let (state, algorithm, state_at) = self.state(asked, now);
            if algorithm != *asked.algorithm {
                return self.under_newer(charges, now, |charges| self.peek_request(charges, now));
            }
            before.push(state);
            at = at.max(state_at);
        }
        if let RequestParts::Shared(_, expanded) = &parts {
            return expanded.peek(&request.slots, &before, at).told_at(now, at);
        }
        let verdict = decide_all(charges, &request.slots, &mut before.clone(), 0, at);
        if !verdict.is_allowed() {
            return verdict.told_at(now, at);
        }
        let untouched = charges.iter().zip(&request.slots).map(|(charge, &number)| {
            Decision::Allow(before[number].peek(charge.policy.algorithm(), at).told_at(now, at))
        });
        Verdict::new(untouched.collect())
    }

    fn lock_shards(&self, request: &RequestStates<'_>) -> Shards<'_> {
        let mut numbers: Vec<usize> = request
            .of(Layout::Variable)
            .map(|(_, fingerprint, _)| VariableStates::shard_of(fingerprint))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| (number, self.variable.lock(number))).collect()
    }

    /// The verdict on a request of which one state has no room.
    fn refuse_request(
        &self,
        parts: &RequestParts<'_, '_>,
        request: &RequestStates<'_>,
        refused: usize,
        full: Full,
        now: Timestamp,
    ) -> Verdict {
        let without = request.slots.iter().enumerate().filter(|(_, number)| **number == refused);
        let refused: Vec<usize> = without.map(|(part, _)| parts.charge_of(part)).collect();
        let decide = |(index, charge): (usize, &Charge<'_>)| {
            if refused.contains(&index) {
                return refuse(charge.policy.algorithm(), full, now);
            }
            Decision::Allow(self.peek(charge, now))
        };
        Verdict::new(parts.whole().iter().enumerate().map(decide).collect())
    }
}

fn lock_slots<'t, S: Slot>(
    table: &'t Table<S>,
    request: &RequestStates<'_>,
    layout: Layout,
    newcomer: impl Fn(&Asked<'_>) -> Newcomer<'t>,
    now: Timestamp,
) -> Result<LockedSlots<'t, S>, (usize, Miss)> {
    let (numbers, asked): (Vec<usize>, Vec<Asked<'_>>) = request.asked_of(layout).unzip();
    let fingerprints: Vec<_> = asked.iter().map(|asked| asked.fingerprint).collect();
    let newcomers: Vec<_> = asked.iter().map(newcomer).collect();
    let locked = table.lock_all(&fingerprints, &newcomers, now);
    locked.map_err(|(position, miss)| (numbers[position], miss))
}

/// Appends the states of locked slots: they come next in the order of the request's states.
fn unpack_into<S: Slot>(
    states: &mut Vec<State>,
    request: &RequestStates<'_>,
    locked: &LockedSlots<'_, S>,
) {
    for held in &locked.slots {
        let (asked, _) = request.states[states.len()];
        states.push(packed::unpack(asked.algorithm, held.words()));
    }
}

/// Writes the slots that have changed; the others are unlocked as they were.
fn write_slots<S: Slot>(
    request: &RequestStates<'_>,
    layout: Layout,
    locked: LockedSlots<'_, S>,
    states: &[State],
    at: Timestamp,
) {
    let LockedSlots { slots, .. } = locked;
    for (held, (number, fingerprint, algorithm)) in slots.into_iter().zip(request.of(layout)) {
        let words = packed::pack(&states[number]);
        if words != held.words() {
            let snapshot = states[number].peek(algorithm, at);
            held.write(fingerprint.tag, packed::content(words, snapshot, at), at);
        }
    }
}

/// Makes sure that every state of variable size may grow, before the first is touched.
fn make_room(
    request: &RequestStates<'_>,
    shards: &mut Shards<'_>,
    now: Timestamp,
) -> Result<(), (usize, Miss)> {
    for (number, fingerprint, _) in request.of(Layout::Variable) {
        let shard = shard_mut(shards, fingerprint);
        shard.prepare(fingerprint, now).map_err(|full| (number, full.into()))?;
    }
    Ok(())
}

/// The states of a request; those of variable size are taken out of their shards, not copied, and
/// go back there when this is dropped, whatever became of the request.
struct Taken<'t, 'a, 's> {
    request: &'t RequestStates<'a>,
    shards: &'t mut Shards<'s>,
    states: Vec<State>,
    /// As of when they are decided.
    at: Timestamp,
}

impl<'t, 'a, 's> Taken<'t, 'a, 's> {
    fn out_of(request: &'t RequestStates<'a>, shards: &'t mut Shards<'s>, now: Timestamp) -> Self {
        let mut states = Vec::with_capacity(request.states.len());
        let mut at = now;
        for (_, fingerprint, algorithm) in request.of(Layout::Variable) {
            let (state, state_at) =
                shard_mut(shards, fingerprint).take(fingerprint, algorithm, now);
            states.push(state);
            at = at.max(state_at);
        }
        Self { request, shards, states, at }
    }
}

impl Drop for Taken<'_, '_, '_> {
    fn drop(&mut self) {
        let taken = self.request.of(Layout::Variable).zip(std::mem::take(&mut self.states));
        for ((_, fingerprint, algorithm), state) in taken {
            shard_mut(self.shards, fingerprint).put(fingerprint, state, algorithm, self.at);
        }
    }
}

fn shard_mut<'s>(shards: &'s mut Shards<'_>, fingerprint: Fingerprint) -> &'s mut Shard {
    let number = VariableStates::shard_of(fingerprint);
    let locked = shards.iter_mut().find(|(locked, _)| *locked == number);
    &mut locked.expect("the shard of every state of variable size was locked").1
}
