//! What a run is about: a server, clients that share it, and what goes wrong.

mod builtin;
pub(crate) mod text;

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use tollway_core::spelling::unknown;
use tollway_core::{Cost, Quota};

pub use builtin::NAMES;

use crate::fault::Faults;
use crate::latency::Latency;
use crate::simulated_server::{Limiting, ServerSpec};
use crate::strategy::Kind;

/// More clients than this would be a mistake, and their series would not fit into memory.
const TASKS_MAX: u64 = 100_000;
/// The longest run: a year.
const LENGTH_MAX: Duration = Duration::from_secs(366 * 86_400);

/// A scenario. Built-in ones have names ([`NAMES`]); others are TOML files.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scenario {
    /// Its name in reports.
    #[serde(default = "text::unnamed")]
    pub name: String,
    /// What it shows, in one sentence.
    #[serde(default)]
    pub about: String,
    /// How long it lasts.
    #[serde(deserialize_with = "text::duration")]
    pub length: Duration,
    /// The server.
    #[serde(default)]
    pub server: ServerSpec,
    /// Units that pacers leave unspent, if not the usual number.
    #[serde(default)]
    pub reserve: Option<u64>,
    /// The clients.
    pub clients: Vec<Client>,
    /// What goes wrong.
    #[serde(default)]
    pub faults: Faults,
}

/// Some processes of the same kind.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Client {
    /// How many processes.
    pub processes: u32,
    /// Threads or tasks in each.
    pub threads: u32,
    /// When they start.
    #[serde(deserialize_with = "text::duration")]
    pub joins: Duration,
    /// Each starts at a random moment of this time after that.
    #[serde(deserialize_with = "text::duration")]
    pub joins_within: Duration,
    /// When they stop, if before the end.
    #[serde(deserialize_with = "text::some_duration")]
    pub leaves: Option<Duration>,
    /// Round trips.
    pub latency: Latency,
    /// The sleep to begin with; for pacers, the wait before the first request.
    #[serde(deserialize_with = "text::duration")]
    pub start_sleep: Duration,
    /// Time between an answer and the wish for the next request; none means saturated.
    #[serde(deserialize_with = "text::duration")]
    pub think: Duration,
    /// Busy for a while, idle for a while.
    pub duty: Option<Duty>,
    /// The share asked for relative to the others.
    pub weight: u32,
    /// Units per request.
    pub cost: u64,
    /// The refill rate that they believe in, relative to the true one.
    pub believes: f64,
    /// How fast their clocks run wrong, in millionths.
    pub clock_skew_ppm: i64,
    /// A step of their clocks.
    pub clock_step: Option<ClockStep>,
    /// A strategy of their own, whatever the rest follow.
    pub strategy: Option<Kind>,
    /// The owner whose share they use, of a server with shares.
    pub owner: Option<String>,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            processes: 1,
            threads: 1,
            joins: Duration::ZERO,
            joins_within: Duration::ZERO,
            leaves: None,
            latency: Latency::default(),
            start_sleep: Duration::ZERO,
            think: Duration::ZERO,
            duty: None,
            weight: 1,
            cost: 1,
            believes: 1.0,
            clock_skew_ppm: 0,
            clock_step: None,
            strategy: None,
            owner: None,
        }
    }
}

/// Busy for a while, idle for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Duty {
    /// How long it is busy.
    #[serde(deserialize_with = "text::duration")]
    pub on: Duration,
    /// How long it is idle afterwards.
    #[serde(deserialize_with = "text::duration")]
    pub off: Duration,
}

impl Duty {
    /// How long until it is busy, `since_join_ns` after it joined; none if it is.
    pub(crate) fn wakes_ns(self, since_join_ns: u64) -> Option<u64> {
        let (on_ns, cycle_ns) = (nanos(self.on), nanos(self.on).saturating_add(nanos(self.off)));
        let into_ns = since_join_ns % cycle_ns.max(1);
        (into_ns >= on_ns && cycle_ns > on_ns).then(|| cycle_ns - into_ns)
    }
}

/// A step of a clock, forward or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockStep {
    /// When it happens.
    #[serde(deserialize_with = "text::duration")]
    pub at: Duration,
    /// By how much, in milliseconds; negative is back.
    pub by_ms: i64,
}

impl ClockStep {
    pub(crate) fn by_ns(self) -> i64 {
        self.by_ms.saturating_mul(1_000_000)
    }
}

impl Scenario {
    /// The scenario that is built in under `name`.
    ///
    /// # Errors
    ///
    /// If there is none of that name.
    pub fn named(name: &str) -> Result<Self, ScenarioError> {
        builtin::find(name).ok_or_else(|| ScenarioError::UnknownName(name.to_owned()))
    }

    /// The scenario that a TOML text describes.
    ///
    /// # Errors
    ///
    /// If the text is not TOML, names unknown fields, or its numbers make no sense; the error says
    /// which and where.
    pub fn from_toml(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self =
            toml::from_str(text).map_err(|error| ScenarioError::Syntax(error.to_string()))?;
        scenario.checked()
    }

    /// The same scenario for another length.
    #[must_use]
    pub fn lasting(self, length: Duration) -> Self {
        Self { length, ..self }
    }

    /// The scenario, if a world can be made of it.
    ///
    /// # Errors
    ///
    /// Names the field that is wrong and what would be right.
    pub fn checked(self) -> Result<Self, ScenarioError> {
        let quota = self.server.quota()?;
        let tasks: u64 =
            self.clients.iter().map(|c| u64::from(c.processes) * u64::from(c.threads)).sum();
        let field = |name, wrong: bool, right: &str| {
            if wrong { Err(ScenarioError::field(name, right.to_owned())) } else { Ok(()) }
        };
        field("length", self.length.is_zero() || self.length > LENGTH_MAX, "up to 366 days")?;
        field("clients", tasks == 0 || tasks > TASKS_MAX, "between 1 and 100000 threads")?;
        field("server.start", self.server.start > quota.burst(), "at most the burst")?;
        let policy = self.server.policy()?;
        let is_tree = policy.shares().is_some();
        field("server.owners", !is_tree && !self.server.owners.is_empty(), "only with shares")?;
        let starts_short = is_tree && self.server.start < quota.burst();
        field("server.start", starts_short, "the burst: what shares hold is there at the start")?;
        field("server.noise", !(0.0..=1e9).contains(&self.server.noise), "0 or more")?;
        field("faults", !self.faults.is_valid(), "chances between 0 and 1")?;
        field("faults.timeout", self.faults.timeout_ns == 0, "more than 0")?;
        for client in &self.clients {
            let cost_is_wrong = client.cost == 0 || client.cost > quota.burst();
            field("clients.cost", cost_is_wrong, "between 1 and the burst")?;
            let is_owner = |owner: &String| self.server.owners.iter().any(|it| it.key == *owner);
            let is_unknown = client.owner.as_ref().is_some_and(|owner| !is_owner(owner));
            field("clients.owner", is_unknown, "the key of one of the server's owners")?;
            let believable = (1e-3..=1e3).contains(&client.believes);
            field("clients.believes", !believable, "between 0.001 and 1000")?;
            let is_absurd = client.belief(&self.server).is_none();
            field("clients.believes", is_absurd, "a quota whose period is at most 100 years")?;
        }
        Ok(self)
    }

    /// Units that could have been spent from `from_ns` to `to_ns`, leaving aside what was there
    /// before.
    pub fn capacity(&self, from_ns: u64, to_ns: u64) -> f64 {
        let period_ns = nanos(self.server.period) as f64;
        to_ns.saturating_sub(from_ns) as f64 / period_ns * self.server.limit as f64
    }

    /// Units that could have been spent from the start to `to_ns`.
    pub(crate) fn capacity_until(&self, to_ns: u64) -> f64 {
        let (start, limit) = (self.server.start as f64, self.server.limit as f64);
        match self.server.limiting {
            // The first window's units are those that are there at the start.
            Limiting::FixedWindow => {
                let windows = to_ns.div_ceil(nanos(self.server.period));
                windows as f64 * limit - (limit - start)
            }
            Limiting::Gcra | Limiting::Chunked | Limiting::Shares => {
                start + self.capacity(0, to_ns)
            }
        }
    }

    pub(crate) fn length_ns(&self) -> u64 {
        nanos(self.length)
    }

    /// Every process in order, with the description of its kind.
    pub(crate) fn each_process(&self) -> impl Iterator<Item = &Client> {
        self.clients.iter().flat_map(|client| (0..client.processes).map(move |_| client))
    }
}

impl Client {
    /// The quota that these clients take the server's to be.
    pub(crate) fn believed(&self, server: &ServerSpec) -> Quota {
        self.belief(server).expect("a scenario checks its quota and beliefs when it is built")
    }

    fn belief(&self, server: &ServerSpec) -> Option<Quota> {
        let burst = server.burst.unwrap_or(server.limit);
        let period = server.period.div_f64(self.believes);
        Quota::with_burst(server.limit, period, burst).ok()
    }

    pub(crate) fn cost(&self) -> Cost {
        Cost::new(self.cost).unwrap_or(Cost::ONE)
    }
}

/// Why a scenario cannot be run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScenarioError {
    /// No built-in scenario has this name.
    UnknownName(String),
    /// The text is not a scenario in TOML; the message shows the line.
    Syntax(String),
    /// A field's value makes no sense.
    Field {
        /// Which field.
        field: &'static str,
        /// What would be right.
        right: String,
    },
}

impl ScenarioError {
    pub(crate) const fn field(field: &'static str, right: String) -> Self {
        Self::Field { field, right }
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownName(name) => {
                let told = unknown("scenario", name, NAMES);
                let file = if told.ends_with('?') { "" } else { ", or a file that ends in .toml" };
                write!(f, "{told}{file}")
            }
            Self::Syntax(message) => f.write_str(message),
            Self::Field { field, right } => write!(f, "`{field}`: {right}"),
        }
    }
}

impl std::error::Error for ScenarioError {}

/// A duration in whole nanoseconds.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
