//! The servers that clients share: the production limiters, and what they say in their answers.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::gcra::Gcra;
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::shares::{Expanded, Owner, Percent};
use tollway_core::{
    Algorithm, Charge, Cost, Decision, Key, Policy, Quota, Retry, State, Timestamp,
};
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
    /// A bucket that refills continuously, shared by a tree of owners.
    Shares,
}

/// An owner in a tree: see [`Owner`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnerSpec {
    /// The name by which clients belong to it.
    pub key: String,
    /// The owner above it.
    #[serde(default)]
    pub parent: Option<String>,
    /// What is guaranteed to it, as `40%`.
    #[serde(default)]
    pub floor: Option<String>,
    /// What it never exceeds, as `80%`.
    #[serde(default)]
    pub ceiling: Option<String>,
}

impl OwnerSpec {
    fn owner(&self) -> Result<Owner, ScenarioError> {
        let part = |part: &Option<String>| {
            let part = part.as_deref().map(str::parse::<Percent>).transpose();
            part.map_err(|error| ScenarioError::field("server.owners", error.to_string()))
        };
        let (key, parent) = (self.key.clone(), self.parent.clone());
        Ok(Owner { key, parent, floor: part(&self.floor)?, ceiling: part(&self.ceiling)? })
    }
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
    /// Who shares the quota. Only for shares.
    pub owners: Vec<OwnerSpec>,
    /// Within what time lent units are taken back, if not the usual one. Only for shares.
    #[serde(deserialize_with = "text::some_duration")]
    pub reclaim: Option<Duration>,
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
            owners: Vec::new(),
            reclaim: None,
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

    /// The policy that it enforces.
    ///
    /// # Errors
    ///
    /// If the numbers make no quota, or the owners no tree.
    pub fn policy(&self) -> Result<Policy, ScenarioError> {
        let quota = self.quota()?;
        let algorithm = match self.limiting {
            Limiting::Gcra => Algorithm::from(Gcra::new(quota)),
            Limiting::FixedWindow => FixedWindow::new(quota, Anchor::Epoch).into(),
            Limiting::Chunked => match chunked(quota) {
                Some(bucket) => bucket.into(),
                None => return Err(ScenarioError::field("server.period", CHUNKS.to_owned())),
            },
            Limiting::Shares => {
                let owners = self.owners.iter().map(OwnerSpec::owner).collect::<Result<_, _>>()?;
                let policy = Policy::shared("server", quota, self.reclaim, owners);
                return policy.map_err(|error| ScenarioError::field("server", error.to_string()));
            }
        };
        Ok(Policy::new("server", algorithm).expect("a name that is one"))
    }
}

/// What buckets that refill in chunks need.
const CHUNKS: &str = "sixty chunks of a nanosecond or more";

/// A server at work. It drives the limiters of `tollway-core`, not models of them.
pub struct Server {
    policy: Policy,
    state: State,
    /// The buckets of a tree of owners, by the identity of their policies.
    buckets: BTreeMap<u64, State>,
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
        let policy = spec.policy().expect("a scenario checks its server when it is built");
        let mut state = State::vacant(policy.algorithm());
        if let Some(spent) = Cost::new(quota.burst().saturating_sub(spec.start)) {
            let _ = state.count(policy.algorithm(), spent, 0, Timestamp::MIN);
        }
        Self {
            policy,
            state,
            buckets: BTreeMap::new(),
            quota,
            noise: spec.noise,
            tells_policy: spec.tells_policy,
            tells_reset: spec.tells_reset,
            tells_retry: spec.tells_retry,
            dice,
        }
    }

    /// Decides about a request of somebody who belongs to `owner`.
    pub fn decide(&mut self, cost: Cost, owner: &str, now_ns: u64) -> Feedback {
        let decision = self.decision(cost, owner, Timestamp::from_nanos(now_ns));
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

    /// Units left; of a tree those that nobody has a floor for.
    pub fn level(&self, now_ns: u64) -> u64 {
        let now = Timestamp::from_nanos(now_ns);
        if self.policy.shares().is_none() {
            return self.state.peek(self.policy.algorithm(), now).remaining();
        }
        let charges = [Charge::new(&self.policy, key(""))];
        let (expanded, slots, states) = self.expanded(&charges);
        expanded.report(0, &slots, &states, now).remaining()
    }

    fn decision(&mut self, cost: Cost, owner: &str, now: Timestamp) -> Decision {
        let charges = [Charge::new(&self.policy, key(owner)).cost(cost)];
        if self.policy.shares().is_none() {
            return self.state.charge(&charges[0], 0, now);
        }
        let (expanded, slots, mut states) = self.expanded(&charges);
        let verdict = expanded.decide(&slots, &mut states, 0, now);
        let ids = expanded.charges().iter().map(|part| part.policy.id());
        let after: Vec<(u64, State)> = ids.zip(states).collect();
        self.buckets.extend(after);
        verdict.decisions()[0]
    }

    /// A charge to a tree in parts, with the state of each.
    fn expanded<'c>(&self, charges: &[Charge<'c>]) -> (Expanded<'c>, Vec<usize>, Vec<State>) {
        let expanded = Expanded::of(charges);
        let state = |part: &Charge<'_>| {
            let known = self.buckets.get(&part.policy.id()).cloned();
            known.unwrap_or_else(|| State::vacant(part.policy.algorithm()))
        };
        let states: Vec<State> = expanded.charges().iter().map(state).collect();
        (expanded, (0..states.len()).collect(), states)
    }

    fn blur(&mut self, remaining: u64) -> f64 {
        if self.noise == 0.0 {
            return remaining as f64;
        }
        (remaining as f64 + self.noise * normal(&mut self.dice)).round()
    }
}

/// The key of an owner; who belongs to none is somebody.
fn key(owner: &str) -> Key<'_> {
    Key::new(owner).unwrap_or_else(|_| Key::new("token").expect("a key"))
}

/// The bucket that refills in sixty chunks per period, if they are long enough.
pub(crate) fn chunked(quota: Quota) -> Option<LeakyBucket> {
    LeakyBucket::new(quota.burst(), quota.units().div_ceil(60), quota.period() / 60).ok()
}

/// As header fields say it: in whole seconds, rounded up.
fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(tollway_core::fields::seconds_up(duration))
}
