//! Whose turn is next: the spot of every group, and when the queue must be looked at again.

use std::collections::BTreeMap;

use tollway_core::Timestamp;

use super::gate::{Gate, Opens};
use super::group::Spot;
use super::queue::{Queue, Scope};
use crate::{Limit, QueueName};

impl Queue {
    /// Finds the right spot for a group after anything about it has changed.
    pub(crate) fn settle_down(&mut self, number: u32, now: Timestamp) {
        self.promote(number, now);
        let spot = self.spot(number, now);
        self.move_to(number, spot);
        self.plan_forgetting(number, now);
    }

    /// Lets the delayed jobs of a group wait whose time has come.
    fn promote(&mut self, number: u32, now: Timestamp) {
        loop {
            let group = self.groups.get_mut(number);
            let Some((place, _)) = self.ranks.first(group.delayed) else { return };
            if place.due_ns > now.as_nanos() {
                return;
            }
            self.ranks.remove(&mut group.delayed, place);
            let mut entry = self.jobs[&place.id].clone();
            self.wait(place.id, &mut entry);
            self.jobs.insert(place.id, entry);
        }
    }

    fn spot(&self, number: u32, now: Timestamp) -> Spot {
        let group = self.groups.get(number);
        if group.paused {
            return Spot::Nowhere;
        }
        let Some((_, weight)) = self.ranks.first(group.waiting) else {
            let first = self.ranks.first(group.delayed);
            return first.map_or(Spot::Nowhere, |(place, _)| {
                Spot::Heap(Timestamp::from_nanos(place.due_ns).max(group.blocked_until))
            });
        };
        // A delayed job of a higher priority becomes the first when its time comes.
        let (lowest, highest) = self.priorities;
        let overtaker = self.ranks.first(group.delayed).filter(|_| lowest < highest);
        let overtakes_at = overtaker.map(|(place, _)| Timestamp::from_nanos(place.due_ns));
        match group.opens(&self.settings.group_limits, weight, now) {
            Opens::Unknown => overtakes_at.map_or(Spot::Nowhere, Spot::Heap),
            Opens::At(at) if at > now => {
                Spot::Heap(overtakes_at.map_or(at, |overtakes_at| at.min(overtakes_at)))
            }
            Opens::At(_) => match group.spot {
                Spot::Ring(ticket) => Spot::Ring(ticket),
                _ => Spot::Ring(self.next_ticket),
            },
        }
    }

    pub(crate) fn move_to(&mut self, number: u32, spot: Spot) {
        let group = self.groups.get_mut(number);
        let old = std::mem::replace(&mut group.spot, spot);
        if old == spot {
            return;
        }
        match old {
            Spot::Heap(at) => {
                self.heap.remove(&(at, number));
            }
            Spot::Ring(ticket) => {
                self.ring.remove(&ticket);
            }
            Spot::Nowhere => {}
        }
        match spot {
            Spot::Heap(at) => {
                self.heap.insert((at, number));
            }
            Spot::Ring(ticket) => {
                self.ring.insert(ticket, number);
                self.next_ticket = self.next_ticket.max(ticket + 1);
            }
            Spot::Nowhere => group.deficit = 0,
        }
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
        let others = [self.expiries.first().map(|(at, _)| *at), self.history.next_recurring()];
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
        let (at, weight) = match self.ring.first_key_value() {
            Some((_, number)) => {
                let first = self.ranks.first(self.groups.get(*number).waiting);
                (now, first.map_or(1, |(_, weight)| weight))
            }
            None => (self.heap.first()?.0.max(now), 1),
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
