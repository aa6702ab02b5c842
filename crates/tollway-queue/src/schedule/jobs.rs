//! The jobs of a queue that are not over, the order in which they start, and sums over them.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::sync::Arc;

use tollway_core::Timestamp;

use super::group::Groups;
use super::id_hash::IdHash;
use super::leases::Running;
use super::ranks::{Ranks, SortKey};
use super::rounds::Rounds;
use crate::job::Backoff;
use crate::{AttemptEnd, PastAttempt};

/// The jobs of a queue that are not over: each is delayed or waits in its group, or runs.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    pub(crate) entries: HashMap<u64, Entry, IdHash>,
    /// The order of those that are delayed or wait; a group holds the roots of its two trees.
    pub(crate) ranks: Ranks,
    pub(crate) rounds: Rounds,
    pub(crate) waiting: u64,
    /// Every job that waits, the oldest on top, among others that waited once: those are taken away
    /// when they are met, or when they are too many.
    by_age: BinaryHeap<Reverse<u64>>,
    pub(crate) units: u64,
    /// Of their payloads; dead letters have their own count.
    pub(crate) payload_bytes: u64,
    heaviest: u32,
    /// Of those that do not run: until when each must start.
    deadlines: BTreeSet<(u64, u64)>,
    /// The highest rank and the highest priority since there were none.
    extremes: (u8, u8),
}

/// A job that waits, is delayed or runs. Its payload is elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) group: u32,
    pub(crate) weight: u32,
    pub(crate) attempt: u32,
    pub(crate) failures: u32,
    pub(crate) payload_len: u32,
    pub(crate) priority: u8,
    pub(crate) stage: Stage,
    /// From when on it may start; its place among its equals.
    pub(crate) due_ns: u64,
    pub(crate) enqueued_at: Timestamp,
    pub(crate) overrides: Option<Box<JobOverrides>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Delayed,
    Waiting,
    Running,
}

/// What few jobs have of their own, and what became of attempts at them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobOverrides {
    pub(crate) attempts_max: Option<u32>,
    pub(crate) backoff: Option<Backoff>,
    pub(crate) key: Option<Arc<str>>,
    pub(crate) deadline_ns: Option<u64>,
    pub(crate) past: Vec<PastAttempt>,
}

impl Entry {
    pub(crate) fn place(&self, id: u64) -> SortKey {
        SortKey { rank: u8::MAX - self.priority, due_ns: self.due_ns, id }
    }

    fn deadline_ns(&self) -> Option<u64> {
        self.overrides.as_deref()?.deadline_ns
    }

    /// The last attempts that did not get it done.
    pub(crate) fn past(&self) -> &[PastAttempt] {
        self.overrides.as_deref().map_or(&[], |overrides| &overrides.past)
    }

    /// Remembers how the attempt under a lease ended.
    pub(crate) fn remember(&mut self, running: &Running, ended_at: Timestamp, end: AttemptEnd) {
        let past = &mut self.overrides.get_or_insert_default().past;
        if past.len() == PastAttempt::COUNT_MAX {
            past.remove(0);
        }
        past.push(PastAttempt {
            attempt: self.attempt,
            worker: running.worker.to_string(),
            leased_at: running.leased_at,
            ended_at,
            end,
        });
    }

    /// Its place among the delayed, where priority plays no part.
    pub(crate) fn delayed_place(&self, id: u64) -> SortKey {
        SortKey { rank: 0, due_ns: self.due_ns, id }
    }
}

impl Jobs {
    /// The heaviest since there were none, at least 1: what a group may start in one turn.
    pub(crate) fn heaviest(&self) -> u32 {
        self.heaviest.max(1)
    }

    /// Whether there were different priorities since there were no jobs.
    pub(crate) fn has_priorities(&self) -> bool {
        let (rank_max, priority_max) = self.extremes;
        u8::MAX - rank_max < priority_max
    }

    /// The job that does not run and must start first: until when, and which.
    pub(crate) fn first_deadline(&self) -> Option<(u64, u64)> {
        self.deadlines.first().copied()
    }

    /// A job that is known to be here, since its group or its lease names it.
    pub(crate) fn of(&self, id: u64) -> &Entry {
        &self.entries[&id]
    }

    pub(crate) fn of_mut(&mut self, id: u64) -> &mut Entry {
        self.entries.get_mut(&id).expect("a job in a group or with a worker is a job of the queue")
    }

    /// Those that wait.
    pub(crate) fn ids_waiting(&self) -> impl Iterator<Item = u64> + '_ {
        let waits = |(id, entry): (&u64, &Entry)| (entry.stage == Stage::Waiting).then_some(*id);
        self.entries.iter().filter_map(waits)
    }

    /// Takes a job in (anew, or from storage): it waits, is delayed or runs, as its stage says.
    pub(crate) fn insert(&mut self, id: u64, entry: Entry, groups: &mut Groups) {
        self.heaviest = self.heaviest.max(entry.weight);
        let (rank_max, priority_max) = self.extremes;
        let rank = u8::MAX - entry.priority;
        self.extremes = (rank_max.max(rank), priority_max.max(entry.priority));
        self.units += u64::from(entry.weight);
        self.payload_bytes += u64::from(entry.payload_len);
        let (stage, due_ns) = (entry.stage, entry.due_ns);
        self.entries.insert(id, entry);
        match stage {
            Stage::Delayed => self.delay(id, due_ns, groups),
            Stage::Waiting => self.wait(id, groups),
            Stage::Running => {}
        }
    }

    /// Puts a job among those that wait in its group.
    pub(crate) fn wait(&mut self, id: u64, groups: &mut Groups) {
        self.waiting += 1;
        let entry = self.entries.get_mut(&id).expect("it was just found here");
        entry.stage = Stage::Waiting;
        let group = groups.get_mut(entry.group);
        self.deadlines.extend(entry.deadline_ns().map(|deadline_ns| (deadline_ns, id)));
        self.rounds.grow(group.line_len());
        self.ranks.insert(&mut group.waiting, entry.place(id), entry.weight);
        self.by_age.push(Reverse(id));
        if self.by_age.len() as u64 > 2 * self.waiting + 1_024 {
            self.forget_those_that_waited();
        }
    }

    fn forget_those_that_waited(&mut self) {
        let mut ids = std::mem::take(&mut self.by_age).into_vec();
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|Reverse(id)| self.waits(*id));
        self.by_age = ids.into();
    }

    fn waits(&self, id: u64) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.stage == Stage::Waiting)
    }

    /// When the oldest of those that wait was enqueued.
    pub(crate) fn oldest(&mut self) -> Option<Timestamp> {
        while let Some(Reverse(id)) = self.by_age.peek().copied() {
            if self.waits(id) {
                return self.entries.get(&id).map(|entry| entry.enqueued_at);
            }
            self.by_age.pop();
        }
        None
    }

    /// Puts a job among those of its group that may not start before a time.
    pub(crate) fn delay(&mut self, id: u64, due_ns: u64, groups: &mut Groups) {
        let entry = self.entries.get_mut(&id).expect("it was just found here");
        (entry.stage, entry.due_ns) = (Stage::Delayed, due_ns);
        let group = groups.get_mut(entry.group);
        self.deadlines.extend(entry.deadline_ns().map(|deadline_ns| (deadline_ns, id)));
        self.rounds.grow(group.line_len());
        self.ranks.insert(&mut group.delayed, entry.delayed_place(id), entry.weight);
    }

    /// Takes a job that does not run out of its group.
    pub(crate) fn withdraw(&mut self, id: u64, groups: &mut Groups) {
        let entry = &self.entries[&id];
        let group = groups.get_mut(entry.group);
        match entry.stage {
            Stage::Waiting => {
                self.ranks.remove(&mut group.waiting, entry.place(id));
                self.waiting -= 1;
            }
            Stage::Delayed => {
                self.ranks.remove(&mut group.delayed, entry.delayed_place(id));
            }
            Stage::Running => return,
        }
        if let Some(deadline_ns) = entry.deadline_ns() {
            self.deadlines.remove(&(deadline_ns, id));
        }
        self.rounds.shrink(group.line_len());
    }

    /// Forgets a job that is in no group any more.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.units -= u64::from(entry.weight);
        self.payload_bytes -= u64::from(entry.payload_len);
        if self.entries.is_empty() {
            *self = Self::default();
        }
        Some(entry)
    }
}
