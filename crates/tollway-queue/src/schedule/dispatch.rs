//! Leases: granted in turn, prolonged, asked to stop.

use std::sync::Arc;

use bytes::Bytes;
use tollway_core::Timestamp;

use super::change::{Change, QueueChange};
use super::gate::{Gate, Opens};
use super::jobs::{Entry, Stage};
use super::leases::Running;
use super::page::Page;
use super::queue::{Queue, Scope};
use super::turns::Spot;
use crate::error::{Error, ErrorKind};
use crate::job::{Beat, Cancelled, LeaseToken, Progress};
use crate::{Job, JobId, Lease, Limit, Start};

impl Queue {
    /// What time alone has done: leases that ended, calendars, what is too old to keep.
    pub(crate) fn tick(&mut self, scope: &mut Scope<'_>) {
        while let Some((at, id)) = self.leases.first()
            && at <= scope.now
        {
            self.expire(id, at, scope);
        }
        self.miss_deadlines(scope);
        self.promote_due(scope.now);
        self.recur(scope);
        self.purge(scope);
        self.forget_groups(scope);
    }

    /// Leases up to `max` jobs, and a page at most; a turn for each group that may start one.
    pub(crate) fn lease(&mut self, max: usize, worker: &str, scope: &mut Scope<'_>) -> Vec<Lease> {
        while let Some((at, number)) = self.turns.first_time()
            && at <= scope.now
        {
            self.place_group(number, scope.now);
            // It stays where it was: to look at it again would never end.
            if self.turns.first_time() == Some((at, number)) {
                break;
            }
        }
        let worker: Arc<str> = worker.into();
        let (mut leases, mut page) = (Vec::new(), Page::of(max));
        while page.has_room() && !self.paused {
            let Some((ticket, number)) = self.turns.first_turn() else { break };
            self.place_group(number, scope.now);
            if self.turns.first_turn() != Some((ticket, number)) {
                continue;
            }
            let Some((place, weight)) = self.jobs.ranks.first(self.groups.get(number).waiting)
            else {
                break;
            };
            // Nobody goes before the first in turn: a heavy job would wait for ever.
            if self.opens(scope.shared, weight, scope.now) > Opens::At(scope.now) {
                break;
            }
            leases.push(self.grant(number, place.id, &worker, scope));
            page.add(self.jobs.of(place.id).payload_len as usize);
            self.next_turn(number, ticket, weight, scope.now);
        }
        leases
    }

    /// Deficit round robin: a group that has had its share of this round goes to the back.
    fn next_turn(&mut self, number: u32, ticket: u64, weight: u32, now: Timestamp) {
        let group = self.groups.get_mut(number);
        // The share of a round is the heaviest job there is: with less, a group of heavy jobs would
        // wait several rounds for each; with more, a group of light ones would start many in a row.
        if group.deficit < u64::from(weight) {
            group.deficit += u64::from(self.jobs.heaviest().max(weight));
        }
        group.deficit -= u64::from(weight);
        let deficit = group.deficit;
        self.place_group(number, now);
        let next = self.jobs.ranks.first(self.groups.get(number).waiting);
        let stays = next.is_some_and(|(_, weight)| u64::from(weight) <= deficit);
        if self.groups.get(number).spot == Spot::Ring(ticket) && !stays {
            self.move_to(number, self.turns.last());
        }
    }

    fn grant(&mut self, number: u32, id: u64, worker: &Arc<str>, scope: &mut Scope<'_>) -> Lease {
        self.jobs.withdraw(id, &mut self.groups);
        let now = scope.now;
        let expires_at = now.after(self.settings.lease);
        let entry = self.jobs.of_mut(id);
        entry.stage = Stage::Running;
        entry.attempt += 1;
        let lease = Lease {
            id: JobId(id),
            attempt: entry.attempt,
            failures: entry.failures,
            group: self.groups.get(number).name.clone(),
            // Payloads are in the rows beside the schedule.
            payload: Bytes::new(),
            priority: entry.priority,
            weight: entry.weight,
            enqueued_at: entry.enqueued_at,
            leased_at: now,
            expires_at,
        };
        self.pass(number, id, lease.weight, scope);
        let running = Running {
            worker: worker.clone(),
            leased_at: now,
            expires_at,
            progress: None,
            cancelled: false,
            refits: Some(*scope.refits),
        };
        self.leases.insert(id, running);
        self.totals.leased += 1;
        scope.moved(id);
        lease
    }

    /// Takes the units of every limit for a job that starts.
    fn pass(&mut self, number: u32, id: u64, weight: u32, scope: &mut Scope<'_>) {
        let now = scope.now;
        let group = self.groups.get_mut(number);
        group.running += 1;
        let (gates, limits) = group.gates_mut(&self.settings.group_limits);
        gates.fill(limits);
        self.gates.fill(&self.settings.queue_limits);
        self.change_gates(number, scope, |gate, limit| gate.pass(limit, id, weight, now));
    }

    /// Changes every gate that binds the jobs of a group: its own, the queue's, and shared ones.
    /// `change` says whether a gate must be stored anew.
    pub(super) fn change_gates(
        &mut self,
        number: u32,
        scope: &mut Scope<'_>,
        mut change: impl FnMut(&mut Gate, &Limit) -> bool,
    ) {
        let group = self.groups.get_mut(number);
        let (gates, limits) = group.gates_mut(&self.settings.group_limits);
        if gates.change(limits, &mut change) {
            scope.group_changed(&group.name);
        }
        if self.gates.change(&self.settings.queue_limits, &mut change) {
            scope.note(QueueChange::Settings);
        }
        for name in &self.settings.shared {
            if let Some((limit, gate)) = scope.shared.get_mut(name) {
                scope.shared_touched = true;
                if change(gate, limit) {
                    scope.changes.push(Change::Shared(name.clone()));
                }
            }
        }
    }

    /// Prolongs a lease.
    pub(crate) fn heartbeat(&mut self, token: LeaseToken, scope: &mut Scope<'_>) -> Beat {
        if !self.holds(token) {
            return Beat::Lost;
        }
        let id = token.id.0;
        let until = scope.now.after(self.settings.lease);
        let running = self.leases.prolong(id, until).expect("a lease that holds is there");
        let (until, cancelled) = (running.expires_at, running.cancelled);
        scope.moved(id);
        if cancelled { Beat::Cancelled(until) } else { Beat::Until(until) }
    }

    /// Whether a token is that of the lease under which its job runs.
    pub(crate) fn holds(&self, token: LeaseToken) -> bool {
        let id = token.id.0;
        let current =
            self.jobs.entries.get(&id).is_some_and(|entry| entry.attempt == token.attempt);
        current && self.leases.running.contains_key(&id)
    }

    pub(crate) fn progress(&mut self, token: LeaseToken, progress: Progress) -> bool {
        let holds = self.holds(token);
        if holds && let Some(running) = self.leases.running.get_mut(&token.id.0) {
            running.progress = Some(progress);
        }
        holds
    }

    /// Takes a job out, or asks its worker to stop.
    pub(crate) fn cancel(&mut self, id: JobId, scope: &mut Scope<'_>) -> Cancelled {
        let id = id.0;
        if self.history.take_dead(id).is_some() {
            scope.note(QueueChange::DeadGone(id));
            scope.note(QueueChange::Gone(id));
            return Cancelled::Removed;
        }
        let Some(entry) = self.jobs.entries.get(&id) else { return Cancelled::NotFound };
        if entry.stage == Stage::Running {
            if let Some(running) = self.leases.running.get_mut(&id) {
                running.cancelled = true;
            }
            scope.moved(id);
            return Cancelled::Requested;
        }
        self.jobs.withdraw(id, &mut self.groups);
        self.remove(id, scope);
        Cancelled::Removed
    }

    /// Has a job start at another time; the job as it is then, if there is such a job.
    pub(crate) fn reschedule(
        &mut self,
        id: JobId,
        start: Start,
        scope: &mut Scope<'_>,
    ) -> Result<Option<Job>, Error> {
        let (number, now) = match self.jobs.entries.get(&id.0) {
            None => return Ok(None),
            Some(entry) if entry.stage == Stage::Running => return Err(runs_already(id)),
            Some(entry) => (entry.group, scope.now),
        };
        let due = start.moment(now);
        self.jobs.withdraw(id.0, &mut self.groups);
        if due > now {
            self.jobs.delay(id.0, due.as_nanos(), &mut self.groups);
        } else {
            self.jobs.of_mut(id.0).due_ns = now.as_nanos();
            self.jobs.wait(id.0, &mut self.groups);
        }
        scope.moved(id.0);
        self.place_group(number, now);
        Ok(self.job(id, scope))
    }

    /// Forgets a cancelled job and its key, which may be used anew.
    pub(crate) fn remove(&mut self, id: u64, scope: &mut Scope<'_>) {
        self.totals.cancelled += 1;
        let Some(entry) = self.jobs.remove(id) else { return };
        if let Some(key) = entry.overrides.as_deref().and_then(|overrides| overrides.key.as_ref()) {
            self.forget_key(key, scope);
        }
        scope.note(QueueChange::Gone(id));
        self.place_group(entry.group, scope.now);
    }

    /// Puts a dead letter back into its group, as if it had never failed.
    pub(crate) fn revive(&mut self, id: JobId, scope: &mut Scope<'_>) -> bool {
        let id = id.0;
        let Some(over) = self.history.take_dead(id) else { return false };
        let number = self.groups.number(&over.group);
        let due_ns = scope.now.as_nanos();
        let stage = Stage::Waiting;
        let mut entry = Entry { group: number, failures: 0, due_ns, stage, ..over.entry };
        if let Some(overrides) = &mut entry.overrides {
            // Whoever revives it wants it to start.
            overrides.deadline_ns = None;
        }
        scope.note(QueueChange::DeadGone(id));
        scope.moved(id);
        self.admit(id, entry, scope.now);
        true
    }
}

/// That a job cannot be given another time to start.
pub(crate) fn runs_already(id: JobId) -> Error {
    Error::new(ErrorKind::Conflict, format!("job {id} is already running"))
}
