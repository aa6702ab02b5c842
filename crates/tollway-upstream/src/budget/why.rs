//! Why the requests of a bucket wait: the questions of `grant`, asked for people.

use tollway_core::Timestamp;

use super::bucket::{Bucket, Busy, cost_of};
use super::budgets::Budgets;
use super::meter::{Meter, When};
use super::sub_limit::SubLimit;
use super::{WaitCause, Why};
use crate::profile::Costs;

impl Budgets {
    /// Why the requests of a bucket wait, what matters first; empty if none do.
    pub(super) fn why(&self, bucket: &Bucket, now: Timestamp) -> Vec<Why> {
        let Some(busy) = bucket.busy.as_deref().filter(|busy| busy.queued > 0) else {
            return Vec::new();
        };
        if let Some(until) = bucket.is_blocked_until(now) {
            return vec![timed(WaitCause::Blocked, until, now)];
        }
        let waiting = || busy.sub_limits.iter().filter(|sub_limit| !sub_limit.queue.is_empty());
        let is_silent = bucket.is_silent();
        let is_open = |sub_limit: &&SubLimit| sub_limit.ready(is_silent, now) == When::Now;
        let blocked = waiting().filter(|sub_limit| !is_open(sub_limit));
        let blocked = blocked.map(|sub_limit| sub_limit_why(sub_limit, is_silent, now));
        let first = waiting().find(is_open).and_then(|sub_limit| sub_limit.queue.iter().next());
        let first = first.map(|(_, waiting)| {
            let counted = !waiting.route.is_exempt_from_global();
            let own = self.own_why(bucket, busy, &waiting.costs, now);
            let gate = || counted.then(|| self.gate_why(&waiting.costs, now)).flatten();
            own.or_else(gate).unwrap_or_else(|| plain(WaitCause::Turn))
        });
        first.into_iter().chain(blocked).collect()
    }

    /// Why a bucket waits for itself.
    fn own_why(&self, bucket: &Bucket, busy: &Busy, costs: &Costs, now: Timestamp) -> Option<Why> {
        if busy.flights.is_empty() {
            return self.spent(busy, WaitCause::Spent, costs, now);
        }
        if self.awaits_probe(bucket, busy, now) {
            return Some(plain(WaitCause::Probe));
        }
        if bucket.is_silent() && busy.flights.len() >= self.settings.in_flight_max as usize {
            return Some(plain(WaitCause::InFlight));
        }
        let awaited = || busy.meters_ready(costs, now) == When::Answer;
        let spent = self.spent(busy, WaitCause::Spent, costs, now);
        spent.or_else(|| awaited().then(|| plain(WaitCause::Probe)))
    }

    /// Why it waits for what every request of the credential needs.
    fn gate_why(&self, costs: &Costs, now: Timestamp) -> Option<Why> {
        let busy = self.account.busy.as_deref()?;
        if let Some(until) = self.account.is_blocked_until(now) {
            return Some(timed(WaitCause::CredentialBlocked, until, now));
        }
        if self.account.waits_for_probe_until(now, self.settings.lease).is_some() {
            return Some(plain(WaitCause::CredentialProbe));
        }
        let in_flight = busy.flights.len();
        if self.profile.concurrency().is_some_and(|most| in_flight >= most as usize) {
            return Some(plain(WaitCause::Concurrency));
        }
        if self.awaits_probe(&self.account, busy, now) {
            return Some(plain(WaitCause::CredentialProbe));
        }
        let global = self.global.as_ref().map(|global| global.ready_at(1, now));
        if let Some(at) = global.filter(|at| *at > now) {
            return Some(timed(WaitCause::Global, at, now));
        }
        let slot = self.pacing.as_ref().map(|pacing| pacing.ready_at(costs, now));
        if let Some(When::At(at)) = slot {
            return Some(timed(WaitCause::Slot, at, now));
        }
        let awaited = || busy.meters_ready(costs, now) == When::Answer;
        let spent = self.spent(busy, WaitCause::CredentialSpent, costs, now);
        spent.or_else(|| awaited().then(|| plain(WaitCause::CredentialProbe)))
    }

    /// The dimension that keeps a request waiting for longest.
    fn spent(&self, busy: &Busy, cause: WaitCause, costs: &Costs, now: Timestamp) -> Option<Why> {
        let until = |meter: &Meter| match meter.ready_at(cost_of(costs, meter.dimension), now) {
            When::At(at) => Some((at, meter.dimension, meter.part)),
            When::Now | When::Answer => None,
        };
        let (at, dimension, part) = busy.meters.iter().filter_map(until).max()?;
        let what = Some(self.profile.dimension_name(usize::from(dimension), part));
        Some(Why { what, ..timed(cause, at, now) })
    }
}

fn sub_limit_why(sub_limit: &SubLimit, is_silent: bool, now: Timestamp) -> Why {
    let (cause, left) = match sub_limit.ready(is_silent, now) {
        When::At(at) => (WaitCause::SubLimit, Some(at.since(now))),
        _ if sub_limit.is_probing() => (WaitCause::Probe, None),
        _ => (WaitCause::InFlight, None),
    };
    Why { cause, what: Some(sub_limit.label.to_string()), left }
}

fn timed(cause: WaitCause, until: Timestamp, now: Timestamp) -> Why {
    Why { cause, what: None, left: Some(until.since(now)) }
}

fn plain(cause: WaitCause) -> Why {
    Why { cause, what: None, left: None }
}
