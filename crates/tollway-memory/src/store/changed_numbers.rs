//! Keys that are kept under other numbers than those asked under.
//!
//! A key is in one place, under one set of numbers (`numbers.rs`). Who asks under others and would
//! begin anew is told so by the table ([`Miss::Elsewhere`]); then the state is carried here, and
//! the question asked again. It is carried as it is found, once; a change of numbers costs nothing
//! for keys that nobody asks about.
//!
//! It is carried to newer numbers only. Who asks under older ones is refused ([`Refused::Older`])
//! and asks again under those that the key is kept under, as if he had been told of the change. So
//! nothing is ever converted back. A state that says nothing holds nobody to its numbers.
//!
//! **Locks.** Whoever carries a key holds the lock of the key until his own question is answered.
//! Within one table a state is carried by one write to its slot. Between tables it is taken out of
//! one and put into the other; in between nobody else finds it, and nobody else may begin with it.

use std::sync::MutexGuard;

use tollway_core::gcra::Gcra;
use tollway_core::{Algorithm, Charge, Policy, State, Timestamp};

use super::MemoryStore;
use crate::hash::Fingerprint;
use crate::numbers::{Asked, Known, Lineage, Newcomer};
use crate::packed::{self, Layout};
use crate::slot::Content;
use crate::sync::lock;
use crate::table::{Full, Miss};
use crate::variable_states::{Shard, VariableStates};

/// The latest arrival time in a narrow slot that means just that.
const LATEST: u64 = Gcra::WORD_END - 2;
/// How many locks there are for keys that are carried.
pub(super) const LOCKS: usize = 64;

/// Why a question was not answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refused {
    /// There is no room.
    Full(Full),
    /// A key is kept under newer numbers; see [`MemoryStore::under_newer`].
    Older,
}

impl MemoryStore {
    /// Puts the numbers of these policies in force together: whatever other numbers a key of theirs
    /// is kept under are older, and who still asks under those is decided by these as soon as the
    /// key is kept under them. A limiter whose policy is replaced by
    /// one that this store has not seen before need
    /// not call it; one that goes back to earlier numbers, or gives keys one of several plans,
    /// does.
    pub fn renew<'p>(&self, policies: impl IntoIterator<Item = &'p Policy>, now: Timestamp) {
        let mut sets = Vec::new();
        for policy in policies {
            self.note(Lineage::of(policy), policy.numbers_mark(), policy.algorithm(), now);
            sets.push((policy.family_id(), policy.numbers_mark()));
        }
        self.numbers.renew(sets);
    }

    /// Asks a table, and asks again with the key carried if it is kept under other numbers.
    #[inline(always)]
    pub(super) fn ask<R>(
        &self,
        asked: Asked<'_>,
        now: Timestamp,
        mut question: impl FnMut(Newcomer<'_>) -> Result<R, Miss>,
    ) -> Result<R, Refused> {
        match question(Newcomer::new(&self.numbers, &asked, false)) {
            Ok(answer) => Ok(answer),
            Err(Miss::Full(full)) => Err(Refused::Full(full)),
            Err(Miss::Elsewhere) => self
                .ask_alone(&[asked], now, || question(Newcomer::new(&self.numbers, &asked, true))),
        }
    }

    /// Asks with all of these keys carried, and the locks of all of them held.
    #[cold]
    #[inline(never)]
    pub(super) fn ask_alone<R>(
        &self,
        asked: &[Asked<'_>],
        now: Timestamp,
        mut question: impl FnMut() -> Result<R, Miss>,
    ) -> Result<R, Refused> {
        for one in asked {
            self.note(one.lineage, one.fingerprint.mark, one.algorithm, now);
        }
        let _alone = self.lock_keys(asked);
        loop {
            for one in asked {
                self.carry_over(one, now)?;
            }
            match question() {
                Ok(answer) => return Ok(answer),
                Err(Miss::Full(full)) => return Err(Refused::Full(full)),
                // It has just begun under other numbers.
                Err(Miss::Elsewhere) => {}
            }
        }
    }

    /// Asks about these charges again, each under the numbers that its key is kept under if those
    /// are newer.
    #[cold]
    #[inline(never)]
    pub(super) fn under_newer<R>(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        ask: impl FnOnce(&[Charge<'_>]) -> R,
    ) -> R {
        let newer = |(charge, asked): (&Charge<'_>, &Asked<'_>)| {
            let (_, algorithm, _) = self.state(asked, now);
            let is_newer = algorithm != *asked.algorithm;
            is_newer.then(|| charge.policy.with_numbers(algorithm))
        };
        let all_asked = self.asked_together(charges);
        let policies: Vec<Option<Policy>> = charges.iter().zip(&all_asked).map(newer).collect();
        ask(&Charge::each_under(charges, &policies))
    }

    /// The state of a key that is kept under other numbers: as it is if those are newer, else as it
    /// would be under these. Nothing is written.
    pub(super) fn state_elsewhere(
        &self,
        asked: &Asked<'_>,
        now: Timestamp,
    ) -> Option<(State, Algorithm)> {
        if !self.numbers.may_be_elsewhere(asked) {
            return None;
        }
        let _alone = self.lock_keys(std::slice::from_ref(asked));
        let (fingerprint, known) = self.find_elsewhere(asked)?;
        let (state, at) = self.state_here(fingerprint, &known.algorithm, now);
        let state = state?;
        if self.is_decided_by(known, &state, asked, at) {
            return Some((state, known.algorithm));
        }
        let rule = asked.lineage.rule;
        Some((state.carry(&known.algorithm, asked.algorithm, rule, at), *asked.algorithm))
    }

    /// Whether who asks so is decided by the numbers that the state is kept under.
    fn is_decided_by(&self, kept: Known, state: &State, asked: &Asked<'_>, at: Timestamp) -> bool {
        self.numbers.is_older(asked, kept)
            && state.keeps_its_numbers(&kept.algorithm, asked.algorithm, at)
    }

    /// Changes a key that is kept under other numbers; `change` is told which.
    pub(super) fn change_elsewhere(
        &self,
        asked: &Asked<'_>,
        change: impl FnOnce(Fingerprint, &Algorithm),
    ) {
        if self.numbers.may_be_elsewhere(asked) {
            let _alone = self.lock_keys(std::slice::from_ref(asked));
            if let Some((fingerprint, known)) = self.find_elsewhere(asked) {
                change(fingerprint, &known.algorithm);
            }
        }
    }

    fn note(&self, lineage: Lineage, mark: u64, algorithm: &Algorithm, now: Timestamp) {
        self.numbers.note(lineage, mark, algorithm, Layout::of(algorithm, now), || {
            self.narrow.wait_for_newcomers();
            self.double.wait_for_newcomers();
            self.variable.shards().for_each(drop);
        });
    }

    /// In order, so that two requests that name the same keys do not wait for each other.
    fn lock_keys(&self, asked: &[Asked<'_>]) -> Vec<MutexGuard<'_, ()>> {
        let number = |asked: &Asked<'_>| asked.fingerprint.of_key() as usize % LOCKS;
        let mut numbers: Vec<usize> = asked.iter().map(number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().map(|number| lock(&self.carried[number])).collect()
    }

    /// Where a key is that is kept under other numbers, with the lock of the key held.
    fn find_elsewhere(&self, asked: &Asked<'_>) -> Option<(Fingerprint, Known)> {
        let newcomer = Newcomer::new(&self.numbers, asked, true);
        let fingerprint = asked.fingerprint;
        let in_shard = || {
            let shard = self.variable.lock(VariableStates::shard_of(fingerprint));
            shard.other_mark(fingerprint).filter(|mark| newcomer.may_be(*mark))
        };
        let mark = self.narrow.other_mark(fingerprint, newcomer);
        let mark = mark.or_else(|| self.double.other_mark(fingerprint, newcomer));
        let mark = mark.or_else(in_shard)?;
        Some((fingerprint.marked(mark), self.numbers.known(asked.lineage.family, mark)?))
    }

    /// Carries a key to the numbers that it is asked under, with the lock of the key held, unless
    /// it is kept under newer ones.
    fn carry_over(&self, asked: &Asked<'_>, now: Timestamp) -> Result<(), Refused> {
        while let Some((fingerprint, known)) = self.find_elsewhere(asked) {
            let (found, at) = self.state_here(fingerprint, &known.algorithm, now);
            if found.is_some_and(|state| self.is_decided_by(known, &state, asked, at)) {
                return Err(Refused::Older);
            }
            let to = Layout::of(asked.algorithm, now);
            let carry = |state: &State| {
                let rule = asked.lineage.rule;
                let state = state.carry(&known.algorithm, asked.algorithm, rule, now);
                let content = content_of(&state, asked.algorithm, to, now);
                (state, content)
            };
            let unpacked = |words| packed::unpack(&known.algorithm, words);
            let carry_words = |words| carry(&unpacked(words)).1;
            match (self.layout_of(fingerprint, &known.algorithm, now), to) {
                (Layout::Narrow, Layout::Narrow) => {
                    self.narrow.carry(fingerprint, asked.fingerprint, carry_words);
                }
                (Layout::Double, Layout::Double) => {
                    self.double.carry(fingerprint, asked.fingerprint, carry_words);
                }
                (Layout::Variable, Layout::Variable) => {
                    let number = VariableStates::shard_of(fingerprint);
                    let mut shard = self.variable.lock(number);
                    if let Some(state) = shard.take_out(fingerprint) {
                        put_in(&mut shard, asked, carry(&state).0, now);
                    }
                }
                (from, to) => {
                    let taken = match from {
                        Layout::Narrow => self.narrow.take_out(fingerprint).map(unpacked),
                        Layout::Double => self.double.take_out(fingerprint).map(unpacked),
                        Layout::Variable => {
                            let number = VariableStates::shard_of(fingerprint);
                            self.variable.lock(number).take_out(fingerprint)
                        }
                    };
                    if let Some(state) = taken {
                        let (state, content) = carry(&state);
                        self.put_into(to, asked, state, content, now);
                    }
                }
            }
        }
        Ok(())
    }

    /// Puts a state in that was taken out of another table. If there is no room, the key is
    /// forgotten as under pressure.
    fn put_into(
        &self,
        to: Layout,
        asked: &Asked<'_>,
        state: State,
        content: Content,
        now: Timestamp,
    ) {
        let fingerprint = asked.fingerprint;
        match to {
            // A table that is full has counted it.
            Layout::Narrow => _ = self.narrow.restore(fingerprint, content, now),
            Layout::Double => _ = self.double.restore(fingerprint, content, now),
            Layout::Variable => {
                let number = VariableStates::shard_of(fingerprint);
                put_in(&mut self.variable.lock(number), asked, state, now);
            }
        }
    }

    /// The table in which a key was found that is kept under `algorithm`.
    fn layout_of(&self, fingerprint: Fingerprint, algorithm: &Algorithm, now: Timestamp) -> Layout {
        match Layout::of(algorithm, now) {
            // States that have not outgrown their word, though time has.
            Layout::Double if self.double.read(fingerprint).is_none() => Layout::Narrow,
            layout => layout,
        }
    }
}

fn put_in(shard: &mut Shard, asked: &Asked<'_>, state: State, now: Timestamp) {
    // A shard that is full has counted it.
    if shard.prepare(asked.fingerprint, now).is_ok() {
        shard.put(asked.fingerprint, state, asked.algorithm, now);
    }
}

fn content_of(state: &State, algorithm: &Algorithm, layout: Layout, now: Timestamp) -> Content {
    let at = state.moment(algorithm, now);
    let mut words = packed::pack(state);
    if layout == Layout::Narrow && (words[1] > 0 || words[0] >= LATEST) {
        // At a low rate it may be decades ahead: as good as for ever.
        words = [LATEST, 0];
    }
    packed::content(words, state.peek(algorithm, at), at)
}
