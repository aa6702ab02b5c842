//! What a response says about the limit, in numbers.

use core::time::Duration;

use crate::profile::{Observation, Reading};

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// The server did the work.
    #[default]
    Accepted,
    /// The server refused because of a limit: a 429, or what its profile calls one.
    Limited,
    /// Anything else, such as a 503: says nothing about the limit unless it carries the fields.
    Failed,
}

/// One response, as far as pacing is concerned. Every number may be missing, wrong or absurd.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[must_use]
pub struct Feedback {
    /// How the request ended.
    pub outcome: Outcome,
    /// Units per period, from the policy field.
    pub limit: Option<u64>,
    /// The period, from the policy field.
    pub period: Option<Duration>,
    /// Units left after this request, with decimals if the server gives them.
    pub remaining: Option<f64>,
    /// Time until the quota is whole again.
    pub reset_after: Option<Duration>,
    /// Time until another try is worthwhile.
    pub retry_after: Option<Duration>,
}

impl Feedback {
    /// An answer that says nothing but how the request ended.
    pub fn bare(outcome: Outcome) -> Self {
        Self { outcome, ..Self::default() }
    }

    /// What a response says, as a profile reads it.
    ///
    /// Of several dimensions the one to pace by is the one that refills most slowly: it binds in
    /// the long run.
    pub fn of_observation(observation: &Observation) -> Self {
        let unit_ns = |reading: &&Reading| match (reading.limit, reading.window) {
            (Some(limit), Some(window)) if limit > 0 => window.as_nanos() / u128::from(limit),
            _ => 0,
        };
        let told = observation.readings.iter().filter(|reading| reading.remaining.is_some());
        // Of equals the first: the profile's order is that of importance.
        Self::of_reading(observation, told.rev().max_by_key(unit_ns))
    }

    /// What a response says about one dimension.
    pub(crate) fn of_reading(observation: &Observation, binding: Option<&Reading>) -> Self {
        Self {
            outcome: observation.outcome,
            limit: binding.and_then(|reading| reading.limit),
            period: binding.and_then(|reading| reading.window),
            remaining: binding.and_then(|it| it.remaining).map(|units| units as f64),
            reset_after: binding.and_then(|reading| reading.reset_after),
            retry_after: observation.retry_after,
        }
    }

    /// The same answer with `remaining` units left.
    pub const fn with_remaining(self, remaining: f64) -> Self {
        Self { remaining: Some(remaining), ..self }
    }

    /// The same answer with a policy of `limit` units per `period`.
    pub const fn with_policy(self, limit: u64, period: Duration) -> Self {
        Self { limit: Some(limit), period: Some(period), ..self }
    }
}
