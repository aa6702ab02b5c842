//! What a queue keeps beside its jobs: idempotency keys, jobs that are over, recurring jobs.
//!
//! Everything here has a bound in number and in age; beyond it the oldest is forgotten.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use tollway_core::Timestamp;

use super::change::QueueChange;
use super::id_hash::IdHash;
use super::jobs::Entry;
use super::queue::{Queue, Scope};
use crate::error::{Error, ErrorKind};
use crate::{EndMark, Group, JobId, Recurring, Start};

/// What a queue keeps beside its jobs.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Who was enqueued with a key, and until when it is remembered.
    pub(crate) keys: HashMap<Arc<str>, (u64, Timestamp)>,
    key_order: BTreeSet<(Timestamp, Arc<str>)>,
    pub(crate) done: HashMap<u64, EndedJob, IdHash>,
    done_order: BTreeSet<(Timestamp, u64)>,
    pub(crate) dead: BTreeMap<u64, EndedJob>,
    dead_order: BTreeSet<(Timestamp, u64)>,
    /// Of the payloads of dead letters.
    pub(crate) dead_bytes: u64,
    pub(crate) recurring: BTreeMap<String, (Recurring, Timestamp)>,
    recurring_order: BTreeSet<(Timestamp, String)>,
}

/// A job that is over.
#[derive(Clone, Debug)]
pub(crate) struct EndedJob {
    pub(crate) group: Group,
    pub(crate) entry: Entry,
    pub(crate) at: Timestamp,
    /// Why it is dead.
    pub(crate) reason: String,
}

impl EndedJob {
    /// What it adds to a page of dead letters.
    pub(crate) fn bytes(&self) -> usize {
        self.entry.payload_len as usize + self.reason.len()
    }
}

impl History {
    /// Which jobs ended after `mark`, those first that ended first.
    pub(crate) fn ended_after(&self, mark: EndMark) -> impl Iterator<Item = u64> + '_ {
        let behind = (Bound::Excluded((mark.at, mark.id.0)), Bound::Unbounded);
        let mut done = self.done_order.range(behind).peekable();
        let mut dead = self.dead_order.range(behind).peekable();
        let next = move || match (done.peek(), dead.peek()) {
            (Some(one), Some(other)) if other < one => dead.next(),
            (None, _) => dead.next(),
            _ => done.next(),
        };
        std::iter::from_fn(next).map(|(_, id)| *id)
    }

    /// Where the order of jobs that ended is at its end.
    pub(crate) fn last_end(&self) -> EndMark {
        let last = self.done_order.last().max(self.dead_order.last());
        last.map_or(EndMark::FIRST, |&(at, id)| EndMark { at, id: JobId(id) })
    }

    /// The job that was enqueued with `key`, if that is still remembered.
    pub(crate) fn holder(&self, key: &str, now: Timestamp) -> Option<u64> {
        self.keys.get(key).filter(|(_, until)| *until > now).map(|(id, _)| *id)
    }

    pub(crate) fn remember_key(&mut self, key: Arc<str>, id: u64, until: Timestamp) {
        if let Some((_, old)) = self.keys.insert(key.clone(), (id, until)) {
            self.key_order.remove(&(old, key.clone()));
        }
        self.key_order.insert((until, key));
    }

    pub(crate) fn remember_done(&mut self, id: u64, over: EndedJob) {
        self.done_order.insert((over.at, id));
        self.done.insert(id, over);
    }

    pub(crate) fn remember_dead(&mut self, id: u64, over: EndedJob) {
        self.dead_order.insert((over.at, id));
        self.dead_bytes += u64::from(over.entry.payload_len);
        self.dead.insert(id, over);
    }

    pub(crate) fn take_dead(&mut self, id: u64) -> Option<EndedJob> {
        let over = self.dead.remove(&id)?;
        self.dead_order.remove(&(over.at, id));
        self.dead_bytes -= u64::from(over.entry.payload_len);
        Some(over)
    }

    /// Every recurring job, in order of names.
    pub(crate) fn recurring(&self) -> Vec<Recurring> {
        self.recurring.values().map(|(recurring, _)| recurring.clone()).collect()
    }

    pub(crate) fn next_recurring(&self) -> Option<Timestamp> {
        self.recurring_order.first().map(|(next, _)| *next)
    }

    pub(crate) fn put_recurring(&mut self, recurring: Recurring, next: Timestamp) {
        self.remove_recurring(&recurring.name);
        self.recurring_order.insert((next, recurring.name.clone()));
        self.recurring.insert(recurring.name.clone(), (recurring, next));
    }

    fn remove_recurring(&mut self, name: &str) -> bool {
        let Some((_, next)) = self.recurring.remove(name) else { return false };
        self.recurring_order.remove(&(next, name.to_owned()));
        true
    }
}

impl Queue {
    /// Forgets what is too old or too much.
    pub(crate) fn purge(&mut self, scope: &mut Scope<'_>) {
        self.purge_keys(scope);
        self.purge_done(scope);
        self.purge_dead(scope);
    }

    fn purge_keys(&mut self, scope: &mut Scope<'_>) {
        while let Some((until, key)) = self.history.key_order.first() {
            let many = self.history.keys.len() > self.settings.keys_max as usize;
            if *until > scope.now && !many {
                return;
            }
            let key = key.clone();
            self.forget_key(&key, scope);
        }
    }

    pub(crate) fn forget_key(&mut self, key: &Arc<str>, scope: &mut Scope<'_>) {
        if let Some((_, until)) = self.history.keys.remove(key) {
            self.history.key_order.remove(&(until, key.clone()));
            scope.note(QueueChange::KeyGone(key.clone()));
        }
    }

    pub(crate) fn purge_done(&mut self, scope: &mut Scope<'_>) {
        let retention = self.settings.retention;
        while let Some(&(at, id)) = self.history.done_order.first() {
            let many = self.history.done_order.len() > retention.done_max as usize;
            if !many && at.after(retention.done_age) > scope.now {
                return;
            }
            self.history.done_order.pop_first();
            self.history.done.remove(&id);
            scope.note(QueueChange::DoneGone(id));
        }
    }

    pub(crate) fn purge_dead(&mut self, scope: &mut Scope<'_>) {
        let retention = self.settings.retention;
        while let Some(&(at, id)) = self.history.dead_order.first() {
            let many = self.history.dead.len() > retention.dead_max as usize;
            if !many && at.after(retention.dead_age) > scope.now {
                return;
            }
            self.history.take_dead(id);
            scope.note(QueueChange::DeadGone(id));
            scope.note(QueueChange::Gone(id));
        }
    }

    /// Makes or replaces a recurring job.
    pub(crate) fn put_recurring(
        &mut self,
        recurring: Recurring,
        scope: &mut Scope<'_>,
    ) -> Result<(), Error> {
        self.settings.check_bytes("payload", recurring.job.payload.len())?;
        let known = self.history.recurring.contains_key(&recurring.name);
        if !known && self.history.recurring.len() >= Recurring::COUNT_MAX {
            return Err(Error::new(ErrorKind::Full, "a queue has at most 10000 recurring jobs"));
        }
        // Once more, since the schedule's time may be ahead of the caller's.
        let next = recurring.next_after(scope.now)?;
        let name = recurring.name.clone();
        self.history.put_recurring(recurring, next);
        scope.note(QueueChange::Recurring(name));
        Ok(())
    }

    pub(crate) fn remove_recurring(&mut self, name: &str, scope: &mut Scope<'_>) -> bool {
        let there = self.history.remove_recurring(name);
        if there {
            let name = name.to_owned();
            scope.note(QueueChange::Recurring(name));
        }
        there
    }

    /// Enqueues the recurring jobs whose time has come, each once however often it came unseen.
    pub(crate) fn recur(&mut self, scope: &mut Scope<'_>) {
        while let Some((next, name)) = self.history.recurring_order.first().cloned()
            && next <= scope.now
        {
            let Some((recurring, _)) = self.history.recurring.get(&name).cloned() else { return };
            match recurring.rhythm.next_after(scope.now) {
                Some(next) => self.history.put_recurring(recurring.clone(), next),
                None => {
                    self.history.remove_recurring(&name);
                }
            }
            scope.note(QueueChange::Recurring(name));
            let room = (self.jobs.entries.len() as u64) < self.settings.jobs_max
                && self.has_room_for(recurring.job.payload.len() as u64);
            let known = self.groups.find(recurring.job.group.as_str()).is_some();
            // A full queue has work enough: this time passes, the next comes.
            if room && (known || self.groups.len() < self.settings.groups_max as usize) {
                let job = crate::NewJob { start: Start::Now, key: None, ..recurring.job };
                self.insert(job, scope);
            }
        }
    }
}
