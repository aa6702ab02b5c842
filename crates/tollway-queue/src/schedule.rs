//! The schedule: every queue in memory, driven by time as an argument, pure.
//!
//! No clock, no thread, no storage: what happens is a function of the calls and their times, so the
//! simulations and the model test run the same code as production. What a storage must write down
//! is collected as [`Change`]s.
//!
//! **Invariants.** A job is in exactly one place: delayed, waiting, running, dead, or gone.
//! Counters are never kept where a set can be counted. A group about which nothing is to be
//! remembered does not exist.

mod change;
mod cooling;
mod dispatch;
mod estimate;
mod gate;
mod gates;
mod group;
mod group_order;
mod history;
mod id_hash;
mod in_flight;
mod jobs;
mod leases;
mod page;
mod queue;
mod ranks;
mod response_times;
mod rounds;
mod settle;
mod slots;
mod turns;
mod view;

use std::collections::BTreeMap;
use std::time::Duration;

use tollway_core::Timestamp;

pub(crate) use change::{Change, QueueChange};
#[cfg(any(feature = "redb", feature = "redis"))]
pub(crate) use cooling::Edge;
#[cfg(feature = "redis")]
pub(crate) use dispatch::runs_already;
#[cfg(feature = "redis")]
pub(crate) use estimate::{Bound, Position, estimate, served_before};
pub(crate) use gate::Gate;
#[cfg(feature = "redb")]
pub(crate) use gates::Gates;
#[cfg(feature = "redb")]
pub(crate) use history::EndedJob;
pub(crate) use id_hash::IdHash;
#[cfg(any(feature = "redb", feature = "redis"))]
pub(crate) use in_flight::InFlight;
#[cfg(feature = "redb")]
pub(crate) use jobs::{Entry, JobOverrides, Stage};
#[cfg(feature = "redb")]
pub(crate) use leases::Running;
pub(crate) use queue::{Queue, Scope};
#[cfg(any(feature = "redb", feature = "redis"))]
pub(crate) use slots::Slots;

use crate::error::{Error, ErrorKind};
use crate::versions::VersionRecord;
use crate::{Author, Changed, Limit, QueueName, QueueSettings, SharedLimit, SharedLimits, Wake};

/// By how much calls may come late: threads read the clock and then wait for their turn. A time
/// further back means that the clock was set back.
const LATE_MAX: Duration = Duration::from_secs(10);
/// The most queues, and the most shared limits.
const QUEUES_MAX: usize = 10_000;

/// Every queue in memory.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    pub(crate) names: BTreeMap<QueueName, u32>,
    pub(crate) queues: BTreeMap<u32, Queue>,
    pub(crate) shared: BTreeMap<QueueName, (Limit, Gate)>,
    /// Which version of each shared limit that is.
    pub(crate) shared_records: BTreeMap<QueueName, VersionRecord>,
    /// See [`crate::Backend::secret`].
    pub(crate) secret: Option<[u8; 32]>,
    pub(crate) next_id: u64,
    pub(crate) next_queue: u32,
    pub(crate) last_now: Timestamp,
    /// How often limits were changed since this was opened.
    pub(crate) refits: u64,
    /// The latest time there ever was.
    pub(crate) latest: Timestamp,
    /// What is to be written down.
    pub(crate) changes: Vec<Change>,
    /// Queues whose next start has become earlier; `None` for those that are gone.
    pub(crate) woken: Vec<(QueueName, Option<Wake>)>,
    /// Queues of which jobs have ended.
    pub(crate) ended: Vec<QueueName>,
    /// What wakes are counted from: more than any that was told before a restart.
    pub(crate) seen: u64,
}

/// What is in the other queues that share a limit with a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sharers {
    /// Units of their jobs.
    pub(crate) units: u64,
    /// The most that any of these has.
    pub(crate) heaviest: u32,
}

impl Schedule {
    /// A schedule without queues.
    pub(crate) fn new() -> Self {
        Self { next_id: 1, next_queue: 1, ..Self::default() }
    }

    /// Makes a queue, or changes the settings of one, if `author` says something new.
    pub(crate) fn change_queue(
        &mut self,
        name: &QueueName,
        settings: QueueSettings,
        author: &Author,
        now: Timestamp,
    ) -> Result<Changed, Error> {
        let known = self.queue(name).ok().map(|queue| queue.record.clone());
        let mut record = known.unwrap_or_default();
        let taken = record.change(author, now)?;
        let version = record.version;
        if taken {
            self.put_queue(name, settings, now)?;
            let number = self.number(name)?;
            if let Some(queue) = self.queues.get_mut(&number) {
                queue.record = record;
            }
        }
        Ok(Changed { taken, version })
    }

    fn put_queue(
        &mut self,
        name: &QueueName,
        settings: QueueSettings,
        now: Timestamp,
    ) -> Result<(), Error> {
        if let Some(missing) = settings.shared.iter().find(|name| !self.shared.contains_key(*name))
        {
            return Err(Error::new(ErrorKind::NotFound, format!("no shared limit {missing}")));
        }
        self.refits += 1;
        if self.names.contains_key(name) {
            return self.with(name, now, |queue, scope| {
                queue.release_shared(&settings.shared, scope);
                queue.change(settings, scope);
                scope.note(QueueChange::Settings);
                Ok(())
            });
        }
        if self.names.len() >= QUEUES_MAX {
            return Err(Error::new(ErrorKind::Full, "there are 10000 queues and may be no more"));
        }
        let number = self.next_queue;
        self.next_queue += 1;
        self.names.insert(name.clone(), number);
        self.queues.insert(number, Queue::new(settings));
        self.changes.push(Change::Queue(number, QueueChange::Settings));
        Ok(())
    }

    pub(crate) fn remove_queue(&mut self, name: &QueueName, now: Timestamp) -> bool {
        // What its jobs hold of limits that it shares would be held for ever.
        let released = self.with(name, now, |queue, scope| {
            queue.release_shared(&[], scope);
            Ok(())
        });
        let (Ok(()), Some(number)) = (released, self.names.remove(name)) else { return false };
        self.queues.remove(&number);
        self.changes.push(Change::Queue(number, QueueChange::Removed));
        self.woken.push((name.clone(), None));
        true
    }

    /// Removes a queue that holds nothing of which somebody might want to know.
    pub(crate) fn remove_empty(&mut self, name: &QueueName, now: Timestamp) -> Result<bool, Error> {
        if let Ok(queue) = self.queue(name) {
            refuse_if_used(queue.jobs.entries.len() as u64, queue.history.dead.len() as u64)?;
        }
        Ok(self.remove_queue(name, now))
    }

    /// The secret that is kept: `proposed`, unless there is one.
    pub(crate) fn secret(&mut self, proposed: [u8; 32]) -> [u8; 32] {
        if self.secret.is_none() {
            self.changes.push(Change::Secret);
        }
        *self.secret.get_or_insert(proposed)
    }

    /// Makes or changes a limit that queues share, if `author` says something new; what is in use
    /// of the same kind stays in use.
    pub(crate) fn change_shared(
        &mut self,
        name: &QueueName,
        limit: Limit,
        author: &Author,
        now: Timestamp,
    ) -> Result<Changed, Error> {
        if self.shared.len() >= QUEUES_MAX && !self.shared.contains_key(name) {
            return Err(Error::new(ErrorKind::Full, "there are 10000 shared limits already"));
        }
        let mut record = self.shared_records.get(name).cloned().unwrap_or_default();
        let taken = record.change(author, now)?;
        let version = record.version;
        if taken {
            self.shared_records.insert(name.clone(), record);
            self.put_shared(name, limit);
            self.look_at_users(name, now);
        }
        Ok(Changed { taken, version })
    }

    fn put_shared(&mut self, name: &QueueName, limit: Limit) {
        self.refits += 1;
        let gate = match self.shared.remove(name) {
            Some((_, gate)) if gate.fits(&limit) => gate,
            _ => Gate::vacant(&limit),
        };
        self.shared.insert(name.clone(), (limit, gate));
        self.changes.push(Change::Shared(name.clone()));
    }

    /// Who waits for a limit that has changed may start earlier.
    fn look_at_users(&mut self, limit: &QueueName, now: Timestamp) {
        let uses = |number: &u32| self.queues[number].settings.shared.contains(limit);
        let users = self.names.iter().filter(|(_, number)| uses(number));
        let users: Vec<(QueueName, u32)> = users.map(|(name, at)| (name.clone(), *at)).collect();
        users.iter().for_each(|(name, number)| self.look(name, *number, now));
    }

    /// Forgets a limit that no queue shares; whether there was one.
    pub(crate) fn remove_shared(&mut self, name: &QueueName) -> Result<bool, Error> {
        let mut users = self.names.iter();
        let uses = |number: &u32| self.queues[number].settings.shared.contains(name);
        if let Some((user, _)) = users.find(|(_, number)| uses(number)) {
            return Err(shared_by(name, user.as_str()));
        }
        self.shared_records.remove(name);
        let was_there = self.shared.remove(name).is_some();
        if was_there {
            self.changes.push(Change::Shared(name.clone()));
        }
        Ok(was_there)
    }

    pub(crate) fn shared_limits(&self) -> SharedLimits {
        let version = |name: &QueueName| self.shared_records.get(name).map(|record| record.version);
        let told = |(name, (limit, _)): (&QueueName, &(Limit, Gate))| {
            let version = version(name).unwrap_or_default();
            (name.clone(), SharedLimit { limit: *limit, version })
        };
        self.shared.iter().map(told).collect()
    }

    pub(crate) fn settings(&self) -> Vec<(QueueName, QueueSettings)> {
        let settings = |(name, number): (&QueueName, &u32)| {
            self.queues.get(number).map(|queue| (name.clone(), queue.settings.clone()))
        };
        self.names.iter().filter_map(settings).collect()
    }

    /// Runs `operation` on a queue at `now`, after what time alone has done.
    pub(crate) fn with<T>(
        &mut self,
        name: &QueueName,
        now: Timestamp,
        operation: impl FnOnce(&mut Queue, &mut Scope<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let number = self.number(name)?;
        let now = self.advance(now);
        let sharers = self.sharers(number);
        let changes_before = self.changes.len();
        let queue = self.queues.get_mut(&number).ok_or_else(|| unknown(name))?;
        let mut scope = Scope {
            now,
            latest: self.latest,
            queue: number,
            refits: &mut self.refits,
            next_id: &mut self.next_id,
            shared: &mut self.shared,
            sharers,
            changes: &mut self.changes,
            shared_touched: false,
        };
        // First, so that the operation finds the leases ended that time has ended.
        queue.tick(&mut scope);
        let result = operation(queue, &mut scope);
        let shared_touched = scope.shared_touched;
        if self.changes[changes_before..].iter().any(Change::ends_job)
            && self.ended.last() != Some(name)
        {
            self.ended.push(name.clone());
        }
        self.look(name, number, now);
        if shared_touched {
            self.look_at_sharers(number, now);
        }
        result
    }

    /// What is in the other queues that share a limit with this one.
    fn sharers(&self, number: u32) -> Sharers {
        let mut sharers = Sharers::default();
        let Some(queue) = self.queues.get(&number) else { return sharers };
        let shared = &queue.settings.shared;
        if shared.is_empty() {
            return sharers;
        }
        for (other, queue) in &self.queues {
            let shares = queue.settings.shared.iter().any(|name| shared.contains(name));
            if *other != number && shares {
                sharers.units += queue.jobs.units;
                sharers.heaviest = sharers.heaviest.max(queue.jobs.heaviest());
            }
        }
        sharers
    }

    pub(crate) fn queue(&self, name: &QueueName) -> Result<&Queue, Error> {
        Ok(&self.queues[&self.number(name)?])
    }

    pub(crate) fn number(&self, name: &QueueName) -> Result<u32, Error> {
        self.names.get(name).copied().ok_or_else(|| unknown(name))
    }

    /// The time that counts: never before the last, unless the clock was set back.
    fn advance(&mut self, now: Timestamp) -> Timestamp {
        let late = self.last_now.since(now);
        if late > LATE_MAX {
            self.set_back(late, now);
            self.last_now = now;
        }
        self.last_now = self.last_now.max(now);
        self.latest = self.latest.max(self.last_now);
        self.last_now
    }

    /// The clock was set back: what was to last a while lasts as long as before.
    fn set_back(&mut self, by: Duration, now: Timestamp) {
        self.shared.values_mut().for_each(|(limit, gate)| gate.set_back(limit, by, now));
        self.changes.extend(self.shared.keys().cloned().map(Change::Shared));
        for (number, queue) in &mut self.queues {
            queue.set_back(by, now, *number, &mut self.changes);
        }
    }

    /// Notes when the queue is to be looked at next, and wakes who waits if that is earlier.
    fn look(&mut self, name: &QueueName, number: u32, now: Timestamp) {
        let Some(queue) = self.queues.get_mut(&number) else { return };
        let next = queue.next(&self.shared, now);
        let earlier = match (next, queue.wake.next) {
            (Some(next), Some(told)) => next < told,
            (next, told) => next.is_some() && told.is_none(),
        };
        queue.wake.next = next;
        // Who sleeps too short asks once for nothing; who sleeps too long lets a job stand.
        if earlier {
            queue.wake.seen = queue.wake.seen.max(self.seen) + 1;
            self.woken.push((name.clone(), Some(queue.wake)));
        }
    }

    fn look_at_sharers(&mut self, but: u32, now: Timestamp) {
        let sharers: Vec<(QueueName, u32)> = self
            .names
            .iter()
            .filter(|(_, number)| **number != but)
            .filter(|(_, number)| !self.queues[*number].settings.shared.is_empty())
            .map(|(name, number)| (name.clone(), *number))
            .collect();
        sharers.iter().for_each(|(name, number)| self.look(name, *number, now));
    }
}

/// Refuses to remove a queue that holds something.
pub(crate) fn refuse_if_used(jobs: u64, dead: u64) -> Result<(), Error> {
    if jobs == 0 && dead == 0 {
        return Ok(());
    }
    let message = format!("the queue holds {jobs} jobs and {dead} dead letters: remove them first");
    Err(Error::new(ErrorKind::Conflict, message))
}

/// That a limit cannot be removed while a queue names it.
pub(crate) fn shared_by(limit: &QueueName, queue: &str) -> Error {
    Error::new(ErrorKind::Conflict, format!("queue {queue} shares {limit}: change the queue first"))
}

fn unknown(name: &QueueName) -> Error {
    Error::new(ErrorKind::UnknownQueue, format!("there is no queue {name}"))
}
