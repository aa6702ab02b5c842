//! Leases: granted in turn, prolonged, asked to stop.

use std::sync::Arc;

use tollway_core::Timestamp;

use super::change::Change;
use super::gate::{Gate, Opens};
use super::group::Spot;
use super::page::Page;
use super::queue::{Entry, Queue, Running, Scope, Stage};
use crate::job::{Beat, Cancelled, LeaseToken, Progress};
use crate::{Group, JobId};

/// A lease that was granted; the payload is elsewhere.
#[derive(Debug)]
pub(crate) struct Grant {
    pub(crate) id: u64,
    pub(crate) entry: Entry,
    pub(crate) group: Group,
    pub(crate) expires_at: Timestamp,
}

impl Queue {
    /// What time alone has done: leases that ended, calendars, what is too old to keep.
    pub(crate) fn tick(&mut self, scope: &mut Scope<'_>) {
        while let Some(&(at, id)) = self.expiries.first()
            && at <= scope.now
        {
            self.expire(id, at, scope);
        }
        self.recur(scope);
        self.purge(scope);
        self.forget_groups(scope);
    }

    /// Leases up to `max` jobs, and a page at most; a turn for each group that may start one.
    pub(crate) fn lease(&mut self, max: usize, worker: &str, scope: &mut Scope<'_>) -> Vec<Grant> {
        while let Some(&(at, number)) = self.heap.first()
            && at <= scope.now
        {
            self.settle_down(number, scope.now);
            if self.heap.contains(&(at, number)) {
                break;
            }
        }
        let worker: Arc<str> = worker.into();
        let (mut grants, mut page) = (Vec::new(), Page::of(max));
        while page.has_room() && !self.paused {
            let Some((&ticket, &number)) = self.ring.first_key_value() else { break };
            self.settle_down(number, scope.now);
            if self.ring.first_key_value() != Some((&ticket, &number)) {
                continue;
            }
            let Some((place, weight)) = self.ranks.first(self.groups.get(number).waiting) else {
                break;
            };
            // Nobody goes before the first in turn: a heavy job would wait for ever.
            if self.opens(scope.shared, weight, scope.now) > Opens::At(scope.now) {
                break;
            }
            let grant = self.grant(number, place.id, &worker, scope);
            page.add(grant.entry.payload_len as usize);
            grants.push(grant);
            self.next_turn(number, ticket, weight, scope.now);
        }
        grants
    }

    /// Deficit round robin: a group that has had its share of this round goes to the back.
    fn next_turn(&mut self, number: u32, ticket: u64, weight: u32, now: Timestamp) {
        let group = self.groups.get_mut(number);
        if group.deficit < u64::from(weight) {
            group.deficit += u64::from(self.heaviest.max(weight));
        }
        group.deficit -= u64::from(weight);
        let deficit = group.deficit;
        self.settle_down(number, now);
        let next = self.ranks.first(self.groups.get(number).waiting);
        let stays = next.is_some_and(|(_, weight)| u64::from(weight) <= deficit);
        if self.groups.get(number).spot == Spot::Ring(ticket) && !stays {
            self.move_to(number, Spot::Ring(self.next_ticket));
        }
    }

    fn grant(&mut self, number: u32, id: u64, worker: &Arc<str>, scope: &mut Scope<'_>) -> Grant {
        self.withdraw(id);
        let now = scope.now;
        let expires_at = now.after(self.settings.lease);
        let entry = self.jobs.get_mut(&id).expect("a job in a group is a job of the queue");
        entry.stage = Stage::Running;
        entry.attempt += 1;
        let entry = entry.clone();
        self.pass(number, id, entry.weight, scope);
        self.hold(
            id,
            Running {
                worker: worker.clone(),
                leased_at: now,
                expires_at,
                progress: None,
                cancelled: false,
                refits: Some(*scope.refits),
            },
        );
        self.totals.leased += 1;
        scope.moved(id);
        Grant { id, entry, group: self.groups.get(number).name.clone(), expires_at }
    }

    /// Takes the units of every limit for a job that starts.
    fn pass(&mut self, number: u32, id: u64, weight: u32, scope: &mut Scope<'_>) {
        let now = scope.now;
        let group = self.groups.get_mut(number);
        group.running += 1;
        group.pass(&self.settings.group_limits, id, weight, now);
        let counted = |gate: &Gate| !matches!(gate, Gate::Slots(_));
        if group.gates.iter().any(counted) {
            scope.group_changed(&group.name);
        }
        let limits = &self.settings.queue_limits;
        if self.gates.is_empty() && !limits.is_empty() {
            self.gates = limits.iter().map(Gate::vacant).collect();
        }
        for (gate, limit) in self.gates.iter_mut().zip(limits) {
            gate.pass(limit, id, weight, now);
        }
        if self.gates.iter().any(counted) {
            scope.changes.push(Change::Queue(scope.queue));
        }
        for name in &self.settings.shared {
            if let Some((limit, gate)) = scope.shared.get_mut(name) {
                gate.pass(limit, id, weight, now);
                scope.shared_touched = true;
                if counted(gate) {
                    scope.changes.push(Change::Shared(name.clone()));
                }
            }
        }
    }

    /// Notes a lease that was granted (now, or before a restart).
    pub(crate) fn hold(&mut self, id: u64, running: Running) {
        self.expiries.insert((running.expires_at, id));
        self.leases.insert(id, running);
    }

    /// Prolongs a lease.
    pub(crate) fn heartbeat(&mut self, token: LeaseToken, scope: &mut Scope<'_>) -> Beat {
        if !self.holds(token) {
            return Beat::Lost;
        }
        let id = token.id.0;
        let until = scope.now.after(self.settings.lease);
        let running = self.leases.get_mut(&id).expect("a lease that holds is there");
        self.expiries.remove(&(running.expires_at, id));
        running.expires_at = running.expires_at.max(until);
        self.expiries.insert((running.expires_at, id));
        let (until, cancelled) = (running.expires_at, running.cancelled);
        scope.moved(id);
        if cancelled { Beat::Cancelled(until) } else { Beat::Until(until) }
    }

    /// Whether a token is that of the lease under which its job runs.
    pub(crate) fn holds(&self, token: LeaseToken) -> bool {
        let id = token.id.0;
        let current = self.jobs.get(&id).is_some_and(|entry| entry.attempt == token.attempt);
        current && self.leases.contains_key(&id)
    }

    pub(crate) fn progress(&mut self, token: LeaseToken, progress: Progress) -> bool {
        let holds = self.holds(token);
        if holds && let Some(running) = self.leases.get_mut(&token.id.0) {
            running.progress = Some(progress);
        }
        holds
    }

    /// Takes a job out, or asks its worker to stop.
    pub(crate) fn cancel(&mut self, id: JobId, scope: &mut Scope<'_>) -> Cancelled {
        let id = id.0;
        if self.history.take_dead(id).is_some() {
            scope.changes.push(Change::DeadGone { queue: scope.queue, id });
            scope.changes.push(Change::Gone { queue: scope.queue, id });
            return Cancelled::Removed;
        }
        let Some(entry) = self.jobs.get(&id) else { return Cancelled::NotFound };
        if entry.stage == Stage::Running {
            if let Some(running) = self.leases.get_mut(&id) {
                running.cancelled = true;
            }
            scope.moved(id);
            return Cancelled::Requested;
        }
        self.withdraw(id);
        self.remove(id, scope);
        Cancelled::Removed
    }

    /// Forgets a cancelled job and its key, which may be used anew.
    pub(crate) fn remove(&mut self, id: u64, scope: &mut Scope<'_>) {
        self.totals.cancelled += 1;
        let Some(entry) = self.drop_job(id) else { return };
        if let Some(key) = entry.terms.as_deref().and_then(|terms| terms.key.as_ref()) {
            self.forget_key(key, scope);
        }
        scope.changes.push(Change::Gone { queue: scope.queue, id });
        self.settle_down(entry.group, scope.now);
    }

    /// Puts a dead letter back into its group, as if it had never failed.
    pub(crate) fn revive(&mut self, id: JobId, scope: &mut Scope<'_>) -> bool {
        let id = id.0;
        let Some(over) = self.history.take_dead(id) else { return false };
        let number = self.groups.number(&over.group);
        let due_ns = scope.now.as_nanos();
        let stage = Stage::Waiting;
        let entry = Entry { group: number, failures: 0, due_ns, stage, ..over.entry };
        scope.changes.push(Change::DeadGone { queue: scope.queue, id });
        scope.moved(id);
        self.admit(id, entry, scope.now);
        true
    }
}
