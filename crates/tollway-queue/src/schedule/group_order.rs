//! Whose turn is next: the spot of every group, and when the queue must be looked at again.

use std::collections::BTreeMap;

use tollway_core::Timestamp;

use super::gate::{Gate, Opens};
use super::queue::{Queue, Scope};
use super::turns::Spot;
use crate::{Limit, QueueName};

/// How many delayed jobs wait from one call on, if more come due together: a million at once would
/// let every caller wait for seconds.
const PROMOTED_MAX: u64 = 10_000;

impl Queue {
    /// Finds the right spot for a group after anything about it has changed.
    pub(crate) fn place_group(&mut self, number: u32, now: Timestamp) {
        self.promote(number, now);
        let spot = self.spot(number, now);
        self.move_to(number, spot);
        self.plan_forgetting(number, now);
    }

    /// Lets the delayed jobs of all groups wait whose time has come, so that everybody who looks
    /// sees what a lease will find. No more than [`PROMOTED_MAX`] and the last group's at a time.
    pub(crate) fn promote_due(&mut self, now: Timestamp) {
        let enough = self.jobs.waiting.saturating_add(PROMOTED_MAX);
        while let Some(&(due_ns, number)) = self.due.first()
            && due_ns <= now.as_nanos()
            && self.jobs.waiting < enough
        {
            self.place_group(number, now);
        }
    }

    /// Lets the delayed jobs of a group wait whose time has come.
    fn promote(&mut self, number: u32, now: Timestamp) {
        let due_ns = loop {
            let group = self.groups.get(number);
            let Some((key, _)) = self.jobs.ranks.first(group.delayed) else { break None };
            if key.due_ns > now.as_nanos() {
                break Some(key.due_ns);
            }
            self.jobs.withdraw(key.id, &mut self.groups);
            self.jobs.wait(key.id, &mut self.groups);
        };
        let group = self.groups.get_mut(number);
        if group.due_ns != due_ns {
            if let Some(before) = std::mem::replace(&mut group.due_ns, due_ns) {
                self.due.remove(&(before, number));
            }
            self.due.extend(due_ns.map(|due_ns| (due_ns, number)));
        }
    }

    fn spot(&self, number: u32, now: Timestamp) -> Spot {
        let group = self.groups.get(number);
        if group.paused {
            return Spot::Nowhere;
        }
        let Some((_, weight)) = self.jobs.ranks.first(group.waiting) else {
            let first = self.jobs.ranks.first(group.delayed);
            return first.map_or(Spot::Nowhere, |(place, _)| {
                Spot::Heap(Timestamp::from_nanos(place.due_ns).max(group.blocked_until))
            });
        };
        // A delayed job of a higher priority becomes the first when its time comes.
        let overtaker = self.jobs.ranks.first(group.delayed).filter(|_| self.jobs.has_priorities());
        let overtakes_at = overtaker.map(|(place, _)| Timestamp::from_nanos(place.due_ns));
        match group.opens(&self.settings.group_limits, weight, now) {
            Opens::Unknown => overtakes_at.map_or(Spot::Nowhere, Spot::Heap),
            Opens::At(at) if at > now => {
                Spot::Heap(overtakes_at.map_or(at, |overtakes_at| at.min(overtakes_at)))
            }
            Opens::At(_) => match group.spot {
                // With a new ticket each time, a group that changes often would never be served.
                Spot::Ring(ticket) => Spot::Ring(ticket),
                _ => self.turns.last(),
            },
        }
    }

    pub(crate) fn move_to(&mut self, number: u32, spot: Spot) {
        let group = self.groups.get_mut(number);
        let old = std::mem::replace(&mut group.spot, spot);
        if old == spot {
            return;
        }
        if spot == Spot::Nowhere {
            group.deficit = 0;
        }
        self.turns.move_to(number, old, spot);
    }

    fn plan_forgetting(&mut self, number: u32, now: Timestamp) {
        let group = self.groups.get_mut(number);
        let vacant_at = group.vacant_at(&self.settings.group_limits);
        if vacant_at == group.forget_at && vacant_at.is_none_or(|at| at > now) {
            return;
        }
        if let Some(at) = group.forget_at.take() {
            self.forgettable.remove(&(at, number));
        }
        if let Some(at) = vacant_at {
            group.forget_at = Some(at);
            self.forgettable.insert((at, number));
        }
    }

    /// Forgets the groups that are idle by now.
    pub(crate) fn forget_groups(&mut self, scope: &mut Scope<'_>) {
        while let Some(&(at, number)) = self.forgettable.first()
            && at <= scope.now
        {
            self.forgettable.pop_first();
            let group = self.groups.get(number);
            if group.stored {
                scope.group_changed(&group.name);
            }
            self.groups.forget(number);
        }
    }

    /// When something may start by time alone, or must be looked after.
    pub(crate) fn next(
        &self,
        shared: &BTreeMap<QueueName, (Limit, Gate)>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let others = [self.leases.first().map(|(at, _)| at), self.history.next_recurring()];
        let first = others.into_iter().flatten().min();
        let start = self.next_start(shared, now);
        start.into_iter().chain(first).min()
    }

    fn next_start(
        &self,
        shared: &BTreeMap<QueueName, (Limit, Gate)>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        if self.paused {
            return None;
        }
        let (at, weight) = match self.turns.first_turn() {
            Some((_, number)) => {
                let first = self.jobs.ranks.first(self.groups.get(number).waiting);
                (now, first.map_or(1, |(_, weight)| weight))
            }
            None => (self.turns.first_time()?.0.max(now), 1),
        };
        match self.opens(shared, weight, now) {
            Opens::At(opens) => Some(at.max(opens)),
            Opens::Unknown => None,
        }
    }

    /// When a job of `weight` may start as far as the queue and its shared limits are concerned.
    pub(crate) fn opens(
        &self,
        shared: &BTreeMap<QueueName, (Limit, Gate)>,
        weight: u32,
        now: Timestamp,
    ) -> Opens {
        let own = self.gates.opens(&self.settings.queue_limits, weight, now);
        let shared = self.settings.shared.iter().filter_map(|name| shared.get(name));
        shared.map(|(limit, gate)| gate.opens(limit, weight, now)).fold(own, Opens::max)
    }
}
