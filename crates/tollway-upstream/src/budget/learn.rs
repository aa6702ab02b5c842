//! What an answer teaches: which bucket counted the request, what is left in it, whom a refusal
//! concerns.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tollway_core::Timestamp;

use super::bucket::{Bucket, Busy, Refused, cost_of};
use super::budgets::{Budgets, InFlight, Ticket};
use super::grant::remove_in_flight;
use super::hidden_limit;
use super::meter::{Meter, Sent};
use super::names::Names;
use super::part::OwnPart;
use super::{Claim, Knowledge, Settings};
use crate::pace::Outcome;
use crate::profile::{DIMENSIONS_MAX, Dimension, Observation, Reach, Reading, Route, Scope};

/// The longest wait after refusals that do not say one.
const UNSAID_MAX: Duration = Duration::from_secs(300);

impl Budgets {
    /// Learns from the answer to `ticket`.
    pub fn observe(&mut self, ticket: Ticket, observation: &Observation, now: Timestamp) {
        self.take_in(ticket, observation, false, now);
    }

    /// Others told what was left, when they still could; the next request goes alone.
    pub fn hear(&mut self, claim: &Claim, observation: &Observation, now: Timestamp) {
        let claim = Claim { patience: None, costs: [0; DIMENSIONS_MAX], ..claim.clone() };
        let Ok(slot) = self.bucket_for(&claim, now) else { return };
        let profile = Arc::clone(&self.profile);
        let Some(bucket) = self.table.get_mut(slot) else { return };
        let busy = bucket.wake(profile.dimensions());
        let sub_limit = busy.sub_limit(&claim.route, &profile);
        let ticket = self.depart(Some(slot), sub_limit, claim.route, claim.costs, now);
        self.take_in(ticket, observation, true, now);
    }

    fn take_in(&mut self, ticket: Ticket, observation: &Observation, heard: bool, now: Timestamp) {
        let Some(flight) = self.flights.get(&ticket.0).cloned() else { return };
        self.event += 1;
        if let Some(pacing) = &mut self.pacing {
            pacing.observe(ticket, observation, now);
        }
        if let Some(date) = observation.date {
            self.skew.observe(date, flight.at, now);
        }
        let Some(claimed) = flight.slot else {
            self.flights.remove(&ticket.0);
            return;
        };
        let slot = self.identify(ticket, &flight, observation, now).unwrap_or(claimed);
        let knew = self.knowledge(slot);
        // Moving to another bucket may have moved it to another sub-limit.
        let flight = self.flights.remove(&ticket.0).unwrap_or(flight);
        let resets: Vec<_> = observation.readings.iter().map(|it| self.reset(it, now)).collect();
        let learning = Learning {
            flight: &flight,
            observation,
            resets: &resets,
            event: self.event,
            settings: self.settings,
            dimensions: self.profile.dimensions(),
            now,
            is_heard: heard,
            part: self.part,
            may_be_silent: observation.malformed == 0 && !self.names.knows(&flight.route),
        };
        if !flight.route.is_exempt_from_global() {
            remove_in_flight(&mut self.account, ticket.0);
            learning.apply(&mut self.account, Reach::Credential, &[]);
        }
        let others = self.flights_to_count(slot, ticket.0, observation);
        if let Some(bucket) = self.table.get_mut(slot) {
            remove_in_flight(bucket, ticket.0);
            learning.apply(bucket, Reach::Bucket, &others);
        }
        if observation.is_limited() {
            self.refuse(slot, ticket, &flight, observation, now);
        } else if observation.outcome == Outcome::Accepted {
            self.accept(slot, ticket, &flight, now);
        } else {
            self.fail(slot, ticket, &flight);
        }
        self.note_answer(slot, knew, &flight, observation, now);
        self.look_at(slot, now);
        if claimed != slot {
            self.look_at(claimed, now);
            self.forget_if_empty(claimed);
        }
    }

    /// Time until a reset: as told, or by the best knowledge of the upstream's clock.
    fn reset(&self, reading: &Reading, now: Timestamp) -> Option<Duration> {
        match (reading.told_after, reading.resets_at) {
            (false, Some(instant)) => {
                let by_clock = self.skew.until(instant, now);
                by_clock.map_or(reading.reset_after, |until| {
                    reading.reset_after.map(|it| it.min(until))
                })
            }
            _ => reading.reset_after,
        }
    }

    /// The bucket that counted the request, by the upstream's own name for it.
    fn identify(
        &mut self,
        ticket: Ticket,
        flight: &InFlight,
        observation: &Observation,
        now: Timestamp,
    ) -> Option<u32> {
        let hash = observation.bucket.as_ref()?;
        let name = Names::hashed(hash, &flight.route);
        let from = flight.slot?;
        if self.table.get(from).is_some_and(|bucket| *bucket.name == *name) {
            return Some(from);
        }
        let to = self.table.entry(&name, now)?;
        // A name of which nothing is known but itself may be garbled.
        let is_known = self.knowledge(from) == Knowledge::Known;
        if is_known && self.names.is_outdated(&flight.route, hash, flight.event) {
            self.move_flight(ticket.0, from, to);
        } else if !self.rename(&flight.route, hash, self.event, now) {
            self.move_route(from, to, &flight.route);
        }
        Some(to)
    }

    /// Remembers what the upstream calls the buckets of a route. If they had no name, it moves
    /// everything of the route there, whatever its major parameter: what is under way is counted by
    /// these buckets. Whether it did.
    ///
    /// A bucket that had another name is left as it is until an answer of its own comes: what it
    /// has counted holds until its window ends, and of the new one nothing is known.
    pub(super) fn rename(&mut self, route: &Route, hash: &str, since: u64, now: Timestamp) -> bool {
        let had_none = !self.names.knows(route);
        if !self.names.learn(route.shape(), hash, since) || !had_none {
            return false;
        }
        let is_its = |other: &Route| other.shape() == route.shape();
        let flying = self.flights.values().filter(|flight| is_its(&flight.route));
        let flying = flying.filter_map(|flight| Some((flight.slot?, flight.route.clone())));
        let waiting = self.waiters.values().filter_map(|at| {
            let waiting = self.busy(at.slot)?.sub_limits.get(at.sub_limit)?.queue.get(&at.key)?;
            is_its(&waiting.route).then(|| (at.slot, waiting.route.clone()))
        });
        let mut moved: BTreeMap<u32, Route> = flying.collect();
        moved.extend(waiting);
        for (from, route) in moved {
            let Some(to) = self.table.entry(&Names::hashed(hash, &route), now) else { continue };
            if to != from {
                self.move_route(from, to, &route);
                self.look_at(from, now);
                self.look_at(to, now);
                self.forget_if_empty(from);
            }
        }
        true
    }

    /// Moves everything of a route, waiting or in flight, to the bucket that counts it.
    fn move_route(&mut self, from: u32, to: u32, route: &Route) {
        let is_its =
            |other: &Route| other.shape() == route.shape() && other.major() == route.major();
        let mut flying: Vec<u64> = self
            .flights
            .iter()
            .filter(|(_, flight)| flight.slot == Some(from) && is_its(&flight.route))
            .map(|(id, _)| *id)
            .collect();
        flying.sort_unstable();
        for id in flying {
            self.move_flight(id, from, to);
        }
        let Some(busy) = self.busy(from) else { return };
        let lines = busy.sub_limits.iter().flat_map(|sub_limit| sub_limit.queue.iter());
        let mut waiting: Vec<u64> =
            lines.filter(|(_, it)| is_its(&it.route)).map(|(_, it)| it.id).collect();
        waiting.sort_unstable();
        for id in waiting {
            if let Some(waiting) = self.unqueue(id) {
                self.deadlines.extend(waiting.deadline.map(|at| (at, id)));
                self.queued_bytes += waiting.bytes;
                self.enqueue_in(to, waiting);
            }
        }
    }

    fn move_flight(&mut self, id: u64, from: u32, to: u32) {
        let profile = Arc::clone(&self.profile);
        let Some(flight) = self.flights.get_mut(&id) else { return };
        let was_in_flight = flight.counted;
        if let Some(bucket) = self.table.get_mut(from) {
            remove_in_flight(bucket, id);
            if let Some(busy) = bucket.busy.as_deref_mut().filter(|_| was_in_flight) {
                busy.leave_sub_limit(flight.sub_limit);
                busy.end_in_sub_limit(flight.sub_limit, id);
                for meter in &mut busy.meters {
                    meter.cancel(&flight.sent(meter.dimension));
                }
            }
        }
        let Some(bucket) = self.table.get_mut(to) else { return };
        let busy = bucket.wake(profile.dimensions());
        flight.slot = Some(to);
        flight.sub_limit = busy.sub_limit(&flight.route, &profile);
        if was_in_flight {
            let at = busy.flights.partition_point(|other| *other < id);
            busy.flights.insert(at, id);
            busy.sub_limits[flight.sub_limit].in_flight += 1;
            for meter in &mut busy.meters {
                meter.in_flight += cost_of(&flight.costs, meter.dimension);
            }
        }
    }

    /// The other requests in flight in a bucket, if a meter is to be made that has to count them.
    fn flights_to_count(&self, slot: u32, except: u64, observation: &Observation) -> Vec<InFlight> {
        let Some(busy) = self.busy(slot) else { return Vec::new() };
        let has = |reading: &Reading| {
            let key = (reading.dimension, reading.part);
            busy.meters.iter().any(|meter| (meter.dimension, meter.part) == key)
        };
        if observation.readings.iter().all(has) {
            return Vec::new();
        }
        let ids = busy.flights.iter().filter(|id| **id != except);
        ids.filter_map(|id| self.flights.get(id)).filter(|it| it.counted).cloned().collect()
    }

    fn forget_if_empty(&mut self, slot: u32) {
        let empty = |bucket: &Bucket| {
            bucket.knowledge == Knowledge::Unknown
                && bucket
                    .busy
                    .as_deref()
                    .is_none_or(|busy| busy.flights.is_empty() && busy.queued == 0)
                && bucket.refusal.is_none()
        };
        if self.table.get(slot).is_some_and(empty) {
            self.table.remove(slot);
        }
    }

    fn accept(&mut self, slot: u32, ticket: Ticket, flight: &InFlight, now: Timestamp) {
        if !flight.route.is_exempt_from_global() {
            self.account.free(flight.at);
        }
        let Some(bucket) = self.table.get_mut(slot) else { return };
        if let Some(refused) = bucket.refusal.as_deref_mut() {
            refused.in_a_row = 0;
        }
        let (is_silent, most) = (bucket.is_silent(), self.profile.opens_up_to());
        let sub_limit = bucket.busy.as_mut().and_then(|it| it.sub_limits.get_mut(flight.sub_limit));
        if let Some(sub_limit) = sub_limit.filter(|it| is_silent || it.is_watched()) {
            sub_limit.accept(ticket.0, flight.at, most, now);
        }
    }

    /// The upstream failed, which tells nothing of limits.
    fn fail(&mut self, slot: u32, ticket: Ticket, flight: &InFlight) {
        self.account.end_probe(flight.at);
        if let Some(busy) = self.busy_mut(slot) {
            busy.end_in_sub_limit(flight.sub_limit, ticket.0);
        }
    }

    fn refuse(
        &mut self,
        slot: u32,
        ticket: Ticket,
        flight: &InFlight,
        observation: &Observation,
        now: Timestamp,
    ) {
        let concerns = observation.concerns();
        let is_global = concerns == Scope::Global;
        if !is_global {
            // The credential as such is served.
            self.account.free(flight.at);
        }
        let lane_wait = self.refuse_sub_limit((slot, ticket), flight, observation, now);
        let event = self.event;
        let unsaid = self.profile.retry_unsaid();
        let bucket = if is_global { Some(&mut self.account) } else { self.table.get_mut(slot) };
        let Some(bucket) = bucket else { return };
        let refused = Refused::next(bucket.refusal.as_deref(), flight, observation, unsaid, now);
        let told = observation.readings.iter().any(|it| it.remaining.is_some());
        let blocks = is_global || (lane_wait.is_none() && !told);
        let before = bucket.refusal.as_deref().map_or(Timestamp::MIN, |it| it.blocked_until);
        let until = now.after(refused.wait);
        bucket.refusal = Some(Box::new(match lane_wait {
            Some(wait) if !is_global => Refused { wait, blocked_until: before, ..refused },
            _ if blocks => Refused { blocked_until: before.max(until), ..refused },
            _ => Refused { blocked_until: before, ..refused },
        }));
        if is_global || lane_wait.is_some() {
            return;
        }
        if blocks && bucket.knowledge == Knowledge::Known {
            // It was refused against what we knew: one request alone is to find out.
            bucket.knowledge = Knowledge::Unknown;
        }
        for meter in bucket.busy.iter_mut().flat_map(|busy| &mut busy.meters) {
            meter.refuse(event, until, now);
        }
    }

    /// Teaches a sub-limit by a refusal that concerns it; how long it waits.
    ///
    /// It does if the upstream says so, and where the upstream announces no limit. A refusal that
    /// stops the whole credential concerns it only if the profile says that there is a sub-limit:
    /// nobody knows otherwise which of the requests were counted.
    fn refuse_sub_limit(
        &mut self,
        (slot, ticket): (u32, Ticket),
        flight: &InFlight,
        observation: &Observation,
        now: Timestamp,
    ) -> Option<Duration> {
        let unsaid = self.profile.retry_unsaid();
        let bucket = self.table.get_mut(slot)?;
        let is_silent = bucket.is_silent();
        let sub_limit = bucket.busy.as_deref_mut()?.sub_limits.get_mut(flight.sub_limit)?;
        let told = observation.readings.iter().any(|it| it.remaining.is_some());
        let concerns_it = match observation.concerns() {
            Scope::Shared => true,
            Scope::Global => sub_limit.is_named(),
            Scope::User => !told && (is_silent || sub_limit.is_named()),
        };
        if !concerns_it {
            sub_limit.end(ticket.0);
            return None;
        }
        let refused = hidden_limit::Refused {
            id: ticket.0,
            left: flight.at,
            told: observation.told_wait(),
            unsaid,
            is_wide: observation.concerns() == Scope::Global,
        };
        Some(sub_limit.refuse(&refused, now))
    }
}

impl Refused {
    /// The refusal of a request after those `before`, as yet without a block.
    fn next(
        before: Option<&Self>,
        flight: &InFlight,
        observation: &Observation,
        unsaid: Duration,
        now: Timestamp,
    ) -> Self {
        // What was under way when the first of a burst was answered says nothing new.
        let same = before.filter(|before| flight.at < before.at && before.in_a_row > 0);
        let in_a_row = match (same, before) {
            (Some(same), _) => same.in_a_row,
            (None, before) => before.map_or(0, |before| before.in_a_row) + 1,
        };
        // Longer each time, if the upstream does not say how long.
        let doubled = unsaid.saturating_mul(1 << (in_a_row - 1).min(16)).min(UNSAID_MAX);
        Self {
            at: same.map_or(now, |same| same.at),
            scope: observation.scope.unwrap_or(observation.concerns()),
            wait: observation.refused_for(doubled),
            in_a_row,
            blocked_until: Timestamp::MIN,
            wants_probe: true,
            probe_left: None,
        }
    }
}

/// One answer, about to be applied to the buckets that it concerns.
struct Learning<'a> {
    flight: &'a InFlight,
    observation: &'a Observation,
    resets: &'a [Option<Duration>],
    event: u64,
    settings: Settings,
    dimensions: &'a [Dimension],
    now: Timestamp,
    /// Whether others told it.
    is_heard: bool,
    /// The part of every limit that is this process's.
    part: Option<OwnPart>,
    /// Whether saying nothing means that there is nothing to say: not if fields were garbled, nor
    /// if this route had fields before.
    may_be_silent: bool,
}

impl Learning<'_> {
    /// Applies what was said about the dimensions of that reach.
    fn apply(&self, bucket: &mut Bucket, reach: Reach, others: &[InFlight]) {
        let concerns = |reading: &&Reading| {
            self.dimensions.get(usize::from(reading.dimension)).is_some_and(|of| of.reach == reach)
        };
        let told = self.observation.readings.iter().filter(concerns);
        let mut knows = false;
        let busy = bucket.wake(self.dimensions);
        for reading in told.filter(|reading| reading.remaining.is_some()) {
            knows = true;
            self.ensure_meter(busy, reading, others);
        }
        for meter in &mut busy.meters {
            self.apply_to(meter);
        }
        if reach == Reach::Bucket && self.flight.counted {
            busy.leave_sub_limit(self.flight.sub_limit);
        }
        self.judge(bucket, knows);
    }

    /// What is known after this answer.
    fn judge(&self, bucket: &mut Bucket, knows: bool) {
        let silent = self.observation.outcome == Outcome::Accepted && self.may_be_silent;
        match (knows, bucket.knowledge) {
            (true, _) => bucket.knowledge = Knowledge::Known,
            (false, Knowledge::Unknown) if silent => bucket.knowledge = Knowledge::Silent,
            _ => {}
        }
    }

    fn ensure_meter(&self, busy: &mut Busy, reading: &Reading, others: &[InFlight]) {
        let is_it =
            |meter: &Meter| (meter.dimension, meter.part) == (reading.dimension, reading.part);
        if busy.meters.iter().any(is_it) {
            return;
        }
        let Some(of) = self.dimensions.get(usize::from(reading.dimension)) else { return };
        let mut meter = Meter::new(reading.dimension, reading.part, of);
        let flying = others.iter().chain([self.flight]).filter(|flight| flight.counted);
        meter.in_flight = flying.map(|flight| cost_of(&flight.costs, reading.dimension)).sum();
        busy.meters.push(meter);
    }

    fn apply_to(&self, meter: &mut Meter) {
        let now = self.now;
        let sent = Sent { is_heard: self.is_heard, ..self.flight.sent(meter.dimension) };
        let found = self.observation.readings.iter().zip(self.resets).find(|(reading, _)| {
            (reading.dimension, reading.part) == (meter.dimension, meter.part)
        });
        // A refusal of another limit than the bucket's may show that limit's remainder.
        let concerns = |reading: &Reading| {
            let is_other = self.observation.scope == Some(Scope::Shared);
            !(self.observation.is_limited() && is_other && reading.remaining == Some(0))
        };
        let learned = found.filter(|(reading, _)| concerns(reading)).is_some_and(
            |(reading, reset)| match self.part {
                Some(part) => meter.observe_part(&sent, part, reading, *reset, self.event, now),
                None => meter.observe(&sent, reading, *reset, self.event, now),
            },
        );
        if learned {
            return;
        }
        if self.observation.is_limited() {
            // What was refused was not counted.
            meter.cancel(&sent);
        } else {
            meter.miss(&sent, Duration::ZERO, self.settings.lease, now);
        }
    }
}

/// The meters that a bucket has from the start, because no answer tells them.
pub(super) fn add_models(busy: &mut Busy, route: &Route, dimensions: &[Dimension]) {
    for (index, of) in dimensions.iter().enumerate() {
        if of.reach == Reach::Bucket && of.is_modelled() {
            busy.meters.push(Meter::new(index as u8, 0, of));
        }
    }
    if let Some(stated) = route.stated() {
        busy.meters.push(Meter::modelled(stated.units(), stated.period()));
    }
}
