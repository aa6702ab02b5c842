//! States of no fixed size (sliding windows, permits), in shards bounded by bytes.
//!
//! Each shard is a vector of entries with an index beside it, under one lock. There is no sweep:
//! every call looks at the next two entries in turn and drops those that say nothing any more, so
//! the dead leave as fast as twice the calls come in.
//!
//! A shard that is still full makes room by the rule of the tables (`table/room.rs`), in bytes: of
//! the policies in it each is entitled to an equal share. A policy below its share takes from the
//! one with the most, even a key that has nothing left; one at or above it takes from those above
//! theirs and from itself, the entry nearest to saying nothing among the next few, never one with
//! nothing left; if all of those have, the charge is denied until the first of them has something
//! again. (Another try looks at the next few: this wait is a promise to look again, not to be let
//! in.)
//!
//! A shard knows the newest moment as of which it dropped an entry, for the same reason as the
//! tables do: a caller who comes late to a key that is gone is decided as of that moment.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};

use tollway_core::{Algorithm, State, Timestamp};

use crate::capacity::{Pressure, WhenFull};
use crate::hash::Fingerprint;
use crate::numbers::Newcomer;
use crate::owners::Owners;
use crate::sync::lock;
use crate::table::{Full, Miss};

pub(crate) struct VariableStates {
    shards: Box<[Mutex<Shard>]>,
    owners: Arc<Owners>,
}

/// A part of the keys, under one lock.
pub(crate) struct Shard {
    entries: Vec<Entry>,
    /// By [`Fingerprint::of_key`]: whatever its numbers, a key is here once.
    index: HashMap<u64, u32, BuildHasherDefault<ByTag>>,
    /// Who has how much of it.
    rooms: HashMap<u64, Room, BuildHasherDefault<ByTag>>,
    bytes: usize,
    bytes_max: usize,
    when_full: WhenFull,
    /// The entry to look at next.
    hand: usize,
    /// The newest reading of the clock that came with a call.
    newest: Timestamp,
    /// The newest moment as of which an entry was dropped.
    newest_drop: Timestamp,
    owners: Arc<Owners>,
}

/// What one owner has in a shard; gone with its last entry.
#[derive(Default)]
struct Room {
    bytes: usize,
    /// Where its entries are.
    members: Vec<u32>,
    /// The member to look at next.
    hand: usize,
}

pub(crate) struct Entry {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) state: State,
    pub(crate) vacant_at: Timestamp,
    pub(crate) limited: bool,
    bytes: usize,
    /// Which of its owner's members it is.
    member: u32,
}

/// Entries looked at per call, and per search for one to forget.
const SWEPT: usize = 2;
const SAMPLED: usize = 16;

impl VariableStates {
    pub(crate) const SHARDS: usize = 16;

    pub(crate) fn new(bytes_max: usize, when_full: WhenFull) -> Self {
        let owners = Arc::new(Owners::new());
        let shard =
            |_| Mutex::new(Shard::new(bytes_max / Self::SHARDS, when_full, Arc::clone(&owners)));
        Self { shards: (0..Self::SHARDS).map(shard).collect(), owners }
    }

    /// The shards, for calls that need several: lock them in order.
    pub(crate) fn shard_of(fingerprint: Fingerprint) -> usize {
        // Not the highest bits nor the lowest: a shard's index goes by those.
        (fingerprint.of_key() >> 32) as usize % Self::SHARDS
    }

    /// The state of a key as it is, if there is one, and as of when it would be decided.
    pub(crate) fn read(
        &self,
        fingerprint: Fingerprint,
        now: Timestamp,
    ) -> (Option<State>, Timestamp) {
        let shard = self.lock(Self::shard_of(fingerprint));
        match shard.get(fingerprint) {
            Some(state) => (Some(state.clone()), now),
            None => (None, now.max(shard.newest_drop)),
        }
    }

    /// Changes the state of one key, unless it is kept under other numbers.
    pub(crate) fn change<'n, R>(
        &self,
        fingerprint: Fingerprint,
        newcomer: impl Fn() -> Option<Newcomer<'n>>,
        algorithm: &Algorithm,
        now: Timestamp,
        mut apply: impl FnMut(&mut State, Timestamp) -> R,
    ) -> Result<R, Miss> {
        let mut shard = self.lock(Self::shard_of(fingerprint));
        let prepared = shard.prepare(fingerprint, now);
        if prepared.is_ok()
            && let Some(answer) = shard.change_known(fingerprint, algorithm, now, &mut apply)
        {
            return Ok(answer);
        }
        if newcomer().is_some_and(|newcomer| shard.is_elsewhere(fingerprint, newcomer)) {
            return Err(Miss::Elsewhere);
        }
        prepared?;
        let (mut state, at) = shard.take(fingerprint, algorithm, now);
        let answer = apply(&mut state, at);
        shard.put(fingerprint, state, algorithm, at);
        Ok(answer)
    }

    /// Changes the state of one key, if there is one, without taking anything; whether there is.
    pub(crate) fn amend(
        &self,
        fingerprint: Fingerprint,
        algorithm: &Algorithm,
        now: Timestamp,
        mut change: impl FnMut(&mut State, Timestamp),
    ) -> bool {
        let mut shard = self.lock(Self::shard_of(fingerprint));
        shard.newest = shard.newest.max(now);
        shard.change_known(fingerprint, algorithm, now, &mut change).is_some()
    }

    pub(crate) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard])
    }

    pub(crate) fn pressure(&self) -> Pressure {
        let used = self.shards().map(|shard| shard.entries.len() as u64).sum();
        Pressure { used, ..self.owners.pressure_of_all() }
    }

    /// Counts anew what pressure costs.
    pub(crate) fn start_over(&self) {
        self.owners.start_over();
    }

    /// What pressure has cost one owner; how many entries it has is not counted.
    pub(crate) fn pressure_of(&self, owner: u64) -> Pressure {
        self.owners.pressure(self.owners.number(owner))
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards.iter().map(lock)
    }
}

impl Shard {
    fn new(bytes_max: usize, when_full: WhenFull, owners: Arc<Owners>) -> Self {
        Self {
            entries: Vec::new(),
            index: HashMap::default(),
            rooms: HashMap::default(),
            bytes: 0,
            bytes_max,
            when_full,
            hand: 0,
            newest: Timestamp::MIN,
            newest_drop: Timestamp::MIN,
            owners,
        }
    }

    pub(crate) fn get(&self, fingerprint: Fingerprint) -> Option<&State> {
        self.entry(fingerprint).map(|entry| &entry.state)
    }

    pub(crate) fn entry(&self, fingerprint: Fingerprint) -> Option<&Entry> {
        self.position(fingerprint).map(|at| &self.entries[at])
    }

    /// Under which other numbers a key is kept here.
    pub(crate) fn other_mark(&self, fingerprint: Fingerprint) -> Option<u64> {
        let at = *self.index.get(&fingerprint.of_key())? as usize;
        Some(self.entries[at].fingerprint.mark).filter(|mark| *mark != fingerprint.mark)
    }

    /// Whether a key is not here under these numbers, and may not begin.
    pub(crate) fn is_elsewhere(&self, fingerprint: Fingerprint, newcomer: Newcomer<'_>) -> bool {
        match self.index.get(&fingerprint.of_key()) {
            Some(&at) => newcomer.may_be(self.entries[at as usize].fingerprint.mark),
            None => !newcomer.may_begin(),
        }
    }

    /// Takes the state of a key out for good.
    pub(crate) fn take_out(&mut self, fingerprint: Fingerprint) -> Option<State> {
        let at = self.position(fingerprint)?;
        let state = std::mem::replace(&mut self.entries[at].state, State::Gcra(Default::default()));
        self.drop_at(at, self.newest);
        Some(state)
    }

    fn position(&self, fingerprint: Fingerprint) -> Option<usize> {
        let at = *self.index.get(&fingerprint.of_key())? as usize;
        (self.entries[at].fingerprint.tag == fingerprint.tag).then_some(at)
    }

    /// Who says something at `now`; those with nothing left first, so that a smaller shard which is
    /// filled in this order has room for them.
    pub(crate) fn listed(&self, now: Timestamp) -> Vec<Fingerprint> {
        let saying = || self.entries.iter().filter(|entry| entry.vacant_at > now);
        let limited = saying().filter(|entry| entry.limited);
        let others = saying().filter(|entry| !entry.limited);
        limited.chain(others).map(|entry| entry.fingerprint).collect()
    }

    /// Puts back an entry that was listed, if there is room for it. One with units left takes no
    /// room from others, among which may be some with nothing left.
    pub(crate) fn restore(&mut self, entry: Entry, now: Timestamp) {
        let owner = entry.fingerprint.owner;
        self.remove(entry.fingerprint);
        if self.bytes >= self.bytes_max && !entry.limited {
            self.owners.note_forgotten(self.owners.number(owner));
        } else if self.make_room(owner, now).is_ok() {
            self.push(entry);
        }
    }

    /// Changes the state of a key where it is; `None` if it is not there.
    fn change_known<R>(
        &mut self,
        fingerprint: Fingerprint,
        algorithm: &Algorithm,
        now: Timestamp,
        change: &mut impl FnMut(&mut State, Timestamp) -> R,
    ) -> Option<R> {
        let position = self.position(fingerprint)?;
        let answer = change(&mut self.entries[position].state, now);
        self.refresh(position, algorithm, now);
        Some(answer)
    }

    /// Takes a state out, to be put back by [`Self::put`]; and as of when it is to be decided.
    pub(crate) fn take(
        &mut self,
        fingerprint: Fingerprint,
        algorithm: &Algorithm,
        now: Timestamp,
    ) -> (State, Timestamp) {
        let vacant = State::vacant(algorithm);
        match self.position(fingerprint) {
            Some(position) => {
                let entry = &mut self.entries[position];
                (std::mem::replace(&mut entry.state, vacant), now)
            }
            None => (vacant, now.max(self.newest_drop)),
        }
    }

    /// Stores a state as of `at`; one that says nothing is dropped instead.
    pub(crate) fn put(
        &mut self,
        fingerprint: Fingerprint,
        state: State,
        algorithm: &Algorithm,
        at: Timestamp,
    ) {
        if let Some(position) = self.position(fingerprint) {
            self.entries[position].state = state;
            self.refresh(position, algorithm, at);
            return;
        }
        let vacant_at = state.vacant_at(algorithm);
        if vacant_at > at {
            let limited = state.peek(algorithm, at).remaining() == 0;
            let bytes = bytes_of(&state);
            self.push(Entry { fingerprint, state, vacant_at, limited, bytes, member: 0 });
        }
    }

    /// Brings what is known of an entry up to its state, or drops it if nothing is left in that.
    /// One that merely has lapsed is left to the sweep: a denial, which changes nothing, comes here
    /// too.
    fn refresh(&mut self, position: usize, algorithm: &Algorithm, at: Timestamp) {
        let entry = &mut self.entries[position];
        entry.vacant_at = entry.state.vacant_at(algorithm);
        if entry.vacant_at == Timestamp::MIN {
            let at = entry.state.moment(algorithm, at);
            self.drop_at(position, at);
            return;
        }
        entry.limited = entry.state.peek(algorithm, at).remaining() == 0;
        // What was allocated for a busier time would not be counted.
        entry.state.shrink();
        let bytes = bytes_of(&entry.state);
        self.bytes = self.bytes - entry.bytes + bytes;
        if let Some(room) = self.rooms.get_mut(&entry.fingerprint.owner) {
            room.bytes = room.bytes - entry.bytes + bytes;
        }
        entry.bytes = bytes;
    }

    fn push(&mut self, mut entry: Entry) {
        // Of two sets of numbers that are not listed the later counts.
        self.remove(entry.fingerprint);
        let position = self.entries.len() as u32;
        let room = self.rooms.entry(entry.fingerprint.owner).or_default();
        entry.member = room.members.len() as u32;
        room.members.push(position);
        room.bytes += entry.bytes;
        self.bytes += entry.bytes;
        self.index.insert(entry.fingerprint.of_key(), position);
        self.entries.push(entry);
    }

    fn remove(&mut self, fingerprint: Fingerprint) {
        if let Some(&at) = self.index.get(&fingerprint.of_key()) {
            self.remove_at(at as usize);
        }
    }

    /// Sweeps, and makes sure that the state of a key may grow.
    pub(crate) fn prepare(&mut self, fingerprint: Fingerprint, now: Timestamp) -> Result<(), Full> {
        self.newest = self.newest.max(now);
        self.sweep(fingerprint, now);
        self.make_room(fingerprint.owner, now)
    }

    /// Makes sure that one more entry may be stored, or says when it may.
    fn make_room(&mut self, owner: u64, now: Timestamp) -> Result<(), Full> {
        while self.bytes >= self.bytes_max && !self.entries.is_empty() {
            let (at, vacant_at) = self.who_gives_way(owner, now)?;
            if vacant_at > now {
                self.owners.note_forgotten(self.owners.number(self.entries[at].fingerprint.owner));
            }
            self.drop_at(at, self.newest);
        }
        Ok(())
    }

    /// Bytes taken, and how many there may be.
    pub(crate) const fn bytes(&self) -> (usize, usize) {
        (self.bytes, self.bytes_max)
    }

    /// Drops the next entries that say nothing, but for the one of the key at hand: its state says
    /// more to who comes late than that it is gone.
    fn sweep(&mut self, but: Fingerprint, now: Timestamp) {
        for _ in 0..SWEPT.min(self.entries.len()) {
            let at = self.next_hand();
            if self.entries[at].vacant_at <= now && self.entries[at].fingerprint.tag != but.tag {
                self.drop_at(at, self.newest);
            }
        }
    }

    /// The entry that makes room for more of this owner's, and until when it says something.
    fn who_gives_way(&mut self, owner: u64, now: Timestamp) -> Result<(usize, Timestamp), Full> {
        let own = self.rooms.get(&owner).map_or(0, |room| room.bytes);
        let share = self.bytes_max / (self.rooms.len() + usize::from(own == 0));
        let most = self.rooms.iter().max_by_key(|(_, room)| room.bytes);
        let above = most.filter(|(_, room)| room.bytes > share).map(|(above, _)| *above);
        let forgives = own < share || self.when_full == WhenFull::Forget;
        let mut free_at = Timestamp::MAX;
        for from in above.into_iter().chain((own > 0).then_some(owner)) {
            let (nearest, next_free_at) = self.nearest_of(from, now, forgives);
            if let Some(nearest) = nearest {
                return Ok(nearest);
            }
            free_at = free_at.min(next_free_at);
        }
        self.owners.note_refused(self.owners.number(owner));
        Err(Full { free_at })
    }

    /// Of the next few entries of an owner, the one nearest to saying nothing, and when the first
    /// of them does; one that has nothing left only if the call `forgives`.
    fn nearest_of(
        &mut self,
        owner: u64,
        now: Timestamp,
        forgives: bool,
    ) -> (Option<(usize, Timestamp)>, Timestamp) {
        let mut nearest: Option<(bool, Timestamp, usize)> = None;
        let mut free_at = Timestamp::MAX;
        let Some(room) = self.rooms.get_mut(&owner) else { return (None, free_at) };
        for _ in 0..SAMPLED.min(room.members.len()) {
            let at = room.next() as usize;
            let entry = &self.entries[at];
            free_at = free_at.min(entry.vacant_at);
            let spared = entry.limited && entry.vacant_at > now && !forgives;
            let rank = (entry.limited, entry.vacant_at, at);
            if !spared && nearest.is_none_or(|best| rank < best) {
                nearest = Some(rank);
            }
        }
        (nearest.map(|(_, vacant_at, at)| (at, vacant_at)), free_at)
    }

    fn next_hand(&mut self) -> usize {
        let at = self.hand % self.entries.len();
        self.hand = at + 1;
        at
    }

    /// Drops an entry as of `moment`.
    fn drop_at(&mut self, at: usize, moment: Timestamp) {
        self.newest_drop = self.newest_drop.max(moment);
        self.remove_at(at);
    }

    fn remove_at(&mut self, at: usize) {
        self.leave_room(at);
        let removed = self.entries.swap_remove(at);
        self.bytes -= removed.bytes;
        self.index.remove(&removed.fingerprint.of_key());
        if let Some(moved) = self.entries.get(at) {
            self.index.insert(moved.fingerprint.of_key(), at as u32);
            if let Some(room) = self.rooms.get_mut(&moved.fingerprint.owner) {
                room.members[moved.member as usize] = at as u32;
            }
        }
    }

    /// Takes an entry that is about to go out of its owner's members.
    fn leave_room(&mut self, at: usize) {
        let Entry { fingerprint, bytes, member, .. } = self.entries[at];
        let Some(room) = self.rooms.get_mut(&fingerprint.owner) else { return };
        room.bytes -= bytes;
        room.members.swap_remove(member as usize);
        if let Some(&moved) = room.members.get(member as usize) {
            self.entries[moved as usize].member = member;
        } else if room.members.is_empty() {
            self.rooms.remove(&fingerprint.owner);
        }
    }
}

impl Room {
    /// Where the next member is.
    fn next(&mut self) -> u32 {
        let at = self.hand % self.members.len();
        self.hand = at + 1;
        self.members[at]
    }
}

impl Entry {
    pub(crate) fn new(
        fingerprint: Fingerprint,
        state: State,
        vacant_at: Timestamp,
        limited: bool,
    ) -> Self {
        let bytes = bytes_of(&state);
        Self { fingerprint, state, vacant_at, limited, bytes, member: 0 }
    }
}

/// What a state takes in memory, its place in vector and index included (each up to twice as large
/// as needed, because they grow by doubling).
fn bytes_of(state: &State) -> usize {
    let entry = size_of::<Entry>() + size_of::<(u64, u32)>() + 1 + size_of::<u32>();
    2 * (entry + state.heap_bytes())
}

/// Fingerprints and owners are hashes already.
#[derive(Default)]
struct ByTag(u64);

impl Hasher for ByTag {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, word: u64) {
        self.0 ^= word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollway_core::sliding_window::SlidingWindow;
    use tollway_core::{Charge, Key, Policy};

    use super::*;

    /// Keys that were let in while small must not grow past the cap together.
    #[test]
    fn known_keys_that_grow_stay_within_the_bytes_too() {
        let window = SlidingWindow::exact("1000/1h".parse().unwrap()).unwrap();
        let policy = Policy::new("exact", window).unwrap();
        let charge = Charge::new(&policy, Key::new("any").unwrap());
        let states = VariableStates::new(VariableStates::SHARDS * 64 * 1_024, WhenFull::Deny);
        let start = Timestamp::from_millis(1_700_000_000_000);
        for step in 0..20_000 {
            let now = start.after(Duration::from_nanos(step));
            let fingerprint = Fingerprint { tag: 1 + step % 100, mark: 0, owner: 0 };
            let take = |state: &mut State, at| state.charge(&charge, 0, at).is_allowed();
            let _ = states.change(fingerprint, || None, policy.algorithm(), now, take);
            let shard = states.lock(0);
            let largest = shard.entries.iter().map(|entry| entry.bytes).max().unwrap_or(0);
            assert!(shard.bytes <= shard.bytes_max + largest, "step {step}");
        }
        assert!(states.pressure().forgotten > 0, "the cap was never reached");
    }
}
