//! Slots locked together, for requests of several charges.

use std::sync::PoisonError;

use tollway_core::Timestamp;

use super::growth::Moving;
use super::{Full, Miss, Table};
use crate::hash::Fingerprint;
use crate::numbers::Newcomer;
use crate::slot::{Content, Locked, Slot, View};
use crate::sync::StripeGuard;

/// As many slots as [`Table::lock_few`] locks at most.
pub(crate) const FEW: usize = 4;

/// Slots locked together, and the stripes that keep others from making more of the same keys.
pub(crate) struct LockedSlots<'t, S: Slot> {
    pub(crate) slots: Vec<Held<'t, S>>,
    /// As of when they are decided: later than asked for if one is a newcomer that comes late.
    pub(crate) at: Timestamp,
    _stripes: Vec<StripeGuard<'t, Moving>>,
}

/// A locked slot of a key, or one that a newcomer takes if it is written.
pub(crate) struct Held<'t, S: Slot> {
    locked: Locked<'t, S>,
    claim: Option<Claim<'t, S>>,
}

/// What a newcomer takes if it is written.
struct Claim<'t, S> {
    table: &'t Table<S>,
    home: usize,
    index: usize,
    owner: u8,
}

impl<S: Slot> Held<'_, S> {
    /// The words of the key; zero for a newcomer.
    pub(crate) fn words(&self) -> [u64; 2] {
        if self.claim.is_some() { [0; 2] } else { self.locked.view().words }
    }

    /// Writes and unlocks.
    pub(crate) fn write(self, tag: u64, content: Content, at: Timestamp) {
        if let Some(Claim { table, home, index, owner }) = self.claim {
            table.note_claim(home, index, self.locked.view(), owner, at);
        }
        self.locked.write(tag, content);
    }
}

/// Which slot is to be locked for the key at `position`.
struct Choice {
    index: usize,
    position: usize,
    home: usize,
    newcomer_in_place_of: Option<View>,
}

impl<S: Slot> Table<S> {
    /// Locks the slots of up to [`FEW`] keys, in order of their index as [`Self::lock_all`] does.
    /// `None` if one of the keys has no slot, lost it meanwhile, or is named twice.
    pub(crate) fn lock_few(
        &self,
        fingerprints: &[Fingerprint],
        now: Timestamp,
    ) -> Option<[Option<Locked<'_, S>>; FEW]> {
        let mut order = [(usize::MAX, 0); FEW];
        for (position, (fingerprint, place)) in fingerprints.iter().zip(&mut order).enumerate() {
            let slot = self.find_or_help(fingerprint.tag, now)?;
            *place = (self.index(slot), position);
        }
        let order = &mut order[..fingerprints.len()];
        order.sort_unstable();
        // Locking it a second time would wait for ourselves.
        if order.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return None;
        }
        let mut locked = [const { None }; FEW];
        for &(index, position) in &*order {
            let held = Locked::new(self.slot(index));
            if held.view().tag != fingerprints[position].tag {
                return None;
            }
            locked[position] = Some(held);
        }
        Some(locked)
    }

    /// Finds or chooses a slot for each of the distinct `fingerprints` and locks them all, in order
    /// of their index: in any other order, two requests that name the same keys the other way round
    /// would wait for each other for ever. Fails with the position of the one without a slot.
    pub(crate) fn lock_all(
        &self,
        fingerprints: &[Fingerprint],
        newcomers: &[Newcomer<'_>],
        now: Timestamp,
    ) -> Result<LockedSlots<'_, S>, (usize, Miss)> {
        let mut stripes = Vec::new();
        let is_elsewhere = |position: usize| {
            let newcomer = newcomers.get(position);
            newcomer.is_some_and(|newcomer| self.is_elsewhere(fingerprints[position], *newcomer))
        };
        loop {
            let (mut order, at) = match self.choose(fingerprints, now) {
                Ok(chosen) => chosen,
                // A key that is moved meanwhile is missed without the lock of its stripe.
                Err(_) if stripes.is_empty() => {
                    stripes = self.lock_stripes(fingerprints, now);
                    continue;
                }
                Err(_) if self.grow() => continue,
                Err((position, _)) if is_elsewhere(position) => {
                    return Err((position, Miss::Elsewhere));
                }
                Err((position, full)) => return Err((position, full.into())),
            };
            let is_newcomer = |choice: &&Choice| choice.newcomer_in_place_of.is_some();
            if order.iter().any(|choice| is_newcomer(&choice)) && stripes.is_empty() {
                stripes = self.lock_stripes(fingerprints, now);
                continue;
            }
            for choice in order.iter().filter(is_newcomer) {
                if is_elsewhere(choice.position) {
                    return Err((choice.position, Miss::Elsewhere));
                }
            }
            order.sort_unstable_by_key(|choice| choice.index);
            let mut slots = Vec::with_capacity(order.len());
            for choice in order {
                let locked = Locked::new(self.slot(choice.index));
                let held = match choice.newcomer_in_place_of {
                    None => locked.view().tag == fingerprints[choice.position].tag,
                    Some(seen) => locked.view() == seen,
                };
                if !held {
                    break;
                }
                let claim = choice.newcomer_in_place_of.map(|_| {
                    let (home, index) = (choice.home, choice.index);
                    self.extend_reach(home, index);
                    let owner = self.owners.number(fingerprints[choice.position].owner);
                    Claim { table: self, home, index, owner }
                });
                slots.push((choice.position, Held { locked, claim }));
            }
            // Between choosing and locking, somebody may have taken a slot: then all over again.
            if slots.len() == fingerprints.len() {
                slots.sort_unstable_by_key(|(position, _)| *position);
                let slots = slots.into_iter().map(|(_, held)| held).collect();
                return Ok(LockedSlots { slots, at, _stripes: stripes });
            }
        }
    }

    /// Locks the stripes of all homes, in order: nobody else makes a slot for one of these keys
    /// until they are released.
    fn lock_stripes(
        &self,
        fingerprints: &[Fingerprint],
        now: Timestamp,
    ) -> Vec<StripeGuard<'_, Moving>> {
        let number = |fingerprint: &Fingerprint| self.home(*fingerprint) % self.stripes.len();
        let mut numbers: Vec<usize> = fingerprints.iter().map(number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let lock = |number: usize| {
            let stripe = self.stripes[number].lock.lock();
            let mut moving = stripe.unwrap_or_else(PoisonError::into_inner);
            self.tend(number, &mut moving, now);
            moving
        };
        numbers.into_iter().map(lock).collect()
    }

    /// The slot of each key, or the one that it would take: a different one for each. And as of
    /// when they are decided.
    fn choose(
        &self,
        fingerprints: &[Fingerprint],
        now: Timestamp,
    ) -> Result<(Vec<Choice>, Timestamp), (usize, Full)> {
        let found = |fingerprint: &Fingerprint| {
            self.find(fingerprint.tag, self.home(*fingerprint)).map(|slot| self.index(slot))
        };
        let found: Vec<Option<usize>> = fingerprints.iter().map(found).collect();
        let at = if found.contains(&None) { self.newcomer_at(now) } else { now };
        // Also the slots of keys that are named later: a vacant one is as good as free to a
        // newcomer, and the request would wait for itself.
        let mut taken: Vec<usize> = found.iter().flatten().copied().collect();
        let mut choices = Vec::with_capacity(fingerprints.len());
        for (position, index) in found.into_iter().enumerate() {
            let home = self.home(fingerprints[position]);
            let (index, newcomer_in_place_of) = match index {
                Some(index) => (index, None),
                None => {
                    let owner = self.owners.number(fingerprints[position].owner);
                    let victim = self.victim(home, owner, at, |index| taken.contains(&index));
                    let (index, view) = victim.map_err(|full| (position, full))?;
                    taken.push(index);
                    (index, Some(view))
                }
            };
            choices.push(Choice { index, position, home, newcomer_in_place_of });
        }
        Ok((choices, at))
    }
}
