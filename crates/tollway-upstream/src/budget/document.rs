//! Budgets as documents in a store: written, read, and what a fleet asks of them beside one
//! process.
//!
//! ```text
//!   group     event ids skew | names | buckets | flights | waiters     changes with every request
//!   account   what counts every request of the credential              changes seldom
//! ```
//!
//! Whoever has both has budgets, and goes on with the same calls as a single process does. Limits
//! that no answer tells are not in them: the fleet counts those as tokens.

use std::sync::Arc;
use std::time::Duration;

use tollway_core::Timestamp;

use super::bucket::{Refused, cost_of};
use super::budgets::{Budgets, InFlight, Waiting};
use super::encoding::{Encoded, Reader, Writer, encoded};
use super::meter::{Meter, Sent};
use super::{Claim, DimensionView, Knowledge, Priority, Refusal, Settings, Ticket, Waiter};
use crate::fair_queue::Requester;
use crate::profile::{Costs, Dimension, Observation, Profile, Reach, Reading, Route, Scope};

/// Buckets in one document.
const BUCKETS_MAX: usize = 1_024;
/// Names of buckets in one document; the others are hints that a claim brings along.
const NAMES_MAX: usize = 1_024;

/// What the upstream calls the bucket of a route, and the event at which that was learned.
#[derive(Clone, Debug)]
struct NamedRoute {
    shape: Box<str>,
    hash: Box<str>,
    since: u64,
}

encoded!(NamedRoute { shape, hash, since });

/// Old clients write so many, or more, where there is no limit.
const UNLIMITED: i64 = 1_000_000;

/// What a bucket's first limit says to clients that know one number only.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CounterView {
    pub(crate) left: Option<u64>,
    pub(crate) until: Option<Timestamp>,
    pub(crate) limit: Option<u64>,
    pub(crate) is_silent: bool,
}

/// What the budgets of a credential are made of, the same for all its documents.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) profile: Arc<Profile>,
    pub(crate) settings: Settings,
    /// Whether all buckets are in one group, because answers tell of limits of the credential.
    pub(crate) is_one_group: bool,
    /// How long a request of an old client, which has no lease, is waited for.
    pub(crate) old_client_lease: Duration,
}

impl Terms {
    pub(crate) fn new(
        profile: Arc<Profile>,
        settings: Settings,
        old_client_lease: Duration,
    ) -> Self {
        let is_told = |of: &Dimension| of.reach == Reach::Credential && !of.is_modelled();
        let is_one_group =
            profile.dimensions().iter().any(is_told) || profile.concurrency().is_some();
        let settings = Settings { buckets_max: settings.buckets_max.min(BUCKETS_MAX), ..settings };
        Self { profile, settings, is_one_group, old_client_lease }
    }

    /// The dimension whose counter is the one of Spectacles clients.
    pub(crate) fn main_dimension(&self) -> usize {
        let is_main = |of: &Dimension| of.reach == Reach::Bucket && !of.is_modelled();
        self.profile.dimensions().iter().position(is_main).unwrap_or(0)
    }

    pub(crate) fn budgets(&self) -> Budgets {
        Budgets::of_told(Arc::clone(&self.profile), self.settings)
    }
}

impl Budgets {
    /// Budgets of what answers tell; others count what is stated.
    fn of_told(profile: Arc<Profile>, settings: Settings) -> Self {
        let mut budgets = Self::new(profile, settings);
        budgets.counts_stated = false;
        budgets.global = None;
        if let Some(busy) = budgets.account.busy.as_deref_mut() {
            busy.meters.clear();
        }
        budgets
    }

    /// Writes what changes with every request.
    pub(crate) fn write_group(&self, out: &mut Writer) {
        (self.event, self.ids).write(out);
        self.skew.write(out);
        let names = self.names.iter().map(|(shape, hash, since)| NamedRoute {
            shape: shape.into(),
            hash: hash.into(),
            since,
        });
        let mut names: Vec<NamedRoute> = names.collect();
        names.split_off(names.len().saturating_sub(NAMES_MAX)).write(out);
        let slots: Vec<u32> = self.occupied().collect();
        slots.len().write(out);
        slots.iter().filter_map(|slot| self.table.get(*slot)).for_each(|it| it.write(out));
        let place = |slot: u32| slots.binary_search(&slot).unwrap_or(0) as u32;
        let mut flights: Vec<(u64, InFlight)> =
            self.flights.iter().map(|(id, flight)| (*id, flight.clone())).collect();
        flights.sort_unstable_by_key(|(id, _)| *id);
        flights.iter_mut().for_each(|(_, flight)| flight.slot = flight.slot.map(place));
        flights.write(out);
        let mut waiters: Vec<_> = self.waiters.iter().collect();
        waiters.sort_unstable_by_key(|(id, _)| **id);
        waiters.len().write(out);
        for (id, at) in waiters {
            let line = self.busy(at.slot).map(|busy| &busy.sub_limits[at.sub_limit].queue);
            let waiting = line.and_then(|line| line.get(&at.key));
            (*id, place(at.slot)).write(out);
            waiting.map(|it| it.route.clone()).write(out);
            waiting.map_or(Costs::default(), |it| it.costs).write(out);
            waiting.and_then(|it| it.stamp).unwrap_or(0).write(out);
        }
    }

    /// Reads what changes with every request into budgets of which nothing is known.
    pub(crate) fn read_group(
        &mut self,
        from: &mut Reader<'_>,
        counts_in_account: bool,
        now: Timestamp,
    ) -> Option<()> {
        (self.event, self.ids) = Encoded::read(from)?;
        self.skew = Encoded::read(from)?;
        for NamedRoute { shape, hash, since } in Vec::read(from)? {
            self.names.learn(&shape, &hash, since);
        }
        for _ in 0..usize::read(from)? {
            self.table.put(Encoded::read(from)?)?;
        }
        let slots = self.table.slots();
        for (id, flight) in Vec::<(u64, InFlight)>::read(from)? {
            if flight.slot.is_some_and(|slot| slot as usize >= slots) {
                return None;
            }
            self.flights.insert(id, flight);
        }
        if counts_in_account {
            self.count_in_account();
        }
        for _ in 0..usize::read(from)? {
            let (id, slot) = <(u64, u32)>::read(from)?;
            let route = Option::<Route>::read(from)??;
            let costs = Encoded::read(from)?;
            let stamp = Some(u64::read(from)?);
            let requester = Requester::of(&Claim::new(route.clone()));
            let waiting = Waiting { id, route, costs, requester, bytes: 0, deadline: None, stamp };
            self.enqueue_in(slot, waiting);
        }
        let slots: Vec<u32> = self.occupied().collect();
        slots.into_iter().for_each(|slot| self.look_at(slot, now));
        Some(())
    }

    /// Writes what counts every request of the credential. Those in flight are written only if one
    /// group of buckets is all there is.
    pub(crate) fn write_account(&mut self, with_flights: bool, out: &mut Writer) {
        let flights = |of: &mut Self| Some(std::mem::take(&mut of.account.busy.as_mut()?.flights));
        let kept = if with_flights { None } else { flights(self) };
        self.account.write(out);
        if let (Some(kept), Some(busy)) = (kept, self.account.busy.as_mut()) {
            busy.flights = kept;
        }
    }

    /// Reads what counts every request of the credential; before the group.
    pub(crate) fn read_account(&mut self, from: &mut Reader<'_>) -> Option<()> {
        self.account = Encoded::read(from)?;
        Some(())
    }

    /// Counts the group's requests in flight in the account, which was written without them.
    fn count_in_account(&mut self) {
        let Some(busy) = self.account.busy.as_deref_mut() else { return };
        let counted = |(id, flight): (&u64, &InFlight)| {
            (flight.counted && !flight.route.is_exempt_from_global()).then_some(*id)
        };
        let mut ids: Vec<u64> = self.flights.iter().filter_map(counted).collect();
        ids.sort_unstable();
        busy.flights = ids.into();
    }

    /// Puts a claim into the line, at its place in the line of the fleet.
    pub(crate) fn stand(
        &mut self,
        claim: &Claim,
        stamp: u64,
        now: Timestamp,
    ) -> Result<Waiter, Refusal> {
        self.table.sweep(2, self.settings.idle, now);
        let slot = self.bucket_for(claim, now)?;
        let claim = claim.clone().priority(Priority::Normal);
        let waiter = self.enqueue(slot, &Claim { patience: None, ..claim }, Some(stamp), now);
        self.look_at(slot, now);
        Ok(waiter)
    }

    /// A place in the line behind those whose places are so little behind it.
    pub(crate) fn place_in_line(&self, stamp: u64, apart: u64) -> u64 {
        let near = stamp..=stamp.saturating_add(apart);
        let stamps = self.waiters.values().map(|at| at.key.1).filter(|it| near.contains(it));
        stamps.max().map_or(stamp, |last| last + 1)
    }

    /// Counts a request that left at `at` without these budgets; `counted` if it is in flight.
    pub(crate) fn adopt(
        &mut self,
        claim: &Claim,
        at: Timestamp,
        counted: bool,
        now: Timestamp,
    ) -> Option<Ticket> {
        let slot = self.bucket_for(&Claim { patience: None, ..claim.clone() }, now).ok()?;
        let profile = Arc::clone(&self.profile);
        let busy = self.table.get_mut(slot)?.wake(profile.dimensions());
        let sub_limit = busy.sub_limit(&claim.route, &profile);
        let (route, costs) = (claim.route.clone(), claim.costs);
        let ticket = if counted {
            self.depart(Some(slot), sub_limit, route, costs, now)
        } else {
            self.ids += 1;
            let slot = Some(slot);
            let flight = InFlight { slot, sub_limit, route, costs, event: 0, at, counted: false };
            self.flights.insert(self.ids, flight);
            Ticket(self.ids)
        };
        // Nobody knows what it was before: nothing that is known is older than it.
        if let Some(flight) = self.flights.get_mut(&ticket.0) {
            (flight.event, flight.at) = (0, at);
        }
        self.look_at(slot, now);
        Some(ticket)
    }

    /// Remembers what the upstream calls the bucket of a route, if nothing is known yet.
    pub(crate) fn hint(&mut self, route: &Route, hash: &str, now: Timestamp) {
        if !self.names.knows(route) {
            self.rename(route, hash, 0, now);
        }
    }

    /// What the upstream calls the bucket of a route.
    pub(crate) fn name_of(&self, route: &Route) -> Option<&str> {
        self.names.get(route.shape()).map(|hash| &**hash)
    }

    /// How long everything that is not exempt has to wait.
    pub(crate) fn account_blocked_for(&self, now: Timestamp) -> Option<Duration> {
        self.account.is_blocked_until(now).map(|until| until.since(now))
    }

    /// Whether the request that goes first after a wait of the credential is awaited.
    pub(crate) fn awaits_account_probe(&self, now: Timestamp) -> bool {
        self.account.waits_for_probe_until(now, self.settings.lease).is_some()
    }

    /// Others say that the whole credential has to wait.
    pub(crate) fn block_account(&mut self, wait: Duration, now: Timestamp) {
        let refused = self.account.refusal.get_or_insert_with(|| {
            Box::new(Refused {
                at: now,
                scope: Scope::Global,
                wait,
                in_a_row: 0,
                blocked_until: now,
                wants_probe: true,
                probe_left: None,
            })
        });
        refused.blocked_until = refused.blocked_until.max(now.after(wait));
        (refused.wants_probe, refused.probe_left) = (true, None);
        let slots: Vec<u32> = self.occupied().collect();
        slots.into_iter().for_each(|slot| self.look_at(slot, now));
    }

    /// When the last of what is known is over; what is kept is worthless then.
    pub(crate) fn known_until(&self, now: Timestamp) -> Timestamp {
        let resets = self.occupied().filter_map(|slot| self.table.get(slot)).flat_map(|bucket| {
            let busy = bucket.busy.as_deref();
            let meters = busy.into_iter().flat_map(|busy| &busy.meters);
            let resets = meters.filter_map(|meter| meter.resets_at(now));
            let rests = bucket.rests.as_slice().iter().map(super::meter::Rest::resets_at);
            let lanes = busy.into_iter().flat_map(|busy| &busy.sub_limits);
            let lanes = lanes.filter(|lane| !lane.can_be_forgotten(now)).map(|lane| {
                let hour = now.after(Duration::from_secs(3_600));
                lane.blocked_for(now).map_or(hour, |left| now.after(left).max(hour))
            });
            resets.chain(rests).chain(lanes).chain(bucket.is_blocked_until(now))
        });
        let account = self.account.busy.as_deref().into_iter().flat_map(|busy| &busy.meters);
        let account = account.filter_map(|meter| meter.resets_at(now));
        resets.chain(account).chain(self.account.is_blocked_until(now)).max().unwrap_or(now)
    }

    /// A waiter leaves the line that cannot wait; how long it would have to.
    pub(crate) fn give_up(&mut self, waiter: Waiter, now: Timestamp) -> Duration {
        let at = self.waiters.get(&waiter.0).copied();
        let waiting = at.and_then(|at| {
            let line = &self.busy(at.slot)?.sub_limits.get(at.sub_limit)?.queue;
            line.get(&at.key).map(|waiting| (at.slot, waiting.clone()))
        });
        self.leave(waiter, now);
        waiting.map_or(Duration::ZERO, |(slot, waiting)| {
            self.estimate(slot, &waiting.route, &waiting.costs, Priority::Normal, now)
        })
    }

    pub(crate) fn is_waiting(&self, waiter: Waiter) -> bool {
        self.waiters.contains_key(&waiter.0)
    }

    pub(crate) fn left_at(&self, ticket: Ticket) -> Timestamp {
        self.flights.get(&ticket.0).map_or(Timestamp::MIN, |flight| flight.at)
    }

    /// The process that sent a request is gone, and its connections with it: what the upstream has
    /// not counted within `linger` after it left it never will.
    pub(crate) fn bury(&mut self, ticket: Ticket, now: Timestamp) {
        let linger = self.left_at(ticket).after(self.settings.linger).since(now);
        self.forget_flight(ticket, now, |meter, sent, settings| {
            meter.miss(sent, linger, settings.lease, now);
        });
    }

    /// What a bucket's first limit is to say to clients that know one number only.
    pub(crate) fn counter(&self, name: &str, now: Timestamp) -> CounterView {
        let mut view = CounterView::default();
        let Some(bucket) = self.table.find(name).and_then(|slot| self.table.get(slot)) else {
            return view;
        };
        let meters = self.meters(bucket);
        let first = meters.iter().find(|meter| meter.part == 0 && !meter.is_modelled());
        view.limit = first.map(|meter| meter.limit).filter(|limit| *limit > 0);
        let in_use = bucket.busy.as_deref().is_some_and(|busy| !busy.flights.is_empty());
        if let Some(until) = bucket.is_blocked_until(now) {
            (view.left, view.until) = (Some(0), Some(until));
        } else if bucket.knowledge == Knowledge::Unknown {
            view.left = in_use.then_some(0);
        } else if let (Knowledge::Known, Some(meter)) = (bucket.knowledge, first) {
            let left = meter.available(now);
            view.until = meter.resets_at(now);
            view.left = (view.until.is_some() || left < meter.limit).then_some(left);
        }
        view.is_silent = bucket.knowledge == Knowledge::Silent;
        view
    }

    /// Old clients know a limit of a bucket of which nothing is known here; none above zero is no
    /// limit.
    pub(crate) fn hint_limit(&mut self, name: &str, limit: i64, now: Timestamp) {
        let Some(slot) = self.table.entry(name, now) else { return };
        let profile = Arc::clone(&self.profile);
        let Some(bucket) = self.table.get_mut(slot) else { return };
        let is_known = bucket.knowledge != Knowledge::Unknown
            || bucket.refusal.is_some()
            || !bucket.rests.as_slice().is_empty();
        // Or it would be forgotten at once, as one that nobody has used for long.
        bucket.used_s = u32::try_from(now.as_nanos() / 1_000_000_000).unwrap_or(u32::MAX);
        let busy = bucket.wake(profile.dimensions());
        if is_known || !busy.flights.is_empty() || !busy.meters.is_empty() {
            return;
        }
        let main = profile.dimensions().iter().position(|of| of.reach == Reach::Bucket);
        if !(1..UNLIMITED).contains(&limit) {
            bucket.knowledge = Knowledge::Silent;
        } else if let Some((index, of)) =
            main.and_then(|at| Some((at, profile.dimensions().get(at)?)))
        {
            let mut meter = Meter::new(index as u8, 0, of);
            meter.limit = limit.cast_unsigned();
            busy.meters.push(meter);
            bucket.knowledge = Knowledge::Known;
        }
    }

    /// Others have taken units of a bucket's first limit.
    pub(crate) fn take_unseen(&mut self, name: &str, units: u32, now: Timestamp) {
        let Some(slot) = self.table.find(name) else { return };
        let (profile, settings) = (Arc::clone(&self.profile), self.settings);
        let Some(bucket) = self.table.get_mut(slot) else { return };
        let busy = bucket.wake(profile.dimensions());
        let (event, cost) = (self.event, u64::from(units));
        let sent = Sent { event, at: now, cost, counted: false, is_heard: false };
        if let Some(meter) = busy.meters.iter_mut().find(|meter| meter.part == 0) {
            meter.miss(&sent, Duration::ZERO, settings.lease, now);
        }
        self.look_at(slot, now);
    }

    /// Units of a dimension in flight in all buckets.
    pub(crate) fn units_in_flight(&self, dimension: usize) -> u64 {
        let counted = self.flights.values().filter(|flight| flight.counted);
        counted.map(|flight| cost_of(&flight.costs, dimension as u8)).sum()
    }

    pub(crate) fn cost_of(&self, ticket: Ticket, dimension: usize) -> u64 {
        self.flights.get(&ticket.0).map_or(0, |flight| cost_of(&flight.costs, dimension as u8))
    }

    /// The limits of the credential, for people.
    pub(crate) fn account_dimensions(&self, now: Timestamp) -> Vec<DimensionView> {
        let meters = self.account.busy.as_deref().into_iter().flat_map(|busy| &busy.meters);
        meters.map(|meter| self.dimension_view(meter, now)).collect()
    }

    /// What an answer to a request of that route would tell now, as far as is known.
    pub(crate) fn told(&self, route: &Route, now: Timestamp) -> Option<Observation> {
        let bucket =
            self.table.find(&self.names.bucket(route)).and_then(|it| self.table.get(it))?;
        let reading = |meter: &Meter| {
            let (left, back) = meter.told(now);
            let window = || Duration::from_nanos(meter.window_ns);
            Reading {
                dimension: meter.dimension,
                part: meter.part,
                limit: Some(meter.limit),
                remaining: Some(left),
                reset_after: Some(back.map_or_else(window, |back| back.since(now))),
                told_after: true,
                ..Reading::default()
            }
        };
        let known = self.meters(bucket);
        let known = known.iter().filter(|meter| meter.limit > 0 && !meter.is_modelled());
        let readings: Vec<Reading> = known.map(reading).collect();
        let bucket = self.name_of(route).map(Arc::from);
        (!readings.is_empty()).then(|| Observation { bucket, readings, ..Observation::default() })
    }

    pub(crate) fn has_bucket(&self, name: &str) -> bool {
        self.table.find(name).is_some()
    }

    /// The name of the bucket of a route, as far as is known.
    pub(crate) fn bucket_name<'a>(&'a self, route: &'a Route) -> std::borrow::Cow<'a, str> {
        self.names.bucket(route)
    }

    /// The first in the line of all buckets.
    pub(crate) fn first_in_line(&self) -> Option<Waiter> {
        let first = self.waiters.iter().min_by_key(|(_, at)| at.key);
        first.map(|(id, _)| Waiter(*id))
    }

    fn occupied(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.table.slots() as u32).filter(|slot| self.table.get(*slot).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Granted;

    /// It is believed to be alive for 2.4 seconds, which is longer than `linger`.
    #[test]
    fn what_the_dead_have_sent_is_waited_for_until_its_window_ends_and_no_longer() {
        let text = "name = 'a'\n[[dimensions]]\nname = 'requests'\nwindow = 'fixed'\n\
            remaining = 'r'\n";
        let profile = Arc::new(Profile::parse(text).expect("a valid profile"));
        let mut budgets = Budgets::new(Arc::clone(&profile), Settings::default());
        let claim = Claim::new(profile.route("GET", "/a"));
        let at = |ms| Timestamp::from_millis(ms);
        let Ok(Granted::Now(first)) = budgets.claim(&claim, at(1_000)) else { panic!("a probe") };
        let reading = Reading {
            limit: Some(3),
            remaining: Some(2),
            reset_after: Some(Duration::from_secs(1)),
            told_after: true,
            ..Reading::default()
        };
        let observation = Observation { readings: vec![reading], ..Observation::default() };
        budgets.observe(first, &observation, at(1_000));
        // The next window is taken whole, by a process that dies.
        let taken: Vec<Ticket> = (0..3)
            .map(|_| match budgets.claim(&claim, at(2_100)) {
                Ok(Granted::Now(ticket)) => ticket,
                other => panic!("{other:?}"),
            })
            .collect();
        taken.into_iter().for_each(|ticket| budgets.bury(ticket, at(4_800)));
        let Ok(Granted::Later(_)) = budgets.claim(&claim, at(4_800)) else { panic!("not yet") };
        assert!(budgets.next(at(5_801)).is_some(), "one window later");
    }

    /// A store that goes away in the middle of a burst has seen the first answers only.
    #[test]
    fn what_is_told_of_a_sliding_limit_counts_what_is_under_way() {
        let text = "name = 'a'\n[[dimensions]]\nname = 'requests'\nwindow = 'sliding'\n\
            remaining = 'r'\n";
        let profile = Arc::new(Profile::parse(text).expect("a valid profile"));
        let mut budgets = Budgets::new(Arc::clone(&profile), Settings::default());
        let (claim, now) = (Claim::new(profile.route("GET", "/a")), Timestamp::from_millis(1_000));
        let Ok(Granted::Now(first)) = budgets.claim(&claim, now) else { panic!("it is a probe") };
        let reading = |remaining, after_ms| Reading {
            limit: Some(20),
            remaining: Some(remaining),
            reset_after: Some(Duration::from_millis(after_ms)),
            told_after: true,
            ..Reading::default()
        };
        let readings = vec![reading(19, 250)];
        let observation = Observation { readings, ..Observation::default() };
        budgets.observe(first, &observation, now);
        for _ in 0..19 {
            assert!(matches!(budgets.claim(&claim, now), Ok(Granted::Now(_))));
        }
        let told = budgets.told(&claim.route, now).expect("the limit is known").readings[0].clone();
        assert_eq!(told.remaining, Some(0));
        assert_eq!(told.reset_after, Some(Duration::from_secs(5)), "a quarter of a second each");
        let soon = now.after(Duration::from_millis(200));
        let told = budgets.told(&claim.route, soon).expect("known").readings[0].clone();
        assert_eq!(told.remaining, Some(0), "others may have taken what came back");
    }
}
