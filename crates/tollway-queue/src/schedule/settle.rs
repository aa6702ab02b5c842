//! What becomes of a lease: done, failed, refused by the upstream, given back, expired.

use std::time::Duration;

use tollway_core::Timestamp;

use super::change::{Change, QueueChange};
use super::history::EndedJob;
use super::leases::Running;
use super::queue::{Queue, Scope};
use crate::AttemptEnd;
use crate::job::{LeaseToken, MissedDeadline, Outcome, Settled};
use crate::name::QueueName;

/// Why a job is dead that could not start in time; the scripts of Redis say the same.
const DEADLINE_MISSED: &str = "its deadline passed before it could start";

impl Queue {
    /// Says what came of a lease.
    pub(crate) fn settle(
        &mut self,
        token: LeaseToken,
        outcome: Outcome,
        scope: &mut Scope<'_>,
    ) -> Settled {
        let id = token.id.0;
        if !self.holds(token) {
            return self.settled_before(token, &outcome);
        }
        let running = self.release(id);
        if !matches!(outcome, Outcome::Released) {
            self.response_times.observe(scope.now.since(running.leased_at));
        }
        if let Some(end) = AttemptEnd::of(&outcome) {
            self.jobs.of_mut(id).remember(&running, scope.now, end);
        }
        match outcome {
            Outcome::Done { result } => {
                self.answer(id, scope.now, scope);
                self.finish(id, result, scope)
            }
            Outcome::Failed { reason, retry } => {
                self.answer(id, scope.now, scope);
                self.totals.failed += 1;
                self.charge(id, reason, retry, running.cancelled, scope)
            }
            Outcome::Limited { wait } => {
                self.totals.limited += 1;
                let number = self.jobs.of(id).group;
                let group = self.groups.get_mut(number);
                let (gates, limits) = group.gates_mut(&self.settings.group_limits);
                gates.told(limits, running.leased_at, wait, scope.now);
                self.block(number, wait, scope);
                self.put_back_uncharged(id, &running, scope)
            }
            Outcome::Released => self.put_back_uncharged(id, &running, scope),
        }
    }

    /// Has the group of a job that runs wait; whether its lease holds.
    pub(crate) fn hold(
        &mut self,
        token: LeaseToken,
        wait: Duration,
        scope: &mut Scope<'_>,
    ) -> bool {
        let holds = self.holds(token);
        if holds {
            let number = self.jobs.of(token.id.0).group;
            self.block(number, wait, scope);
            self.place_group(number, scope.now);
        }
        holds
    }

    /// Lets a group start nothing for as long as its upstream said. Its place among the groups is
    /// for the caller to find.
    fn block(&mut self, number: u32, wait: Duration, scope: &mut Scope<'_>) {
        let group = self.groups.get_mut(number);
        group.blocked_until = group.blocked_until.max(scope.now.after(wait));
        scope.group_changed(&group.name);
    }

    /// A settlement may be sent twice when its answer was lost.
    fn settled_before(&self, token: LeaseToken, outcome: &Outcome) -> Settled {
        let same = |over: &EndedJob| over.entry.attempt == token.attempt;
        match outcome {
            Outcome::Done { .. } if self.history.done.get(&token.id.0).is_some_and(same) => {
                Settled::Done
            }
            Outcome::Failed { .. } if self.history.dead.get(&token.id.0).is_some_and(same) => {
                Settled::Dead
            }
            _ => Settled::Lost,
        }
    }

    /// Ends a lease, whatever came of it.
    fn release(&mut self, id: u64) -> Running {
        let running = self.leases.remove(id).expect("only leases that hold are ended");
        self.groups.get_mut(self.jobs.of(id).group).running -= 1;
        running
    }

    /// The call of a job was answered, or given up, at `at`: its slots are free a window later.
    fn answer(&mut self, id: u64, at: Timestamp, scope: &mut Scope<'_>) {
        let (number, now) = (self.jobs.of(id).group, scope.now);
        self.change_gates(number, scope, |gate, limit| gate.answer(limit, id, at, now));
    }

    /// Counts every job that runs as answered now, by shared limits that are not among those that
    /// stay.
    pub(crate) fn release_shared(&mut self, stay: &[QueueName], scope: &mut Scope<'_>) {
        for name in self.settings.shared.iter().filter(|name| !stay.contains(name)) {
            let Some((limit, gate)) = scope.shared.get_mut(name) else { continue };
            for id in self.leases.ids() {
                gate.answer(limit, id, scope.now, scope.now);
            }
            scope.shared_touched = true;
            scope.changes.push(Change::Shared(name.clone()));
        }
    }

    /// Gives the units of a job back that was refused or never tried, and puts it where it was.
    fn put_back_uncharged(&mut self, id: u64, running: &Running, scope: &mut Scope<'_>) -> Settled {
        let (number, weight) = (self.jobs.of(id).group, self.jobs.of(id).weight);
        let known = running.refits == Some(*scope.refits);
        let (passed_at, now) = (known.then_some(running.leased_at), scope.now);
        self.change_gates(number, scope, |gate, limit| {
            gate.refund(limit, id, weight, passed_at, now);
            true
        });
        if running.cancelled {
            return self.end_cancelled(id, scope);
        }
        self.put_back(id, scope);
        let blocked_until = self.groups.get(number).blocked_until;
        Settled::Waiting { from: blocked_until.max(now) }
    }

    /// Puts a job back where it was: the head of its group, if it was first before.
    fn put_back(&mut self, id: u64, scope: &mut Scope<'_>) {
        let number = self.jobs.of(id).group;
        self.jobs.wait(id, &mut self.groups);
        scope.moved(id);
        self.place_group(number, scope.now);
    }

    fn finish(&mut self, id: u64, result: Option<bytes::Bytes>, scope: &mut Scope<'_>) -> Settled {
        self.totals.done += 1;
        let over = self.end(id, String::new(), scope);
        scope.note(QueueChange::Gone(id));
        if self.settings.retention.done_max == 0 {
            return Settled::Done;
        }
        scope.note(QueueChange::Done(id, result));
        if let Some(over) = over {
            self.history.remember_done(id, over);
            self.purge_done(scope);
        }
        Settled::Done
    }

    /// Takes a job that ran out of the queue.
    fn end(&mut self, id: u64, reason: String, scope: &Scope<'_>) -> Option<EndedJob> {
        let entry = self.jobs.remove(id)?;
        let group = self.groups.get(entry.group).name.clone();
        self.place_group(entry.group, scope.now);
        Some(EndedJob { group, entry, at: scope.now, reason })
    }

    fn end_cancelled(&mut self, id: u64, scope: &mut Scope<'_>) -> Settled {
        self.remove(id, scope);
        Settled::Cancelled
    }

    /// Charges a job with a failure: it waits for its backoff, or is dead.
    fn charge(
        &mut self,
        id: u64,
        reason: String,
        retry: bool,
        cancelled: bool,
        scope: &mut Scope<'_>,
    ) -> Settled {
        if cancelled {
            return self.end_cancelled(id, scope);
        }
        let entry = self.jobs.of_mut(id);
        entry.failures += 1;
        let overrides = entry.overrides.as_deref();
        let attempts_max = overrides.and_then(|overrides| overrides.attempts_max);
        if !retry || entry.failures >= attempts_max.unwrap_or(self.settings.attempts_max) {
            return self.bury(id, reason, scope);
        }
        let backoff =
            overrides.and_then(|overrides| overrides.backoff).unwrap_or(self.settings.backoff);
        let jitter = self.settings.backoff_jitter;
        let from = scope.now.after(backoff.wait_with_jitter(entry.failures, id, jitter));
        let number = entry.group;
        self.jobs.delay(id, from.as_nanos(), &mut self.groups);
        scope.moved(id);
        self.place_group(number, scope.now);
        Settled::Waiting { from }
    }

    fn bury(&mut self, id: u64, reason: String, scope: &mut Scope<'_>) -> Settled {
        self.totals.dead += 1;
        if let Some(over) = self.end(id, reason, scope) {
            self.history.remember_dead(id, over);
            scope.note(QueueChange::Dead(id));
            self.purge_dead(scope);
        }
        Settled::Dead
    }

    /// Takes out the jobs that can start no more before their deadlines.
    pub(crate) fn miss_deadlines(&mut self, scope: &mut Scope<'_>) {
        while let Some((deadline_ns, id)) = self.jobs.first_deadline()
            && deadline_ns <= scope.now.as_nanos()
        {
            self.jobs.withdraw(id, &mut self.groups);
            self.totals.missed += 1;
            if self.settings.missed_deadline == MissedDeadline::DeadLetter {
                self.bury(id, DEADLINE_MISSED.to_owned(), scope);
            } else {
                self.end(id, String::new(), scope);
                scope.note(QueueChange::Gone(id));
            }
        }
    }

    /// A worker was not heard of in time: its call may have been made just before.
    pub(crate) fn expire(&mut self, id: u64, at: Timestamp, scope: &mut Scope<'_>) {
        let running = self.release(id);
        self.answer(id, at, scope);
        self.totals.expired += 1;
        if running.cancelled {
            self.remove(id, scope);
            return;
        }
        let entry = self.jobs.of_mut(id);
        entry.remember(&running, at, AttemptEnd::Expired);
        entry.failures += 1;
        let attempts_max = entry.overrides.as_deref().and_then(|overrides| overrides.attempts_max);
        if entry.failures >= attempts_max.unwrap_or(self.settings.attempts_max) {
            let reason = format!("the lease of worker {:?} expired", running.worker);
            self.bury(id, reason, scope);
        } else {
            self.put_back(id, scope);
        }
    }
}
