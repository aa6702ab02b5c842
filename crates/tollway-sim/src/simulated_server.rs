//! The servers that clients share: the production limiters, and what they say in their answers.

use serde::Deserialize;
use std::time::Duration;

use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::gcra::Gcra;
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::{Algorithm, Charge, Cost, Key, Policy, Quota, Retry, State, Timestamp};
use tollway_upstream::pace::{Dice, Feedback, Outcome};

use crate::latency::normal;
use crate::scenario::{ScenarioError, text};

/// How a server limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Limiting {
    /// A bucket that refills continuously.
    #[default]
    Gcra,
    /// Everything back at once when a window ends.
    FixedWindow,
    /// A bucket that refills in sixty chunks per period.
    Chunked,
}

/// A server in a scenario.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ServerSpec {
    /// How it limits.
    pub limiting: Limiting,
    /// Units per period.
    pub limit: u64,
    /// The period.
    #[serde(deserialize_with = "text::duration")]
    pub period: Duration,
    /// Units that an idle token may take at once; the limit if not given. Only for GCRA.
    pub burst: Option<u64>,
    /// Units in the bucket at the start.
    pub start: u64,
    /// Standard deviation of the noise added to `remaining`.
    pub noise: f64,
    /// Whether answers carry the policy, so that clients need not know it.
    pub tells_policy: bool,
    /// Whether answers carry the time until the quota is whole.
    pub tells_reset: bool,
    /// Whether refusals carry `Retry-After`.
    pub tells_retry: bool,
}

impl Default for ServerSpec {
    /// The Heroku API: 4,500 per hour, refilled continuously, nothing told but `remaining`.
    fn default() -> Self {
        Self {
            limiting: Limiting::Gcra,
            limit: 4_500,
            period: Duration::from_secs(3_600),
            burst: None,
            start: 0,
            noise: 0.0,
            tells_policy: false,
            tells_reset: false,
            tells_retry: false,
        }
    }
}

impl ServerSpec {
    /// The quota.
    ///
    /// # Errors
    ///
    /// If the numbers make no quota.
    pub fn quota(&self) -> Result<Quota, ScenarioError> {
        let burst = self.burst.unwrap_or(self.limit);
        Quota::with_burst(self.limit, self.period, burst)
            .map_err(|error| ScenarioError::field("server", error.to_string()))
    }
}

/// A server at work. It drives the limiters of `tollway-core`, not models of them.
pub struct Server {
    policy: Policy,
    state: State,
    quota: Quota,
    noise: f64,
    tells_policy: bool,
    tells_reset: bool,
    tells_retry: bool,
    dice: Dice,
}

impl Server {
    /// The server that `spec` describes, at the start.
    ///
    /// # Panics
    ///
    /// If the numbers make no quota; a [`Scenario`](crate::Scenario) has checked that they do.
    pub fn new(spec: &ServerSpec, dice: Dice) -> Self {
        let quota = spec.quota().expect("a scenario checks its quota when it is built");
        let algorithm = match spec.limiting {
            Limiting::Gcra => Algorithm::from(Gcra::new(quota)),
            Limiting::FixedWindow => FixedWindow::new(quota, Anchor::Epoch).into(),
            Limiting::Chunked => {
                chunked(quota).expect("a scenario checks its chunks when it is built").into()
            }
        };
        let mut state = State::vacant(&algorithm);
        if let Some(spent) = Cost::new(quota.burst().saturating_sub(spec.start)) {
            let _ = state.count(&algorithm, spent, 0, Timestamp::MIN);
        }
        Self {
            policy: Policy::new("server", algorithm).expect("a name that is one"),
            state,
            quota,
            noise: spec.noise,
            tells_policy: spec.tells_policy,
            tells_reset: spec.tells_reset,
            tells_retry: spec.tells_retry,
            dice,
        }
    }

    /// Decides about a request.
    pub fn decide(&mut self, cost: Cost, now_ns: u64) -> Feedback {
        let charge = Charge::new(&self.policy, Key::new("token").expect("a key")).cost(cost);
        let decision = self.state.charge(&charge, 0, Timestamp::from_nanos(now_ns));
        let snapshot = decision.snapshot();
        let outcome = if decision.is_allowed() { Outcome::Accepted } else { Outcome::Limited };
        let mut answer = Feedback::bare(outcome).with_remaining(self.blur(snapshot.remaining()));
        if self.tells_policy {
            answer = answer.with_policy(self.quota.units(), self.quota.period());
        }
        if self.tells_reset {
            answer.reset_after = Some(whole_seconds(snapshot.reset_after()));
        }
        if self.tells_retry {
            answer.retry_after = decision.retry().and_then(Retry::after).map(whole_seconds);
        }
        answer
    }

    /// Units left.
    pub fn level(&self, now_ns: u64) -> u64 {
        self.state.peek(self.policy.algorithm(), Timestamp::from_nanos(now_ns)).remaining()
    }

    fn blur(&mut self, remaining: u64) -> f64 {
        if self.noise == 0.0 {
            return remaining as f64;
        }
        (remaining as f64 + self.noise * normal(&mut self.dice)).round()
    }
}

/// The bucket that refills in sixty chunks per period, if they are long enough.
pub(crate) fn chunked(quota: Quota) -> Option<LeakyBucket> {
    LeakyBucket::new(quota.burst(), quota.units().div_ceil(60), quota.period() / 60).ok()
}

/// As header fields say it: in whole seconds, rounded up.
fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(tollway_core::fields::seconds_up(duration))
}
