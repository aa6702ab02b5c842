//! What Spectacles clients do beside the documents: they take units, open windows and learn of
//! ends, and the counter alone shows it.

use std::time::Duration;

use tollway_core::Timestamp;

use super::counter::{Counter, CounterCall, ENDS_APART, Mirror};
use super::documents::{Documents, Owner, Standing};
use crate::budget::Claim;
use crate::profile::{Costs, Observation, Reading, Route, RouteFields};

/// Clients of the specification, as if they were a process of ours.
pub(super) const OLD_CLIENTS: u64 = 0;

fn old_clients_route(bucket: &str) -> Route {
    let class = Some(bucket.into());
    Route::of_fields(RouteFields { name: "old clients".into(), class, ..RouteFields::default() })
}

/// Whether a counter is about to be gone.
fn is_ending(counter: &Counter, now: Timestamp) -> bool {
    counter.until.is_some_and(|at| at <= now.after(Duration::from_millis(2)))
}

fn ends_soon(until: Option<Timestamp>, now: Timestamp) -> bool {
    until.is_some_and(|at| at <= now.after(ENDS_APART))
}

impl Documents {
    /// Whether the store's counter says something that the documents do not.
    pub(super) fn is_news(&self, counter: &Counter, now: Timestamp) -> bool {
        self.bucket.is_some() && self.mirror.differs(counter, now)
    }

    /// Whether an old client's request is waited for, whose answer comes without a message.
    pub(super) fn awaits_old_client(&self) -> bool {
        self.owners.values().any(|owner| owner.process == OLD_CLIENTS)
    }

    /// What the counter is expected to say, and what it is to say after this transition.
    pub(super) fn reflect(&mut self, unlimited: i64, now: Timestamp) -> CounterCall {
        let Some(bucket) = &self.bucket else { return CounterCall::default() };
        let expected = self.mirror.at(now);
        let said = self.budgets.counter(bucket, now);
        let whole = |units: u64| i64::try_from(units).unwrap_or(i64::MAX);
        let wanted = if said.is_silent {
            // Whoever has seen the first request of it would wait for its answer for ever.
            let is_spent = expected.left.is_some_and(|left| left < 1);
            let kept = if is_spent { Mirror::default() } else { expected };
            Mirror { limit: Some(unlimited), ..kept }
        } else {
            let (left, limit) = (said.left.map(whole), said.limit.map(whole));
            // Old clients that have opened the next window wait for its answers, not for the end of
            // this one.
            let is_over = self.awaits_old_client() && ends_soon(said.until, now);
            let until = said.until.filter(|_| !is_over);
            Mirror { left, until, limit: limit.or(expected.limit) }
        };
        self.mirror = wanted;
        CounterCall { expected, written: (wanted != expected).then_some(wanted) }
    }

    /// Learns from what old clients have written.
    pub(super) fn beside(&mut self, counter: &Counter, now: Timestamp) {
        let Some(bucket) = self.bucket.clone() else { return };
        let known = self.mirror.beside(counter, now);
        if let Some(limit) = counter.limit {
            self.budgets.hint_limit(&bucket, limit, now);
        }
        let said = self.budgets.counter(&bucket, now);
        let ours = said.limit.and_then(|limit| i64::try_from(limit).ok());
        let limit = ours.or(counter.limit.filter(|limit| *limit > 0)).unwrap_or(1);
        let left = counter.left.map(|left| left.max(0));
        let taken = match (known.left, left) {
            (Some(known), Some(left)) => known - left,
            // In its last millisecond a key is there and not there.
            (None, Some(left)) if self.mirror.left == Some(left) && is_ending(counter, now) => 0,
            (None, Some(left)) => limit - left,
            // It had no end, and is gone: nobody knows what was taken of it before.
            (Some(known), None) if self.mirror.until.is_none() => known,
            _ => 0,
        };
        if let Ok(units @ 1..) = u32::try_from(taken)
            && !said.is_silent
        {
            // Units of the next window must not be forgotten with this one.
            let is_of_next = known.until.is_none() && ends_soon(said.until, now);
            if said.until.is_some() && !is_of_next {
                self.budgets.take_unseen(&bucket, units, now);
            } else {
                self.await_old_client(&bucket, units, now);
            }
        }
        // An end that is here tells of no window: a late answer may have put it there.
        if let (Some(until), Some(left), None) = (counter.until, left, known.until)
            && !is_ending(counter, now)
        {
            self.hear_of_window(&bucket, [limit, left], until.since(now), now);
        }
        self.mirror = counter.mirror();
    }

    /// An old client's request is under way, and will tell of the window.
    fn await_old_client(&mut self, bucket: &str, units: u32, now: Timestamp) {
        let mut costs = Costs::default();
        costs[self.terms.main_dimension()] = units;
        let claim = Claim { costs, ..Claim::new(old_clients_route(bucket)) };
        if let Some(ticket) = self.budgets.adopt(&claim, now, true, now) {
            let owner = Owner { process: OLD_CLIENTS, number: ticket.0 };
            self.put(owner, ticket.0, Standing::Flies(ticket));
        }
    }

    /// The counter has got an end: an old client's answer has told of the window. Of which request
    /// nobody knows, so the others may be on their way still, and an answer to ours may tell of
    /// more than is left when they have arrived.
    fn hear_of_window(
        &mut self,
        bucket: &str,
        [limit, left]: [i64; 2],
        ends: Duration,
        now: Timestamp,
    ) {
        let dimension = self.terms.main_dimension();
        let under_way = self.budgets.units_in_flight(dimension);
        let whole = |number: i64| u64::try_from(number).unwrap_or(0);
        let reading = Reading {
            dimension: dimension as u8,
            limit: Some(whole(limit)),
            remaining: Some(whole(left) + under_way),
            reset_after: Some(ends),
            told_after: true,
            ..Reading::default()
        };
        let observation = Observation { readings: vec![reading], ..Observation::default() };
        let mut theirs = 0;
        for (number, _) in self.of_process(OLD_CLIENTS) {
            let owner = Owner { process: OLD_CLIENTS, number };
            let Some(Standing::Flies(ticket)) = self.remove(owner, false) else { continue };
            theirs += self.budgets.cost_of(ticket, dimension);
            self.budgets.observe(ticket, &observation, now);
        }
        self.budgets.take_unseen(bucket, u32::try_from(theirs).unwrap_or(u32::MAX), now);
    }

    /// An answer to a request that left at `left` has told of the window. What old clients sent
    /// before is counted in it, or was in the last one: nobody waits for more of them.
    pub(super) fn count_old_clients(&mut self, left: Timestamp, now: Timestamp) {
        let Some(bucket) = self.bucket.clone() else { return };
        if self.budgets.counter(&bucket, now).until.is_none() {
            return;
        }
        for (number, _) in self.of_process(OLD_CLIENTS) {
            let owner = Owner { process: OLD_CLIENTS, number };
            if self.left_at(owner) <= left
                && let Some(Standing::Flies(ticket)) = self.remove(owner, false)
            {
                let units = self.budgets.cost_of(ticket, self.terms.main_dimension());
                self.budgets.cancel(ticket, now);
                self.budgets.take_unseen(&bucket, u32::try_from(units).unwrap_or(u32::MAX), now);
            }
        }
    }

    /// A request of an old client has no lease: nobody waits for it for longer than one.
    pub(super) fn forget_old_clients(&mut self, now: Timestamp) {
        if self.bucket.is_none() {
            return;
        }
        for (number, _) in self.of_process(OLD_CLIENTS) {
            let owner = Owner { process: OLD_CLIENTS, number };
            if self.left_at(owner).after(self.terms.old_client_lease) <= now
                && let Some(Standing::Flies(ticket)) = self.remove(owner, false)
            {
                self.budgets.cancel(ticket, now);
            }
        }
    }
}
