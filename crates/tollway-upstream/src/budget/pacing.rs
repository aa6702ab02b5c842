//! Pacing within budgets: a credential's common bucket is not counted, it hands out slots.
//!
//! ```text
//!  ready buckets ─► limits over all routes ─► Pacer: is it our slot? ─► Ticket
//!                                               ▲
//!            observe, abandon, cancel ──────────┘ remaining, refusals, what was never sent
//! ```
//!
//! A count of what is left is of no use where strangers take from it too: whoever sends while
//! something is left takes the slots of those who wait. So the meter of the paced dimension only
//! shows what is left, and the [`Pacer`] decides. Everything else that the budgets know applies
//! besides: buckets by route, sub-limits, blocks, the order in which those who wait go.

use std::collections::HashMap;
use std::time::Duration;

use tollway_core::{Cost, Timestamp};

use super::bucket::cost_of;
use super::budgets::Ticket;
use super::meter::When;
use crate::pace::{Feedback, Pacer, Sent, Settings};
use crate::profile::{Costs, Observation};

/// The pacer of a credential, and what it let go.
#[derive(Debug)]
pub(super) struct Pacing {
    pacer: Pacer,
    dimension: u8,
    sent: HashMap<Ticket, Sent>,
}

impl Pacing {
    pub(super) fn new(dimension: u8, settings: Settings) -> Self {
        Self { pacer: Pacer::new(settings), dimension, sent: HashMap::new() }
    }

    /// When the next request may leave.
    pub(super) fn ready_at(&self, costs: &Costs, now: Timestamp) -> When {
        let Some(cost) = self.cost(costs) else { return When::Now };
        let at = self.pacer.due_at(cost, now);
        if at <= now { When::Now } else { When::At(at) }
    }

    /// How long the last of `ahead` requests and one of `costs` would wait; an estimate.
    pub(super) fn wait(&self, ahead: u64, costs: &Costs, now: Timestamp) -> Duration {
        let Some(cost) = self.cost(costs) else { return Duration::ZERO };
        let first = self.pacer.due_at(cost, now).since(now);
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        first.saturating_add(self.pacer.interval().saturating_mul(ahead))
    }

    /// The time between two requests as of now, for display.
    pub(super) fn interval(&self) -> Duration {
        self.pacer.interval()
    }

    pub(super) fn send(&mut self, ticket: Ticket, costs: &Costs, now: Timestamp) {
        if let Some(cost) = self.cost(costs) {
            self.sent.insert(ticket, self.pacer.on_send(cost, now));
        }
    }

    pub(super) fn observe(&mut self, ticket: Ticket, observation: &Observation, now: Timestamp) {
        let Some(sent) = self.sent.remove(&ticket) else { return };
        let told = observation
            .readings
            .iter()
            .find(|reading| reading.dimension == self.dimension && reading.remaining.is_some());
        let feedback = Feedback::of_reading(observation, told);
        self.pacer.on_response(sent, &feedback, now);
    }

    pub(super) fn abandon(&mut self, ticket: Ticket, now: Timestamp) {
        if let Some(sent) = self.sent.remove(&ticket) {
            self.pacer.on_lost(sent, now);
        }
    }

    pub(super) fn cancel(&mut self, ticket: Ticket, now: Timestamp) {
        if let Some(sent) = self.sent.remove(&ticket) {
            self.pacer.on_unsent(sent, now);
        }
    }

    /// What a request takes from the paced dimension; none if it does not count there.
    fn cost(&self, costs: &Costs) -> Option<Cost> {
        Cost::new(cost_of(costs, self.dimension))
    }
}
