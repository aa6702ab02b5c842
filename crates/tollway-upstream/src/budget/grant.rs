//! Who may go now: looks at buckets, notes down when to look again, and lets requests go.

use std::time::Duration;

use tollway_core::Timestamp;

use super::bucket::{Bucket, Busy, Noted, cost_of};
use super::budgets::{Budgets, InFlight, Ticket, Waiter};
use super::meter::{Meter, Sent, When};
use super::sub_limit::SubLimit;
use super::{Knowledge, Settings};
use crate::fair_queue::{QueueKey, has_below};
use crate::profile::{Costs, Route};

/// The waiter that is next in a bucket.
#[derive(Clone, Copy, Debug)]
struct Head {
    sub_limit: usize,
    key: QueueKey,
}

impl Budgets {
    /// Lets the next request go, if one may.
    pub(super) fn grant(&mut self, now: Timestamp) -> Option<(Waiter, Ticket)> {
        self.ring_timers(now);
        // What the limits over all routes do not count need not wait for what they do.
        for counted in [1, 0] {
            let chosen = self.ready_clock.choose(&[(counted, &self.ready[counted])], |_| true);
            let Some((_, key)) = chosen else { continue };
            let Some(&slot) = self.ready[counted].get(&key) else { continue };
            let Some(head) = self.head(slot, now) else {
                self.look_at(slot, now);
                continue;
            };
            let costs = self.costs_of(slot, head)?;
            if counted == 0 && self.gate(&costs, now) != When::Now {
                return None;
            }
            let lower = has_below(&self.ready[counted], key.0);
            self.ready_clock.served(key, lower);
            return self.release(slot, head, now);
        }
        None
    }

    /// When the limits over all routes let the next ready bucket send.
    pub(super) fn gate_opens_at(&self, now: Timestamp) -> Option<Timestamp> {
        if !self.ready[1].is_empty() {
            return Some(now);
        }
        let (_, key) = self.ready_clock.choose(&[(0, &self.ready[0])], |_| true)?;
        let slot = *self.ready[0].get(&key)?;
        let costs = self.head(slot, now).and_then(|head| self.costs_of(slot, head))?;
        match self.gate(&costs, now) {
            When::Now => Some(now),
            When::At(at) => Some(at),
            When::Answer => self.lease_ends_at(&self.account),
        }
    }

    /// Looks at a bucket again and notes down what comes next for it.
    pub(super) fn look_at(&mut self, slot: u32, now: Timestamp) {
        loop {
            let Some(bucket) = self.table.get(slot) else { return };
            let Some(busy) = bucket.busy.as_deref() else { return };
            if busy.queued == 0 {
                self.note(slot, None);
                if let Some(bucket) = self.table.get_mut(slot) {
                    bucket.settle(now);
                }
                return;
            }
            let when = self.own_readiness(bucket, busy, now);
            let noted = match when {
                (When::Now, Some(head)) => self.ready_key(slot, head),
                (When::At(at), _) => Some(Noted::Timer(at)),
                (When::Now | When::Answer, _) => match self.lease_ends_at(bucket) {
                    Some(at) if at <= now => {
                        self.expire_oldest(slot, now);
                        continue;
                    }
                    Some(at) => Some(Noted::Timer(at)),
                    // Nothing is in flight that could answer: look again rather than never.
                    None => Some(Noted::Timer(now.after(self.settings.linger))),
                },
            };
            return self.note(slot, noted);
        }
    }

    /// Sends a request off.
    pub(super) fn depart(
        &mut self,
        slot: Option<u32>,
        sub_limit: usize,
        route: Route,
        costs: Costs,
        now: Timestamp,
    ) -> Ticket {
        self.event += 1;
        self.ids += 1;
        let id = self.ids;
        if let Some(slot) = slot {
            let is_silent = self.table.get(slot).is_some_and(Bucket::is_silent);
            if let Some(busy) = self.busy_mut(slot) {
                busy.flights.push_back(id);
                busy.sub_limits[sub_limit].send(id, is_silent, now);
                send_all(&mut busy.meters, &costs, now);
            }
            if !route.is_exempt_from_global() {
                if let Some(global) = &mut self.global {
                    global.send(1, now);
                }
                if let Some(busy) = self.account.busy.as_deref_mut() {
                    busy.flights.push_back(id);
                    send_all(&mut busy.meters, &costs, now);
                }
                if let Some(pacing) = &mut self.pacing {
                    pacing.send(Ticket(id), &costs, now);
                }
            }
        }
        let (event, at) = (self.event, now);
        let flight = InFlight { slot, sub_limit, route, costs, event, at, counted: true };
        self.flights.insert(id, flight);
        Ticket(id)
    }

    /// Removes a request that is no longer in flight, each meter settled by `settle`.
    pub(super) fn forget_flight(
        &mut self,
        ticket: Ticket,
        now: Timestamp,
        settle: impl Fn(&mut Meter, &Sent, &Settings),
    ) {
        let Some(flight) = self.flights.remove(&ticket.0) else { return };
        self.event += 1;
        let settings = self.settings;
        let Some(slot) = flight.slot else { return };
        if !flight.route.is_exempt_from_global() {
            remove_in_flight(&mut self.account, ticket.0);
            self.account.end_probe(flight.at);
            for meter in self.account.busy.iter_mut().flat_map(|busy| &mut busy.meters) {
                settle(meter, &flight.sent(meter.dimension), &settings);
            }
        }
        if let Some(bucket) = self.table.get_mut(slot) {
            remove_in_flight(bucket, ticket.0);
            if let Some(busy) = bucket.busy.as_deref_mut() {
                if flight.counted {
                    busy.leave_sub_limit(flight.sub_limit);
                }
                busy.end_in_sub_limit(flight.sub_limit, ticket.0);
                for meter in &mut busy.meters {
                    settle(meter, &flight.sent(meter.dimension), &settings);
                }
            }
        }
        self.look_at(slot, now);
    }

    /// When what every request of the credential needs is there for `costs`.
    fn gate(&self, costs: &Costs, now: Timestamp) -> When {
        let Some(busy) = self.account.busy.as_deref() else { return When::Now };
        if let Some(until) = self.account.is_blocked_until(now) {
            return When::At(until);
        }
        if let Some(until) = self.account.waits_for_probe_until(now, self.settings.lease) {
            return When::At(until);
        }
        let in_flight = busy.flights.len();
        let full = self.profile.concurrency().is_some_and(|most| in_flight >= most as usize);
        if full || self.awaits_probe(&self.account, busy, now) {
            return When::Answer;
        }
        let global = self.global.as_ref().map_or(now, |global| global.ready_at(1, now));
        let global = if global <= now { When::Now } else { When::At(global) };
        let slot = self.pacing.as_ref().map_or(When::Now, |pacing| pacing.ready_at(costs, now));
        global.max(busy.meters_ready(costs, now)).max(slot)
    }

    /// Whether an answer is awaited that tells what is not known, and nobody else may go before.
    pub(super) fn awaits_probe(&self, bucket: &Bucket, busy: &Busy, now: Timestamp) -> bool {
        let in_flight = busy.flights.len();
        let first_burst = bucket.first_burst(self.profile.first_burst());
        let is_unknown = bucket.knowledge == Knowledge::Unknown && in_flight >= first_burst;
        is_unknown || (in_flight > 0 && busy.needs_probe(now))
    }

    /// When a bucket may send, as far as it is concerned itself, and its next waiter.
    fn own_readiness(&self, bucket: &Bucket, busy: &Busy, now: Timestamp) -> (When, Option<Head>) {
        if let Some(until) = bucket.is_blocked_until(now) {
            return (When::At(until), None);
        }
        let is_silent = bucket.is_silent();
        let Some(head) = head_of(busy, is_silent, now) else {
            let waiting = busy.sub_limits.iter().filter(|sub_limit| !sub_limit.queue.is_empty());
            let when = waiting.map(|sub_limit| sub_limit.ready(is_silent, now)).min();
            return (when.unwrap_or(When::Answer), None);
        };
        let in_flight = busy.flights.len();
        let is_full = is_silent && in_flight >= self.settings.in_flight_max as usize;
        if is_full || self.awaits_probe(bucket, busy, now) {
            return (When::Answer, None);
        }
        let queue = &busy.sub_limits[head.sub_limit].queue;
        let costs = queue.get(&head.key).map(|waiting| waiting.costs);
        let when = costs.map_or(When::Now, |costs| busy.meters_ready(&costs, now));
        match when {
            // Nothing is in flight that could answer, so nothing is gained by waiting for one.
            When::Answer if in_flight == 0 => (When::Now, Some(head)),
            when => (when, Some(head)),
        }
    }

    fn ring_timers(&mut self, now: Timestamp) {
        while let Some(&(at, slot)) = self.timers.first() {
            if at > now {
                break;
            }
            self.look_at(slot, now);
            // Looking again must not find the same moment, or this would go on for ever.
            if self.timers.first() == Some(&(at, slot)) {
                self.note(slot, Some(Noted::Timer(now.after(self.settings.linger))));
            }
        }
        if let Some(at) = self.lease_ends_at(&self.account)
            && at <= now
            && !self.ready[0].is_empty()
        {
            self.expire_oldest_of_account(now);
        }
    }

    fn head(&self, slot: u32, now: Timestamp) -> Option<Head> {
        let is_silent = self.table.get(slot)?.is_silent();
        head_of(self.busy(slot)?, is_silent, now)
    }

    fn costs_of(&self, slot: u32, head: Head) -> Option<Costs> {
        let busy = self.busy(slot)?;
        busy.sub_limits.get(head.sub_limit)?.queue.get(&head.key).map(|waiting| waiting.costs)
    }

    /// The key of a ready bucket among the others, the old one if it is still the same head.
    fn ready_key(&mut self, slot: u32, head: Head) -> Option<Noted> {
        let busy = self.busy(slot)?;
        let waiting = busy.sub_limits.get(head.sub_limit)?.queue.get(&head.key)?;
        let exempt = waiting.route.is_exempt_from_global();
        if let Some(Noted::Ready { key, exempt: was }) = busy.noted
            && key.2 == waiting.id
            && was == exempt
        {
            return busy.noted;
        }
        let waiting = waiting.clone();
        let key = waiting.key(&mut self.ready_clock);
        Some(Noted::Ready { key, exempt })
    }

    fn note(&mut self, slot: u32, noted: Option<Noted>) {
        let Some(busy) = self.busy_mut(slot) else { return };
        let before = std::mem::replace(&mut busy.noted, noted);
        if before == noted {
            return;
        }
        match before {
            // A request that has moved to another bucket may have taken its place along.
            Some(Noted::Ready { key, exempt })
                if self.ready[usize::from(exempt)].get(&key) == Some(&slot) =>
            {
                self.ready[usize::from(exempt)].remove(&key);
            }
            Some(Noted::Ready { .. }) => {}
            Some(Noted::Timer(at)) => {
                self.timers.remove(&(at, slot));
            }
            None => {}
        }
        match noted {
            Some(Noted::Ready { key, exempt }) => {
                self.ready[usize::from(exempt)].insert(key, slot);
            }
            Some(Noted::Timer(at)) => {
                self.timers.insert((at, slot));
            }
            None => {}
        }
    }

    /// Lets the head of a bucket go.
    fn release(&mut self, slot: u32, head: Head, now: Timestamp) -> Option<(Waiter, Ticket)> {
        let busy = self.busy(slot)?;
        let id = busy.sub_limits.get(head.sub_limit)?.queue.get(&head.key)?.id;
        let lower = busy.sub_limits.iter().any(|sub_limit| has_below(&sub_limit.queue, head.key.0));
        let waiting = self.unqueue(id)?;
        if let Some(bucket) = self.table.get_mut(slot) {
            bucket.used_s = u32::try_from(now.as_nanos() / 1_000_000_000).unwrap_or(u32::MAX);
            if let Some(busy) = bucket.busy.as_deref_mut() {
                busy.clock.served(head.key, lower);
            }
        }
        if !waiting.route.is_exempt_from_global() {
            self.account.begin_probe(now);
        }
        let ticket = self.depart(Some(slot), head.sub_limit, waiting.route, waiting.costs, now);
        self.look_at(slot, now);
        Some((Waiter(id), ticket))
    }

    /// When the oldest request in flight has kept the others waiting for long enough.
    fn lease_ends_at(&self, bucket: &Bucket) -> Option<Timestamp> {
        let oldest = bucket.busy.as_deref()?.flights.front()?;
        self.flights.get(oldest).map(|flight| flight.at.after(self.settings.lease))
    }

    /// The oldest request in flight no longer keeps others waiting: it may be lost.
    fn expire_oldest(&mut self, slot: u32, now: Timestamp) {
        let Settings { linger, lease, .. } = self.settings;
        // Not `busy_mut`: the request that expires is borrowed beside the bucket.
        let Some(busy) = self.table.get_mut(slot).and_then(|it| it.busy.as_deref_mut()) else {
            return;
        };
        let Some(id) = busy.flights.pop_front() else { return };
        if let Some(flight) = self.flights.get_mut(&id).filter(|flight| flight.counted) {
            busy.miss(flight, linger, lease, now);
            busy.leave_sub_limit(flight.sub_limit);
            busy.end_in_sub_limit(flight.sub_limit, id);
            flight.counted = false;
        }
    }

    fn expire_oldest_of_account(&mut self, now: Timestamp) {
        let Settings { linger, lease, .. } = self.settings;
        let Some(busy) = self.account.busy.as_deref_mut() else { return };
        if let Some(flight) = busy.flights.pop_front().and_then(|id| self.flights.get(&id)) {
            busy.miss(flight, linger, lease, now);
        }
    }
}

impl InFlight {
    pub(super) fn sent(&self, dimension: u8) -> Sent {
        let cost = cost_of(&self.costs, dimension);
        Sent { event: self.event, at: self.at, cost, counted: self.counted, is_heard: false }
    }
}

impl Busy {
    /// No answer to `flight` is waited for any more.
    fn miss(&mut self, flight: &InFlight, linger: Duration, lease: Duration, now: Timestamp) {
        for meter in &mut self.meters {
            meter.miss(&flight.sent(meter.dimension), linger, lease, now);
        }
    }

    pub(super) fn leave_sub_limit(&mut self, sub_limit: usize) {
        if let Some(sub_limit) = self.sub_limits.get_mut(sub_limit) {
            sub_limit.leave();
        }
    }

    /// A request ended without saying anything of its sub-limit.
    pub(super) fn end_in_sub_limit(&mut self, sub_limit: usize, id: u64) {
        if let Some(sub_limit) = self.sub_limits.get_mut(sub_limit) {
            sub_limit.end(id);
        }
    }
}

/// Removes a ticket from those in flight in a bucket.
pub(super) fn remove_in_flight(bucket: &mut Bucket, id: u64) {
    if let Some(busy) = bucket.busy.as_deref_mut()
        && let Some(index) = busy.flights.iter().position(|flight| *flight == id)
    {
        busy.flights.remove(index);
    }
}

fn send_all(meters: &mut [Meter], costs: &Costs, now: Timestamp) {
    for meter in meters {
        meter.send(cost_of(costs, meter.dimension), now);
    }
}

/// The waiter that is next among the sub-limits that may send.
fn head_of(busy: &Busy, is_silent: bool, now: Timestamp) -> Option<Head> {
    let is_open = |sub_limit: &SubLimit| {
        !sub_limit.queue.is_empty() && sub_limit.ready(is_silent, now) == When::Now
    };
    let open: Vec<_> = busy
        .sub_limits
        .iter()
        .enumerate()
        .filter(|(_, sub_limit)| is_open(sub_limit))
        .map(|(index, sub_limit)| (index, &sub_limit.queue))
        .collect();
    busy.clock.choose(&open, |_| true).map(|(sub_limit, key)| Head { sub_limit, key })
}
