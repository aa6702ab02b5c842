//! One queue in memory: its jobs, its groups, its leases, and whose turn is next.
//!
//! ```text
//!   Jobs: id -> Entry ─┬─ delayed ─ Group.delayed ─┐  when due
//!                      ├─ waiting ─ Group.waiting ◄┘
//!                      └─ running ─ Leases
//!
//!   Groups: name -> GroupState, with its place in Turns (by time, or in the ring)
//! ```
//!
//! Each part keeps its own state; what concerns several is here, in `dispatch` (leases granted), in
//! `settle` (leases ended), in `group_order` (whose turn) and in `view` (what is told).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tollway_core::Timestamp;

use super::Sharers;
use super::change::{Change, QueueChange};
use super::gate::Gate;
use super::gates::Gates;
use super::group::Groups;
use super::history::History;
use super::jobs::{Entry, JobOverrides, Jobs, Stage};
use super::leases::Leases;
#[cfg(feature = "redb")]
use super::leases::Running;
use super::response_times::ResponseTimes;
use super::turns::Turns;
use crate::error::{Error, ErrorKind};
use crate::job::{Deadline, NewJob};
use crate::settings::longest_result;
use crate::versions::VersionRecord;
use crate::{
    Described, Enqueued, Group, Limit, Operation, QueueName, QueueSettings, Reply, Totals, Wake,
};

/// What an operation works with besides the queue.
pub(crate) struct Scope<'a> {
    pub(crate) now: Timestamp,
    /// The latest time there ever was: what is enqueued now comes after all that came before, even
    /// if the clock was set back.
    pub(crate) latest: Timestamp,
    pub(crate) queue: u32,
    /// How often limits were changed: what passed before cannot be given back.
    pub(crate) refits: &'a mut u64,
    pub(crate) next_id: &'a mut u64,
    pub(crate) shared: &'a mut BTreeMap<QueueName, (Limit, Gate)>,
    pub(crate) sharers: Sharers,
    pub(crate) changes: &'a mut Vec<Change>,
    /// Whether a shared limit was used or freed, so that other queues may be affected.
    pub(crate) shared_touched: bool,
}

impl Scope<'_> {
    /// Notes what a storage must write down of this queue.
    pub(crate) fn note(&mut self, change: QueueChange) {
        self.changes.push(Change::Queue(self.queue, change));
    }

    pub(crate) fn moved(&mut self, id: u64) {
        self.note(QueueChange::Moved(id));
    }

    pub(crate) fn group_changed(&mut self, group: &Group) {
        self.note(QueueChange::Group(group.clone()));
    }
}

/// One queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) settings: QueueSettings,
    /// Which version of the settings that is.
    pub(crate) record: VersionRecord,
    pub(crate) paused: bool,
    /// What is in use of the limits of the queue as a whole.
    pub(crate) gates: Gates,
    pub(crate) jobs: Jobs,
    pub(crate) groups: Groups,
    pub(crate) leases: Leases,
    pub(crate) turns: Turns,
    /// When the next delayed job of a group is due.
    pub(crate) due: BTreeSet<(u64, u32)>,
    /// When there will be nothing to remember of a group.
    pub(crate) forgettable: BTreeSet<(Timestamp, u32)>,
    pub(crate) response_times: ResponseTimes,
    pub(crate) history: History,
    pub(crate) totals: Totals,
    /// What of them is in the file.
    #[cfg(feature = "redb")]
    pub(crate) stored_totals: Totals,
    pub(crate) wake: Wake,
}

impl Queue {
    pub(crate) fn new(settings: QueueSettings) -> Self {
        Self {
            settings,
            record: VersionRecord::default(),
            paused: false,
            gates: Gates::default(),
            jobs: Jobs::default(),
            groups: Groups::default(),
            leases: Leases::default(),
            turns: Turns::default(),
            due: BTreeSet::new(),
            forgettable: BTreeSet::new(),
            response_times: ResponseTimes::default(),
            history: History::default(),
            totals: Totals::default(),
            #[cfg(feature = "redb")]
            stored_totals: Totals::default(),
            wake: Wake { next: None, seen: 0 },
        }
    }

    pub(crate) fn described(&self) -> Described {
        Described { settings: self.settings.clone(), version: self.record.version }
    }

    /// Other settings from now on; what is in use of limits of the same kind stays in use.
    pub(crate) fn change(&mut self, settings: QueueSettings, scope: &mut Scope<'_>) {
        self.settings = settings;
        let running: Vec<(u64, u32)> =
            self.leases.ids().map(|id| (id, self.jobs.of(id).weight)).collect();
        self.gates.refit(&self.settings.queue_limits, &running);
        for number in self.groups.numbers() {
            self.refit_group(number, scope);
        }
    }

    /// Fits the gates of a group to its limits, which have changed.
    pub(crate) fn refit_group(&mut self, number: u32, scope: &mut Scope<'_>) {
        let jobs = self.leases.ids().map(|id| (id, self.jobs.of(id)));
        let of_group = jobs.filter(|(_, entry)| entry.group == number);
        let running: Vec<_> = of_group.map(|(id, entry)| (id, entry.weight)).collect();
        let group = self.groups.get_mut(number);
        let (gates, limits) = group.gates_mut(&self.settings.group_limits);
        gates.refit(limits, &running);
        scope.group_changed(&group.name);
        self.place_group(number, scope.now);
    }

    /// Carries out an operation that needs nothing but the queue and the time.
    pub(crate) fn run(
        &mut self,
        operation: Operation,
        scope: &mut Scope<'_>,
    ) -> Result<Reply, Error> {
        Ok(match operation {
            Operation::Enqueue(jobs) => self.enqueue(jobs, scope)?.into(),
            Operation::Heartbeat(tokens) => {
                let beat = |token| self.heartbeat(token, scope);
                tokens.into_iter().map(beat).collect::<Vec<_>>().into()
            }
            Operation::Settle(outcomes) => {
                self.settings.check_bytes("result", longest_result(&outcomes))?;
                let settle = |(token, outcome)| self.settle(token, outcome, scope);
                outcomes.into_iter().map(settle).collect::<Vec<_>>().into()
            }
            Operation::Progress(token, progress) => self.progress(token, progress).into(),
            Operation::Hold(token, wait) => self.hold(token, wait, scope).into(),
            Operation::Cancel(id) => self.cancel(id, scope).into(),
            Operation::Reschedule { id, start } => self.reschedule(id, start, scope)?.into(),
            Operation::Job(id) => self.job(id, scope).into(),
            Operation::Ended { after, max } => self.ended(after, max, scope).into(),
            Operation::Peek { group, max } => self.peek(&group, max, scope).into(),
            Operation::Stats { after, max } => self.stats(after.as_ref(), max, scope.now).into(),
            Operation::Pause { group, paused } => self.pause(group, paused, scope)?.into(),
            Operation::SetLimits { group, limits } => {
                self.set_limits(&group, limits, scope)?.into()
            }
            Operation::Dead { after, max } => self.dead(after, max, scope).into(),
            Operation::Running { after, max } => self.running(after, max, scope).into(),
            Operation::Revive(id) => self.revive(id, scope).into(),
            Operation::PutRecurring(recurring) => self.put_recurring(*recurring, scope)?.into(),
            Operation::RemoveRecurring(name) => self.remove_recurring(&name, scope).into(),
            Operation::Change { .. }
            | Operation::Describe
            | Operation::Remove
            | Operation::RemoveEmpty
            | Operation::Lease { .. }
            | Operation::Wake
            | Operation::Recurring => {
                return Err(Error::new(ErrorKind::Misuse, "this is not done by a queue alone"));
            }
        })
    }

    fn pause(
        &mut self,
        group: Option<Group>,
        paused: bool,
        scope: &mut Scope<'_>,
    ) -> Result<(), Error> {
        let Some(name) = group else {
            self.paused = paused;
            scope.note(QueueChange::Settings);
            return Ok(());
        };
        if !paused && self.groups.find(name.as_str()).is_none() {
            return Ok(());
        }
        let number = self.group_to_change(&name)?;
        self.groups.get_mut(number).paused = paused;
        scope.group_changed(&name);
        self.place_group(number, scope.now);
        Ok(())
    }

    fn set_limits(
        &mut self,
        name: &Group,
        limits: Option<Vec<Limit>>,
        scope: &mut Scope<'_>,
    ) -> Result<(), Error> {
        *scope.refits += 1;
        if limits.is_none() && self.groups.find(name.as_str()).is_none() {
            return Ok(());
        }
        let number = self.group_to_change(name)?;
        self.groups.get_mut(number).own_limits = limits.map(Vec::into_boxed_slice);
        self.refit_group(number, scope);
        Ok(())
    }

    /// The number of a group that is to be paused or limited, which is made if there is room.
    fn group_to_change(&mut self, name: &Group) -> Result<u32, Error> {
        let known = self.groups.find(name.as_str()).is_some();
        if !known && self.groups.len() >= self.settings.groups_max as usize {
            return Err(Error::new(ErrorKind::Full, "the queue is full of groups"));
        }
        Ok(self.groups.number(name))
    }

    /// Enqueues all jobs or none.
    pub(crate) fn enqueue(
        &mut self,
        jobs: Vec<NewJob>,
        scope: &mut Scope<'_>,
    ) -> Result<Vec<Enqueued>, Error> {
        self.check_room(&jobs)?;
        let payload = |job: &NewJob| self.settings.check_bytes("payload", job.payload.len());
        jobs.iter().try_for_each(payload)?;
        Ok(jobs.into_iter().map(|job| self.enqueue_one(job, scope)).collect())
    }

    fn check_room(&self, jobs: &[NewJob]) -> Result<(), Error> {
        if self.jobs.entries.len() as u64 + jobs.len() as u64 > self.settings.jobs_max {
            let message = format!("the queue is full: it holds {} jobs", self.jobs.entries.len());
            return Err(Error::new(ErrorKind::Full, message));
        }
        let new_bytes: u64 = jobs.iter().map(|job| job.payload.len() as u64).sum();
        if !self.has_room_for(new_bytes) {
            let message = format!(
                "the queue's payloads have {} bytes and may have {} (bytes_max)",
                self.held_bytes(),
                self.settings.bytes_max
            );
            return Err(Error::new(ErrorKind::Full, message));
        }
        let groups_max = self.settings.groups_max as usize;
        // Which of them are new need be known only if there is no room for a group of each job.
        if self.groups.len() + jobs.len() <= groups_max {
            return Ok(());
        }
        let new: BTreeSet<&Group> = jobs
            .iter()
            .map(|job| &job.group)
            .filter(|group| self.groups.find(group.as_str()).is_none())
            .collect();
        if self.groups.len() + new.len() > groups_max {
            let message = format!("the queue is full: it has {} groups", self.groups.len());
            return Err(Error::new(ErrorKind::Full, message));
        }
        Ok(())
    }

    /// Bytes of all payloads that are kept.
    fn held_bytes(&self) -> u64 {
        self.jobs.payload_bytes + self.history.dead_bytes
    }

    /// Whether the payloads may have so many bytes more.
    pub(crate) fn has_room_for(&self, bytes: u64) -> bool {
        self.held_bytes().saturating_add(bytes) <= self.settings.bytes_max
    }

    fn enqueue_one(&mut self, job: NewJob, scope: &mut Scope<'_>) -> Enqueued {
        if let Some(id) = job.key.as_deref().and_then(|key| self.history.holder(key, scope.now)) {
            let ready = self.estimate(id, scope);
            return Enqueued { id: crate::JobId(id), duplicate: true, ready };
        }
        let id = self.insert(job, scope);
        Enqueued { id: crate::JobId(id), duplicate: false, ready: self.estimate(id, scope) }
    }

    /// Puts a new job into its group, and gives its number.
    pub(crate) fn insert(&mut self, job: NewJob, scope: &mut Scope<'_>) -> u64 {
        let id = *scope.next_id;
        *scope.next_id += 1;
        let now = scope.now;
        let due = job.start.moment(now);
        let stage = if due > now { Stage::Delayed } else { Stage::Waiting };
        let due = if due > now { due } else { scope.latest };
        let key = job.key.map(|key| self.remember_key(key, id, scope));
        let deadline = job.deadline.map(|deadline| match deadline {
            Deadline::After(within) => now.after(within),
            Deadline::At(at) => at,
        });
        let overrides = JobOverrides {
            attempts_max: job.attempts_max,
            backoff: job.backoff,
            key,
            deadline_ns: deadline.map(Timestamp::as_nanos),
            past: Vec::new(),
        };
        let entry = Entry {
            group: self.groups.number(&job.group),
            weight: job.weight,
            attempt: 0,
            failures: 0,
            payload_len: job.payload.len() as u32,
            priority: job.priority,
            stage,
            due_ns: due.as_nanos(),
            enqueued_at: now,
            overrides: (overrides != JobOverrides::default()).then(|| Box::new(overrides)),
        };
        scope.note(QueueChange::Job(id, job.payload));
        self.totals.enqueued += 1;
        self.admit(id, entry, now);
        id
    }

    fn remember_key(&mut self, key: String, id: u64, scope: &mut Scope<'_>) -> Arc<str> {
        let key: Arc<str> = key.into();
        let until = scope.now.after(self.settings.key_window);
        self.history.remember_key(key.clone(), id, until);
        scope.note(QueueChange::Key(key.clone()));
        key
    }

    /// Takes a job in that does not run, and finds the spot of its group.
    pub(crate) fn admit(&mut self, id: u64, entry: Entry, now: Timestamp) {
        let number = entry.group;
        self.jobs.insert(id, entry, &mut self.groups);
        self.place_group(number, now);
    }

    /// Takes a job in that ran when the queue was stored: it holds what it held.
    #[cfg(feature = "redb")]
    pub(crate) fn restore_running(
        &mut self,
        id: u64,
        mut entry: Entry,
        running: Running,
        shared: &mut BTreeMap<QueueName, (Limit, Gate)>,
    ) {
        entry.stage = Stage::Running;
        let weight = entry.weight;
        let hold = |gate: &mut Gate, limit: &Limit| {
            gate.hold(limit, id, weight);
            false
        };
        let group = self.groups.get_mut(entry.group);
        group.running += 1;
        let (gates, limits) = group.gates_mut(&self.settings.group_limits);
        gates.fill(limits);
        gates.change(limits, hold);
        self.gates.fill(&self.settings.queue_limits);
        self.gates.change(&self.settings.queue_limits, hold);
        for name in &self.settings.shared {
            if let Some((limit, gate)) = shared.get_mut(name) {
                hold(gate, limit);
            }
        }
        self.jobs.insert(id, entry, &mut self.groups);
        self.leases.insert(id, running);
    }

    /// The clock was set back by `by`: leases, slots and blocks last as long as before. Jobs that
    /// wait for a time of day wait for that time.
    pub(crate) fn set_back(
        &mut self,
        by: Duration,
        now: Timestamp,
        number: u32,
        changes: &mut Vec<Change>,
    ) {
        for group in self.groups.numbers() {
            self.place_group(group, now.after(by));
        }
        let mut note = |change| changes.push(Change::Queue(number, change));
        // What waits keeps its place, even if its time lies in the future now.
        self.leases.set_back(by);
        self.jobs
            .ids_waiting()
            .chain(self.leases.ids())
            .for_each(|id| note(QueueChange::Moved(id)));
        self.gates.set_back(&self.settings.queue_limits, by, now);
        note(QueueChange::Settings);
        for group in self.groups.numbers() {
            let state = self.groups.get_mut(group);
            state.blocked_until = state.blocked_until.before(by);
            let (gates, limits) = state.gates_mut(&self.settings.group_limits);
            gates.set_back(limits, by, now);
            note(QueueChange::Group(state.name.clone()));
            self.place_group(group, now);
        }
    }
}
