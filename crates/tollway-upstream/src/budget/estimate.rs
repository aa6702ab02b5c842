//! How long a request would wait, and what can be seen of a bucket from outside.

use std::borrow::Cow;
use std::time::Duration;

use tollway_core::Timestamp;

use super::bucket::{Bucket, cost_of};
use super::budgets::Budgets;
use super::meter::Meter;
use super::names::{RoutesByName, sub_limit_label};
use super::{BucketView, DimensionView, LastRefusal, Priority};
use crate::fair_queue::count_to;
use crate::profile::{Costs, Route};

impl Budgets {
    /// How long a newcomer would wait, if answers came at once: a lower bound, and a close one
    /// where requests are short beside windows.
    pub(super) fn estimate(
        &self,
        slot: u32,
        route: &Route,
        costs: &Costs,
        priority: Priority,
        now: Timestamp,
    ) -> Duration {
        let Some(bucket) = self.table.get(slot) else { return Duration::ZERO };
        let own = self.bucket_wait(bucket, costs, priority, now);
        let sub_limits = bucket.busy.as_deref().map_or(&[][..], |busy| &busy.sub_limits);
        let label = sub_limit_label(route);
        let sub_limit = sub_limits.iter().find(|sub_limit| *sub_limit.label == *label);
        let sub_limit = sub_limit.map_or(Duration::ZERO, |sub_limit| sub_limit.wait(now));
        let all =
            if route.is_exempt_from_global() { Duration::ZERO } else { self.gate_wait(costs, now) };
        own.max(sub_limit).max(all)
    }

    pub(super) fn view(
        &self,
        bucket: &Bucket,
        known: &RoutesByName<'_>,
        now: Timestamp,
    ) -> BucketView {
        let mut costs = Costs::default();
        costs[0] = 1;
        let meters = self.meters(bucket);
        let busy = bucket.busy.as_deref();
        let sub_limits = busy.map_or(&[][..], |busy| &busy.sub_limits);
        let blocked = |sub_limit: &super::sub_limit::SubLimit| {
            Some((sub_limit.label.to_string(), sub_limit.blocked_for(now)?))
        };
        BucketView {
            id: bucket.name.to_string(),
            knowledge: bucket.knowledge,
            dimensions: meters.iter().map(|meter| self.dimension_view(meter, now)).collect(),
            in_flight: busy.map_or(0, |busy| busy.flights.len() as u32),
            queued: busy.map_or(0, |busy| busy.queued),
            wait: self
                .bucket_wait(bucket, &costs, Priority::Low, now)
                .max(self.gate_wait(&costs, now)),
            divergence: meters.iter().map(|meter| meter.divergence).min().unwrap_or(0),
            blocked_for: bucket.is_blocked_until(now).map(|until| until.since(now)),
            blocked_lanes: sub_limits.iter().filter_map(blocked).collect(),
            last_refusal: bucket.refusal.as_deref().map(|refused| LastRefusal {
                ago: now.since(refused.at),
                scope: refused.scope,
                retry_after: refused.wait,
            }),
            routes: known.of(bucket),
            why: self.why(bucket, now),
        }
    }

    fn bucket_wait(
        &self,
        bucket: &Bucket,
        costs: &Costs,
        priority: Priority,
        now: Timestamp,
    ) -> Duration {
        let blocked = bucket.is_blocked_until(now).map_or(Duration::ZERO, |at| at.since(now));
        let sub_limits = bucket.busy.as_deref().map_or(&[][..], |busy| &busy.sub_limits);
        let ahead = sub_limits
            .iter()
            .map(|sub_limit| count_to(&sub_limit.queue, priority) as u64)
            .sum::<u64>();
        let meters = self.meters(bucket);
        let wait = |meter: &Meter| {
            let cost = cost_of(costs, meter.dimension);
            if cost == 0 { Duration::ZERO } else { meter.estimate((ahead + 1) * cost, now) }
        };
        meters.iter().map(wait).max().unwrap_or_default().max(blocked)
    }

    fn gate_wait(&self, costs: &Costs, now: Timestamp) -> Duration {
        let account = self.bucket_wait(&self.account, costs, Priority::Low, now);
        let ahead = self.ready[0].len() as u64;
        let global = self.global.as_ref().map_or(Duration::ZERO, |global| {
            let waits = (ahead + 1 + global.live(now)).saturating_sub(global.units());
            let next = global.ready_at(1, now).since(now);
            let rounds = waits.saturating_sub(1) / global.units().max(1);
            if waits == 0 {
                Duration::ZERO
            } else {
                next.saturating_add(Duration::from_nanos(global.span_ns().saturating_mul(rounds)))
            }
        });
        let paced = self
            .pacing
            .as_ref()
            .map_or(Duration::ZERO, |pacing| pacing.wait(self.waiters.len() as u64, costs, now));
        account.max(global).max(paced)
    }

    /// The meters of a bucket; of an idle one as they would be if it were woken.
    pub(super) fn meters<'a>(&self, bucket: &'a Bucket) -> Cow<'a, [Meter]> {
        if let Some(busy) = &bucket.busy {
            return Cow::Borrowed(&busy.meters);
        }
        let dimensions = self.profile.dimensions();
        let wake = |rest: &super::meter::Rest| {
            dimensions.get(usize::from(rest.dimension)).map(|of| Meter::wake(rest, of))
        };
        bucket.rests.as_slice().iter().filter_map(wake).collect()
    }

    pub(super) fn dimension_view(&self, meter: &Meter, now: Timestamp) -> DimensionView {
        DimensionView {
            name: self.profile.dimension_name(usize::from(meter.dimension), meter.part),
            limit: meter.limit,
            remaining: meter.available(now),
            resets_in: meter.resets_at(now).map(|at| at.since(now)),
            sliding: match meter.kind {
                super::meter::Kind::Auto => None,
                kind => Some(kind.is_sliding()),
            },
        }
    }
}
