//! One bucket: its meters, its sub-limits, and who waits in them.

use std::collections::VecDeque;
use std::time::Duration;

use tollway_core::Timestamp;

use super::Knowledge;
use super::encoding::encoded;
use super::meter::{Meter, Rest, When};
use super::names::sub_limit_label;
use super::sub_limit::SubLimit;
use crate::fair_queue::{FairClock, QueueKey};
use crate::profile::{Costs, Dimension, Profile, Reach, Route, Scope};

/// One bucket. Small while idle: what only a bucket in use needs is in [`Busy`].
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) name: Box<str>,
    pub(super) rests: Rests,
    pub(super) busy: Option<Box<Busy>>,
    pub(super) refusal: Option<Box<Refused>>,
    pub(super) used_s: u32,
    pub(super) knowledge: Knowledge,
}

encoded!(Bucket { name, rests, busy, refusal, used_s, knowledge });

/// The meters of an idle bucket: nearly always one.
#[derive(Debug)]
pub(super) enum Rests {
    None,
    One(Rest),
    Many(Box<[Rest]>),
}

impl Rests {
    fn of(mut rests: Vec<Rest>) -> Self {
        match rests.len() {
            0 => Self::None,
            1 => rests.pop().map_or(Self::None, Self::One),
            _ => Self::Many(rests.into_boxed_slice()),
        }
    }

    pub(super) fn as_slice(&self) -> &[Rest] {
        match self {
            Self::None => &[],
            Self::One(rest) => std::slice::from_ref(rest),
            Self::Many(rests) => rests,
        }
    }
}

#[cfg(feature = "redis")]
impl super::encoding::Encoded for Rests {
    fn write(&self, out: &mut super::encoding::Writer) {
        super::encoding::write_list(self.as_slice().iter(), out);
    }

    fn read(from: &mut super::encoding::Reader<'_>) -> Option<Self> {
        super::encoding::Encoded::read(from).map(Self::of)
    }
}

/// A bucket's last refusal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    pub(super) at: Timestamp,
    pub(super) scope: Scope,
    pub(super) wait: Duration,
    /// How many there were in a row.
    pub(super) in_a_row: u32,
    /// Nothing goes before this time.
    pub(super) blocked_until: Timestamp,
    /// Whether one request is to go first then; its answer decides about the others.
    pub(super) wants_probe: bool,
    /// When that one left, if it is awaited.
    pub(super) probe_left: Option<Timestamp>,
}

encoded!(Refused { at, scope, wait, in_a_row, blocked_until, wants_probe, probe_left });

/// Where a bucket with waiters is noted down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// Among those that could send, were it not for the other buckets.
    Ready { key: QueueKey, exempt: bool },
    /// Among those to look at again at a time.
    Timer(Timestamp),
}

/// What only a bucket in use needs.
#[derive(Debug, Default)]
pub(super) struct Busy {
    pub(super) meters: Vec<Meter>,
    pub(super) sub_limits: Vec<SubLimit>,
    pub(super) clock: FairClock,
    /// Tickets in flight, oldest first.
    pub(super) flights: VecDeque<u64>,
    pub(super) queued: usize,
    pub(super) noted: Option<Noted>,
}

encoded!(Busy { meters, sub_limits, flights } made { clock, queued, noted });

impl Bucket {
    pub(super) fn new(name: Box<str>) -> Self {
        let knowledge = Knowledge::Unknown;
        Self { name, rests: Rests::None, busy: None, refusal: None, used_s: 0, knowledge }
    }

    /// The bucket that every request of the credential is counted in.
    pub(super) fn of_account(dimensions: &[Dimension]) -> Self {
        let mut account = Self::new("*".into());
        let credential = |of: &Dimension| of.reach == Reach::Credential;
        let is_told = |of: &Dimension| credential(of) && !of.is_modelled();
        account.knowledge =
            if dimensions.iter().any(is_told) { Knowledge::Unknown } else { Knowledge::Silent };
        let busy = account.wake(dimensions);
        for (index, of) in dimensions.iter().enumerate() {
            if credential(of) && of.is_modelled() {
                busy.meters.push(Meter::new(index as u8, 0, of));
            }
        }
        account
    }

    /// The part for use, made from what was kept if the bucket was idle.
    pub(super) fn wake(&mut self, dimensions: &[Dimension]) -> &mut Busy {
        let rests = &mut self.rests;
        self.busy.get_or_insert_with(|| {
            let meters = rests.as_slice().iter().filter_map(|rest| {
                dimensions.get(usize::from(rest.dimension)).map(|of| Meter::wake(rest, of))
            });
            let busy = Busy { meters: meters.collect(), ..Busy::default() };
            *rests = Rests::None;
            Box::new(busy)
        })
    }

    /// Keeps only what an idle bucket needs, if it is idle.
    pub(super) fn settle(&mut self, now: Timestamp) {
        let Some(busy) = &self.busy else { return };
        if !busy.can_rest(now) {
            return;
        }
        let rests =
            busy.meters.iter().filter(|meter| !meter.is_modelled()).map(|meter| meter.rest(now));
        self.rests = Rests::of(rests.collect());
        self.busy = None;
        let over = |refused: &Refused| refused.blocked_until <= now && refused.is_old(now);
        if self.refusal.as_deref().is_some_and(over) {
            self.refusal = None;
        }
    }

    pub(super) fn is_blocked_until(&self, now: Timestamp) -> Option<Timestamp> {
        let refused = self.refusal.as_deref()?;
        (refused.blocked_until > now).then_some(refused.blocked_until)
    }

    /// When the others no longer wait for the request that goes first after a refusal.
    pub(super) fn waits_for_probe_until(
        &self,
        now: Timestamp,
        lease: Duration,
    ) -> Option<Timestamp> {
        let refused = self.refusal.as_deref().filter(|it| it.wants_probe)?;
        let until = refused.probe_left?.after(lease);
        (refused.blocked_until <= now && until > now).then_some(until)
    }

    /// A request leaves: the one that goes first, if one is to.
    pub(super) fn begin_probe(&mut self, now: Timestamp) {
        let is_it = |refused: &&mut Refused| refused.wants_probe && refused.blocked_until <= now;
        if let Some(refused) = self.refusal.as_deref_mut().filter(is_it) {
            refused.probe_left = Some(now);
        }
    }

    /// A request that left at `left` ended without saying anything.
    pub(super) fn end_probe(&mut self, left: Timestamp) {
        if let Some(refused) = self.refusal.as_deref_mut() {
            refused.probe_left.take_if(|probe| *probe == left);
        }
    }

    /// A request that left at `left` was served.
    pub(super) fn free(&mut self, left: Timestamp) {
        let after = |refused: &&mut Refused| refused.blocked_until <= left;
        if let Some(refused) = self.refusal.as_deref_mut().filter(after) {
            (refused.in_a_row, refused.wants_probe, refused.probe_left) = (0, false, None);
        }
    }

    /// Whether the upstream announces no limit.
    pub(super) fn is_silent(&self) -> bool {
        self.knowledge == Knowledge::Silent
    }

    /// Requests that may be in flight while nothing is known.
    pub(super) fn first_burst(&self, of_profile: u32) -> usize {
        // What was refused is tried by one alone.
        if self.refusal.is_some() { 1 } else { of_profile as usize }
    }

    /// Whether it is idle and says nothing that a new one would not find out by its first request.
    pub(super) fn is_forgettable(&self, now: Timestamp) -> bool {
        self.busy.is_none()
            && self.is_blocked_until(now).is_none()
            && !self.rests.as_slice().iter().any(|rest| rest.is_spent(now))
    }

    /// Whether it has been idle for so long that it may as well be forgotten.
    pub(super) fn is_stale(&self, idle: Duration, now: Timestamp) -> bool {
        let since = now.since(Timestamp::from_millis(u64::from(self.used_s) * 1_000));
        let says = self.rests.as_slice().iter().any(|rest| rest.says_something(now));
        self.is_forgettable(now) && !says && since > idle
    }
}

impl Refused {
    /// Old news are not worth the memory.
    fn is_old(&self, now: Timestamp) -> bool {
        now.since(self.at) > Duration::from_secs(3_600)
    }
}

impl Busy {
    fn can_rest(&self, now: Timestamp) -> bool {
        self.flights.is_empty()
            && self.queued == 0
            && self.noted.is_none()
            && self.sub_limits.iter().all(|sub_limit| sub_limit.can_be_forgotten(now))
            && self.meters.iter().all(|meter| meter.can_rest(now))
    }

    /// When `costs` may be taken, as far as the meters are concerned.
    pub(super) fn meters_ready(&self, costs: &Costs, now: Timestamp) -> When {
        let when = |meter: &Meter| meter.ready_at(cost_of(costs, meter.dimension), now);
        self.meters.iter().map(when).max().unwrap_or(When::Now)
    }

    /// Whether requests go one by one, because what a meter promises was not seen yet.
    pub(super) fn needs_probe(&self, now: Timestamp) -> bool {
        self.meters.iter().any(|meter| meter.needs_probe(now))
    }

    /// The sub-limit of a route, made if it is new.
    pub(super) fn sub_limit(&mut self, route: &Route, profile: &Profile) -> usize {
        let label = sub_limit_label(route);
        let known = self.sub_limits.iter().position(|sub_limit| *sub_limit.label == *label);
        known.unwrap_or_else(|| {
            self.sub_limits.push(SubLimit::new(&label, route, profile));
            self.sub_limits.len() - 1
        })
    }
}

pub(super) fn cost_of(costs: &Costs, dimension: u8) -> u64 {
    costs.get(usize::from(dimension)).map_or(0, |cost| u64::from(*cost))
}
