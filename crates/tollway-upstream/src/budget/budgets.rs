//! The state machine of one credential's budgets.
//!
//! ```text
//!  claim ─► queue of a bucket ─► ready? ───────────► its turn among all buckets? ─► Ticket
//!            (fair_queue)        meters, sub-limit,  global limit, credential's
//!                                probe, block        meters, concurrency
//!                 ▲                                                                  │
//!                 └──── whoever may go now ◄──── observe, abandon, cancel ◄──────────┘
//! ```
//!
//! A bucket with waiters is noted down in one place: among those that are ready, or under the time
//! at which to look again. Each event looks only at the buckets that it concerns.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tollway_core::Timestamp;

use super::bucket::{Bucket, Busy, cost_of};
use super::change::Changes;
use super::dispatches::Dispatches;
use super::encoding::encoded;
use super::meter::{Meter, nanos};
use super::names::Names;
use super::pacing::Pacing;
use super::part::OwnPart;
use super::skew::Skew;
use super::table::Table;
use super::{BucketRoom, Claim, Correction, Knowledge, Page, Reason, Refusal, Settings};
use crate::fair_queue::{FairClock, FairQueue, QueueKey, Requester};
use crate::pace;
use crate::profile::{Costs, Profile, Route};

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Waiter(pub(crate) u64);

/// A request that may be sent, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[must_use]
pub struct Ticket(pub(crate) u64);

/// How a claim was answered, if not by a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// Send it now.
    Now(Ticket),
    /// It waits; [`Budgets::next`] will name it.
    Later(Waiter),
}

/// Slots looked at for idle buckets with every claim.
const SWEEP: usize = 2;
/// The same where nobody waits for it.
const TENDED: usize = 16;

/// The budgets of one credential.
///
/// ```
/// use tollway_core::Timestamp;
/// use tollway_upstream::budget::{Budgets, Claim, Granted, Settings};
/// use tollway_upstream::profile::{Observation, Profile};
///
/// let profile = Profile::builtin("discord").expect("it is shipped");
/// let mut budgets = Budgets::new(profile.clone(), Settings::default());
/// let claim = Claim::new(profile.route("GET", "/api/v10/channels/42/messages"));
/// let now = Timestamp::from_millis(1);
///
/// // Nothing is known yet: the first request is a probe, the second waits for its answer.
/// let Ok(Granted::Now(probe)) = budgets.claim(&claim, now) else { panic!() };
/// let Ok(Granted::Later(second)) = budgets.claim(&claim, now) else { panic!() };
/// budgets.observe(probe, &Observation::default(), now);
/// assert_eq!(budgets.next(now).map(|(waiter, _)| waiter), Some(second));
/// ```
#[derive(Debug)]
pub struct Budgets {
    pub(super) profile: Arc<Profile>,
    pub(super) settings: Settings,
    pub(super) table: Table,
    pub(super) names: Names,
    pub(super) flights: HashMap<u64, InFlight>,
    pub(super) waiters: HashMap<u64, Whereabouts>,
    /// Buckets that could send: those the limits over all routes count, and those they do not.
    pub(super) ready: [FairQueue<u32>; 2],
    pub(super) ready_clock: FairClock,
    pub(super) timers: BTreeSet<(Timestamp, u32)>,
    pub(super) deadlines: BTreeSet<(Timestamp, u64)>,
    /// What counts every request of the credential.
    pub(super) account: Bucket,
    pub(super) global: Option<Dispatches>,
    pub(super) granted: VecDeque<(Waiter, Ticket)>,
    pub(super) queued_bytes: u64,
    /// Counts departures and arrivals, to tell which was before which.
    pub(super) event: u64,
    pub(super) ids: u64,
    pub(super) skew: Skew,
    pub(super) changes: Changes,
    /// Hands out the slots of a bucket that strangers share, if the credential is paced.
    pub(super) pacing: Option<Pacing>,
    /// Whether what no answer tells is counted here; if not, others count it.
    pub(super) counts_stated: bool,
    /// The part of every limit that is this process's, while it cannot hear of the others.
    pub(super) part: Option<OwnPart>,
}

/// A request in line.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub(super) id: u64,
    pub(super) route: Route,
    pub(super) costs: Costs,
    pub(super) requester: Requester,
    pub(super) bytes: u64,
    pub(super) deadline: Option<Timestamp>,
    /// Its place in the line of a fleet; none if the line is this process's alone.
    pub(super) stamp: Option<u64>,
}

impl Waiting {
    /// Where it stands among others that `clock` stamps.
    pub(super) fn key(&self, clock: &mut FairClock) -> QueueKey {
        match self.stamp {
            Some(stamp) => (self.requester.priority, stamp, self.id),
            None => clock.key(&self.requester, self.id),
        }
    }
}

/// Where a waiter stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whereabouts {
    pub(super) slot: u32,
    pub(super) sub_limit: usize,
    pub(super) key: QueueKey,
}

/// A request in flight.
#[derive(Clone, Debug)]
pub(super) struct InFlight {
    /// None if no limit counts it.
    pub(super) slot: Option<u32>,
    pub(super) sub_limit: usize,
    pub(super) route: Route,
    pub(super) costs: Costs,
    pub(super) event: u64,
    pub(super) at: Timestamp,
    /// Whether it still counts as in flight.
    pub(super) counted: bool,
}

encoded!(InFlight { slot, sub_limit, route, costs, event, at, counted });

impl Budgets {
    /// Budgets of which nothing is known yet.
    #[must_use]
    pub fn new(profile: Arc<Profile>, settings: Settings) -> Self {
        let global = profile.global().map(|global| {
            let span = global.quota.period().saturating_add(global.jitter);
            Dispatches::new(global.quota.units(), nanos(span))
        });
        let account = Bucket::of_account(profile.dimensions());
        Self {
            table: Table::new(settings.buckets_max),
            profile,
            settings,
            names: Names::default(),
            flights: HashMap::new(),
            waiters: HashMap::new(),
            ready: [FairQueue::new(), FairQueue::new()],
            ready_clock: FairClock::default(),
            timers: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            account,
            global,
            granted: VecDeque::new(),
            queued_bytes: 0,
            event: 0,
            ids: 0,
            skew: Skew::default(),
            changes: Changes::default(),
            pacing: None,
            counts_stated: true,
            part: None,
        }
    }

    /// Budgets whose requests are paced by the bucket that `profile` says is the credential's
    /// common one; none if it says so of none.
    ///
    /// What `pace` leaves open is filled in from the profile.
    #[must_use]
    pub fn paced(profile: &Profile, settings: Settings, pace: pace::Settings) -> Option<Self> {
        let (profile, dimension) = profile.paced()?;
        let pacing = Pacing::new(dimension, pace.or_profile(&profile));
        Some(Self { pacing: Some(pacing), ..Self::new(Arc::new(profile), settings) })
    }

    /// Budgets whose buckets take of a room that others share; before any is known.
    #[must_use]
    pub fn within(self, room: &BucketRoom) -> Self {
        let table = Table::within(self.settings.buckets_max, room.of_buckets());
        Self { table, names: Names::within(room.of_names()), ..self }
    }

    /// From now on, answers tell the limits of so many processes that cannot tell each other what
    /// they take. This one keeps to its part of them; `rank`, from 0, is its place among them.
    pub fn go_apart(&mut self, processes: u32, rank: u32) {
        self.part = OwnPart::new(processes, rank);
    }

    /// Forgets a few of the buckets that have long been idle, as every claim does: for budgets of
    /// which nobody claims anything.
    pub fn tend(&mut self, now: Timestamp) {
        self.table.sweep(TENDED, self.settings.idle, now);
    }

    /// Asks to send a request.
    ///
    /// # Errors
    ///
    /// A refusal: it cannot wait long enough, costs too much, or too many wait already.
    pub fn claim(&mut self, claim: &Claim, now: Timestamp) -> Result<Granted, Refusal> {
        self.table.sweep(SWEEP, self.settings.idle, now);
        if claim.route.is_exempt() {
            return Ok(Granted::Now(self.depart(None, 0, claim.route.clone(), claim.costs, now)));
        }
        let room = self.settings.room_for(claim, self.waiters.len(), self.queued_bytes);
        let slot = self.bucket_for(claim, now)?;
        let waiter = self.enqueue(slot, claim, None, now);
        self.look_at(slot, now);
        while let Some((other, ticket)) = self.grant(now) {
            // Not before those that were let go by this call and have not been told yet.
            if other == waiter && self.granted.is_empty() {
                return Ok(Granted::Now(ticket));
            }
            self.granted.push_back((other, ticket));
        }
        if let Err(refusal) = room {
            self.leave(waiter, now);
            return Err(refusal);
        }
        Ok(Granted::Later(waiter))
    }

    /// The bucket of a claim, if it may wait there.
    pub(super) fn bucket_for(&mut self, claim: &Claim, now: Timestamp) -> Result<u32, Refusal> {
        let name = self.names.bucket(&claim.route);
        let Some(slot) = self.table.entry(&name, now) else {
            return Err(Refusal { reason: Reason::BucketsFull, wait: Some(self.settings.lease) });
        };
        self.check_cost(slot, claim)?;
        if let Some(patience) = claim.patience {
            let wait = self.estimate(slot, &claim.route, &claim.costs, claim.priority, now);
            if patience < wait {
                return Err(Refusal { reason: Reason::Patience, wait: Some(wait) });
            }
        }
        Ok(slot)
    }

    /// The next request that may go now; call it until there is none.
    pub fn next(&mut self, now: Timestamp) -> Option<(Waiter, Ticket)> {
        self.granted.pop_front().or_else(|| self.grant(now))
    }

    /// The next waiter that has waited longer than it can, with the refusal to give it.
    pub fn expired(&mut self, now: Timestamp) -> Option<(Waiter, Refusal)> {
        let (at, id) = *self.deadlines.first()?;
        if at > now {
            return None;
        }
        let whereabouts = self.waiters.get(&id).copied();
        let waiting = self.unqueue(id);
        let mut wait = None;
        if let (Some(Whereabouts { slot, .. }), Some(waiting)) = (whereabouts, waiting) {
            let priority = waiting.requester.priority;
            wait = Some(self.estimate(slot, &waiting.route, &waiting.costs, priority, now));
            self.look_at(slot, now);
        }
        self.deadlines.remove(&(at, id));
        Some((Waiter(id), Refusal { reason: Reason::Patience, wait }))
    }

    /// When to call [`Self::next`] and [`Self::expired`] again, if nothing else happens before.
    #[must_use]
    pub fn earliest(&self, now: Timestamp) -> Option<Timestamp> {
        if !self.granted.is_empty() {
            return Some(now);
        }
        let timer = self.timers.first().map(|(at, _)| *at);
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        [timer, deadline, self.gate_opens_at(now)].into_iter().flatten().min()
    }

    /// No answer to `ticket` will come; the upstream may have counted it.
    pub fn abandon(&mut self, ticket: Ticket, now: Timestamp) {
        let linger = self.settings.linger;
        if let Some(pacing) = &mut self.pacing {
            pacing.abandon(ticket, now);
        }
        self.forget_flight(ticket, now, |meter, sent, settings| {
            meter.miss(sent, linger, settings.lease, now);
        });
    }

    /// `ticket` was never sent.
    pub fn cancel(&mut self, ticket: Ticket, now: Timestamp) {
        if let Some(pacing) = &mut self.pacing {
            pacing.cancel(ticket, now);
        }
        self.forget_flight(ticket, now, |meter, sent, _| meter.cancel(sent));
    }

    /// A request whose answer was observed took something else than what it was let go for.
    pub fn correct(&mut self, correction: &Correction, now: Timestamp) {
        let left = Timestamp::from_nanos(now.as_nanos().saturating_sub(nanos(correction.left_ago)));
        let apply = |meters: &mut [Meter]| {
            for meter in meters.iter_mut().filter(|meter| meter.part != u8::MAX) {
                if let Some(units) = correction.units(usize::from(meter.dimension)) {
                    meter.correct(units, left, now);
                }
            }
        };
        let route = &correction.route;
        if let Some(busy) = self.account.busy.as_deref_mut()
            && !route.is_exempt_from_global()
        {
            apply(&mut busy.meters);
        }
        let name = self.names.bucket(route);
        // One that is idle has nothing left of it, or will hear of it by the next answer.
        if let Some(slot) = self.table.find(&name)
            && let Some(busy) = self.busy_mut(slot)
        {
            apply(&mut busy.meters);
            self.look_at(slot, now);
        }
    }

    /// A waiter leaves the line.
    pub fn leave(&mut self, waiter: Waiter, now: Timestamp) {
        let slot = self.waiters.get(&waiter.0).map(|whereabouts| whereabouts.slot);
        self.unqueue(waiter.0);
        if let Some(slot) = slot {
            self.look_at(slot, now);
        }
        if let Some(index) = self.granted.iter().position(|(granted, _)| *granted == waiter)
            && let Some((_, ticket)) = self.granted.remove(index)
        {
            self.cancel(ticket, now);
        }
    }

    /// What is known of the buckets, `max` at a time from `cursor` on.
    #[must_use]
    pub fn buckets(&self, cursor: u64, max: usize, now: Timestamp) -> Page {
        let slots = self.table.slots() as u64;
        let mut page = Page::default();
        let mut slot = cursor;
        let known = self.names.by_name();
        while slot < slots && page.buckets.len() < max {
            if let Some(bucket) = self.table.get(slot as u32) {
                page.buckets.push(self.view(bucket, &known, now));
            }
            slot += 1;
        }
        page.next = (slot < slots).then_some(slot);
        page
    }

    /// Buckets that are remembered.
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.table.len()
    }

    /// The time between two requests as of now, if the credential is paced.
    #[must_use]
    pub fn paced_interval(&self) -> Option<Duration> {
        self.pacing.as_ref().map(Pacing::interval)
    }

    /// Requests that wait.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.waiters.len()
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Forgets what blocks a bucket; its next request goes alone. False if there is none such.
    pub fn unlock(&mut self, bucket: &str, now: Timestamp) -> bool {
        let Some(slot) = self.table.find(bucket) else { return false };
        let profile = Arc::clone(&self.profile);
        if let Some(bucket) = self.table.get_mut(slot) {
            bucket.refusal = None;
            bucket.knowledge = Knowledge::Unknown;
            let busy = bucket.wake(profile.dimensions());
            busy.meters.iter_mut().for_each(Meter::unlock);
            busy.sub_limits.iter_mut().for_each(super::sub_limit::SubLimit::unlock);
        }
        self.look_at(slot, now);
        true
    }

    /// Removes everything that waits for a bucket.
    pub fn drain(&mut self, bucket: &str, now: Timestamp) -> Vec<Waiter> {
        let Some(slot) = self.table.find(bucket) else { return Vec::new() };
        let in_it = |(id, whereabouts): (&u64, &Whereabouts)| {
            (whereabouts.slot == slot).then_some(Waiter(*id))
        };
        let mut drained: Vec<Waiter> = self.waiters.iter().filter_map(in_it).collect();
        drained.sort_unstable();
        for waiter in &drained {
            self.unqueue(waiter.0);
        }
        self.look_at(slot, now);
        drained
    }

    fn check_cost(&self, slot: u32, claim: &Claim) -> Result<(), Refusal> {
        let mut meters = self.busy(slot).into_iter().chain(self.account.busy.as_deref());
        let too_much =
            |meter: &Meter| meter.limit > 0 && cost_of(&claim.costs, meter.dimension) > meter.limit;
        if meters.any(|busy| busy.meters.iter().any(too_much)) {
            return Err(Refusal { reason: Reason::TooCostly, wait: None });
        }
        Ok(())
    }

    pub(super) fn enqueue(
        &mut self,
        slot: u32,
        claim: &Claim,
        stamp: Option<u64>,
        now: Timestamp,
    ) -> Waiter {
        self.ids += 1;
        let waiting = Waiting {
            id: self.ids,
            route: claim.route.clone(),
            costs: claim.costs,
            requester: Requester::of(claim),
            bytes: claim.bytes,
            deadline: claim.patience.map(|patience| now.after(patience)),
            stamp,
        };
        self.queued_bytes += waiting.bytes;
        self.deadlines.extend(waiting.deadline.map(|at| (at, waiting.id)));
        self.enqueue_in(slot, waiting);
        Waiter(self.ids)
    }

    /// Puts a request into the line of its sub-limit.
    pub(super) fn enqueue_in(&mut self, slot: u32, waiting: Waiting) {
        let profile = Arc::clone(&self.profile);
        let Some(bucket) = self.table.get_mut(slot) else { return };
        let is_new = bucket.busy.is_none();
        let busy = bucket.wake(profile.dimensions());
        if is_new && self.counts_stated {
            super::learn::add_models(busy, &waiting.route, profile.dimensions());
        }
        let sub_limit = busy.sub_limit(&waiting.route, &profile);
        let key = waiting.key(&mut busy.clock);
        self.waiters.insert(waiting.id, Whereabouts { slot, sub_limit, key });
        busy.queued += 1;
        busy.sub_limits[sub_limit].queue.insert(key, waiting);
    }

    /// Takes a request out of its line.
    pub(super) fn unqueue(&mut self, id: u64) -> Option<Waiting> {
        let Whereabouts { slot, sub_limit, key } = self.waiters.remove(&id)?;
        let busy = self.busy_mut(slot)?;
        let waiting = busy.sub_limits.get_mut(sub_limit)?.queue.remove(&key)?;
        busy.queued -= 1;
        if busy.queued == 0 {
            busy.clock.reset();
        }
        self.queued_bytes = self.queued_bytes.saturating_sub(waiting.bytes);
        if let Some(at) = waiting.deadline {
            self.deadlines.remove(&(at, id));
        }
        Some(waiting)
    }

    /// What a bucket in use needs.
    pub(super) fn busy(&self, slot: u32) -> Option<&Busy> {
        self.table.get(slot)?.busy.as_deref()
    }

    pub(super) fn busy_mut(&mut self, slot: u32) -> Option<&mut Busy> {
        self.table.get_mut(slot)?.busy.as_deref_mut()
    }
}
