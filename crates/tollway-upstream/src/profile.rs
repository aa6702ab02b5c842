//! How an API speaks of its limits, as data: routes, header fields, units, signals.
//!
//! ```text
//!  TOML ─► file (raw) ─► Profile (validated) ─┬─ route(method, target) ─► Route
//!                                             └─ read(response)        ─► Observation
//! ```
//!
//! The same field name carries different units (`RateLimit-Reset` is a delta for the IETF, an epoch
//! for GitLab and Twitch), so nothing is guessed where a profile can say it. A profile says what
//! is *told*; what it means for the next request is decided in [`crate::budget`].
//!
//! **Invariants.** No response panics. A malformed field is ignored and counted
//! ([`Observation::malformed`]). Waits are clamped to a day, and rounded up; one of
//! more than a month is malformed, and five minutes instead.
//!
//! Deliberately absent: code per API. What cannot be said in the file is said by no profile.

mod body;
mod build;
mod builtin;
mod dimension;
mod file;
mod observation;
mod pattern;
mod read;
mod recording;
mod route;
mod routing;
mod signal;
mod usage;

pub use dimension::Dimension;
pub(crate) use dimension::{Reach, Window};
pub use observation::{Observation, Reading, Scope};
pub use recording::Recording;
#[cfg(feature = "redis")]
pub(crate) use route::RouteFields;
pub use route::{Costs, DIMENSIONS_MAX, Route};
pub(crate) use routing::fingerprint;
pub use usage::{USAGE_BYTES_MAX, Usage};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tollway_core::Quota;
use tollway_core::fields::Lines;

/// One response, as far as a profile reads it.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The status code.
    pub status: u16,
    /// The header lines.
    pub lines: &'a Lines<'a>,
    /// The beginning of the body, as many bytes as [`Profile::body_wanted`] said, or nothing.
    pub body: &'a [u8],
    /// The reader's time since the Unix epoch when the header lines arrived.
    pub now: Duration,
}

/// A limit over all routes that no field tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlobalLimit {
    /// So many requests in any period.
    #[serde(rename = "limit", deserialize_with = "file::global_quota")]
    pub quota: Quota,
    /// By how much requests may differ in how long they travel: two that leave a period apart
    /// arrive up to so much closer together.
    #[serde(default = "GlobalLimit::usual_jitter", deserialize_with = "file::duration")]
    pub jitter: Duration,
}

impl GlobalLimit {
    /// The most units: the time of each request of the last period is remembered.
    pub const UNITS_MAX: u64 = 65_536;

    const fn usual_jitter() -> Duration {
        Duration::from_millis(100)
    }
}

/// How long an API may take that takes longer than most, or less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Timeouts {
    /// For the head of an answer, once it has the request.
    #[serde(deserialize_with = "file::optional_duration")]
    pub head: Option<Duration>,
    /// Between two pieces of a body.
    #[serde(deserialize_with = "file::optional_duration")]
    pub idle: Option<Duration>,
}

/// A validated description of how an API speaks of its limits.
#[derive(Clone, Debug)]
pub struct Profile {
    name: String,
    about: String,
    docs: Option<String>,
    upstream: Option<String>,
    credentials: Vec<dimension::FieldName>,
    timeouts: Timeouts,
    routing: routing::Routing,
    global: Option<GlobalLimit>,
    concurrency: Option<u32>,
    first_burst: u32,
    opens_up_to: u32,
    bucket: Option<dimension::FieldName>,
    dimensions: Vec<Dimension>,
    retry: signal::Retry,
    signals: Vec<signal::Signal>,
    invalid: Option<signal::Invalid>,
}

impl Profile {
    /// Reads a profile from the text of a TOML file.
    ///
    /// ```
    /// use tollway_upstream::profile::Profile;
    ///
    /// let error = Profile::parse("name = 'mine'\n[global]\nlimit = 'fifty'\n").unwrap_err();
    /// assert_eq!(error.to_string(), "line 3: global.limit: `fifty` is not a quota such as 50/1s");
    /// ```
    ///
    /// # Errors
    ///
    /// Names the line and the field that is wrong, and says what would be right.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        build::build(text)
    }

    /// A profile that is shipped, by name.
    #[must_use]
    pub fn builtin(name: &str) -> Option<Arc<Self>> {
        builtin::find(name)
    }

    /// The names of the profiles that are shipped.
    #[must_use]
    pub fn builtins() -> Vec<&'static str> {
        builtin::TEXTS.iter().map(|(name, _)| *name).collect()
    }

    /// The text of a profile that is shipped, to begin a new one from.
    #[must_use]
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        builtin::TEXTS.iter().find(|(found, _)| *found == name).map(|(_, text)| *text)
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it describes, in a sentence.
    #[must_use]
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Where the API documents its limits.
    #[must_use]
    pub fn docs(&self) -> Option<&str> {
        self.docs.as_deref()
    }

    /// The address of the API.
    #[must_use]
    pub fn upstream(&self) -> Option<&str> {
        self.upstream.as_deref()
    }

    /// The header fields that carry a credential, in lower case: the first that a request has
    /// counts, and no other. Empty if that is not known.
    pub fn credential_fields(&self) -> impl Iterator<Item = &str> {
        self.credentials.iter().map(|name| &**name)
    }

    /// How long the API may take, where that is stated.
    #[must_use]
    pub fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// The limit over all routes.
    #[must_use]
    pub fn global(&self) -> Option<GlobalLimit> {
        self.global
    }

    /// Requests that may be in flight at once.
    #[must_use]
    pub fn concurrency(&self) -> Option<u32> {
        self.concurrency
    }

    /// Requests that may be in flight before the first answer of a bucket tells anything.
    #[must_use]
    pub fn first_burst(&self) -> u32 {
        self.first_burst
    }

    /// Requests of one route or lane that may be in flight at once where nothing tells its limit,
    /// until a refusal has.
    #[must_use]
    pub fn opens_up_to(&self) -> u32 {
        self.opens_up_to
    }

    /// What is counted.
    #[must_use]
    pub fn dimensions(&self) -> &[Dimension] {
        &self.dimensions
    }

    /// The place of the dimension of that name in the profile's order.
    #[must_use]
    pub fn dimension_index(&self, name: &str) -> Option<usize> {
        self.dimensions.iter().position(|dimension| dimension.name == name)
    }

    /// The time between two requests at the slowest pace that the documentation states for every
    /// bucket, where no answer tells it.
    pub(crate) fn documented_pace(&self) -> Option<Duration> {
        let of_bucket = |of: &&Dimension| of.is_modelled() && of.reach == Reach::Bucket;
        let pace = |of: &Dimension| {
            let units = u32::try_from(of.stated?.units()).unwrap_or(u32::MAX).max(1);
            Some(of.stated?.period().saturating_add(of.slack) / units)
        };
        self.dimensions.iter().filter(of_bucket).filter_map(pace).max()
    }

    /// Whether requests can be paced by it: it has a dimension that is one bucket for the whole
    /// credential (`common = true`).
    #[must_use]
    pub fn can_pace(&self) -> bool {
        self.dimensions.iter().any(Dimension::is_common)
    }

    /// This profile for a credential that is paced, with the index of the dimension that paces it.
    pub(crate) fn paced(&self) -> Option<(Self, u8)> {
        let index = self.dimensions.iter().position(Dimension::is_common)?;
        let mut paced = self.clone();
        paced.dimensions[index].is_paced = true;
        Some((paced, u8::try_from(index).ok()?))
    }

    /// The name of a dimension, and which of its windows if there are several.
    pub(crate) fn dimension_name(&self, dimension: usize, part: u8) -> String {
        let name = self.dimensions.get(dimension).map_or("requests", Dimension::name);
        match part {
            // The last number stands for a limit that the profile states for one route.
            0 | u8::MAX => name.to_owned(),
            part => format!("{name}/{part}"),
        }
    }

    /// The wait after a refusal that does not say one.
    #[must_use]
    pub fn retry_unsaid(&self) -> Duration {
        self.retry.unsaid
    }

    /// Where a request goes: `target` is the path, with the query if there is one.
    #[must_use]
    pub fn route(&self, method: &str, target: &str) -> Route {
        self.routing.route(method, target, None)
    }

    /// As [`Self::route`], with the beginning of the request's body where the profile has lanes
    /// that depend on it ([`Self::body_lanes`]).
    #[must_use]
    pub fn route_with_body(&self, method: &str, target: &str, body: &[u8]) -> Route {
        self.routing.route(method, target, Some(body))
    }

    /// Whether requests of this method and target belong to different lanes by their bodies.
    #[must_use]
    pub fn body_lanes(&self, method: &str, target: &str) -> bool {
        self.routing.has_body_lane(method, target)
    }

    /// Bytes of the body that [`Self::read`] needs to tell a limit from another answer; usually 0.
    #[must_use]
    pub fn body_wanted(&self, status: u16, lines: &Lines<'_>) -> usize {
        read::body_wanted(self, status, lines)
    }

    /// What a response says about the limits.
    #[must_use]
    pub fn read(&self, response: &Response<'_>) -> Observation {
        read::observe(self, response)
    }
}

/// Why a text is not a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileError {
    /// The line, from 1.
    pub line: usize,
    /// The field, such as `dimensions[1].reset.form`; empty if the text is not TOML at all.
    pub field: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ProfileError {}
