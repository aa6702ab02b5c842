//! The description of a fake upstream: limits, routes, header fields, all data.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::bodies::{AnswerSpec, ErrorSpec};
use super::fault::Scheduled;
use super::meter::{LimitSpec, Window};
use super::model::ModelSpec;
use super::say::Value;
use crate::scenario::text;

/// Profiles that come with the simulator, by name: the limits, and for APIs that people try their
/// own clients on the bodies that these read.
const PROFILES: [(&str, &str, &str); 10] = [
    ("anthropic", include_str!("profiles/anthropic.toml"), include_str!("bodies/anthropic.toml")),
    ("discord", include_str!("profiles/discord.toml"), include_str!("bodies/discord.toml")),
    ("github", include_str!("profiles/github.toml"), include_str!("bodies/github.toml")),
    ("gitlab", include_str!("profiles/gitlab.toml"), ""),
    ("heroku", include_str!("profiles/heroku.toml"), ""),
    ("ietf", include_str!("profiles/ietf.toml"), ""),
    ("openai", include_str!("profiles/openai.toml"), include_str!("bodies/openai.toml")),
    ("shopify", include_str!("profiles/shopify.toml"), ""),
    ("slack", include_str!("profiles/slack.toml"), include_str!("bodies/slack.toml")),
    ("stripe", include_str!("profiles/stripe.toml"), include_str!("bodies/stripe.toml")),
];

/// An upstream as data.
///
/// ```
/// use tollway_sim::fake_api::Spec;
///
/// let spec = Spec::named("discord").expect("it comes with the simulator");
/// assert_eq!(spec.global.map(|global| global.limit), Some(50));
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Spec {
    /// A request to try it with, such as `GET /user`; by default one on the first route that has a
    /// limit.
    #[serde(default)]
    pub example: Option<String>,
    /// One limit over all routes that are not exempt, by credential.
    #[serde(default)]
    pub global: Option<LimitSpec>,
    /// What brings a ban.
    #[serde(default)]
    pub ban: Option<BanSpec>,
    /// Limits by name; routes of one name share one.
    #[serde(default)]
    pub buckets: BTreeMap<String, BucketSpec>,
    /// The first that fits counts; a path that none fits is served without limits or fields.
    #[serde(default)]
    pub routes: Vec<RouteSpec>,
    /// Fields of every answer of a bucket.
    #[serde(default)]
    pub(super) fields: Vec<(String, Value)>,
    /// Fields of denials beside those.
    #[serde(default)]
    pub(super) denied_fields: Vec<(String, Value)>,
    /// Fields of denials by the global limit, instead of both.
    #[serde(default)]
    pub(super) global_fields: Vec<(String, Value)>,
    /// The status of denials.
    #[serde(default = "too_many")]
    pub denied_status: u16,
    /// The body of denials; `{retry}`, `{global}` are replaced.
    #[serde(default)]
    pub denied_body: String,
    /// What routes answer when they serve; the first that fits counts, an echo without any.
    #[serde(default)]
    pub answers: Vec<AnswerSpec>,
    /// What errors look like, by status.
    #[serde(default)]
    pub errors: BTreeMap<String, ErrorSpec>,
    /// The models, if it is an API of those: calls of them are limited by model only.
    #[serde(default)]
    pub model: Option<ModelSpec>,
    /// How long every answer stays under way.
    #[serde(default, deserialize_with = "text::duration")]
    pub latency: Duration,
    /// What an HTML 429 says in `Retry-After`.
    #[serde(default = "a_second", deserialize_with = "text::duration")]
    pub html_retry: Duration,
    /// What goes wrong, and when.
    #[serde(default)]
    pub faults: Vec<Scheduled>,
}

/// A request to try an upstream with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Its method.
    pub method: String,
    /// Its path.
    pub path: String,
}

/// A limit with a name.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BucketSpec {
    /// Requests per period.
    pub limit: u64,
    /// The period.
    #[serde(deserialize_with = "text::duration")]
    pub per: Duration,
    /// How it forgets.
    #[serde(default)]
    pub window: Window,
    /// Whose requests it counts.
    #[serde(default)]
    pub scope: Scope,
    /// Whether answers say nothing of it.
    #[serde(default)]
    pub silent: bool,
}

/// Whose requests a bucket counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Scope {
    /// Those of the credential.
    #[default]
    User,
    /// Those of everybody who uses the resource.
    Shared,
}

/// A route.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RouteSpec {
    /// Any if not given.
    #[serde(default)]
    pub method: Option<String>,
    /// Segments: literal, `{any}`, `{+counted by}`, and `*` for any rest.
    pub path: String,
    /// The bucket; none means neither limit nor fields.
    #[serde(default)]
    pub bucket: Option<String>,
    /// Whether the global limit does not count it.
    #[serde(default)]
    pub exempt: bool,
    /// Whether its 404s count as invalid.
    #[serde(default)]
    pub webhook: bool,
    /// A tighter limit on requests whose JSON body has a certain field.
    #[serde(default)]
    pub sub_limit: Option<SubLimitSpec>,
}

/// A limit inside a bucket that no field tells of.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SubLimitSpec {
    /// The field of the JSON body that it counts.
    pub field: String,
    /// Requests per period.
    pub limit: u64,
    /// The period.
    #[serde(deserialize_with = "text::duration")]
    pub per: Duration,
}

/// When an address is banned, and for how long.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BanSpec {
    /// So many invalid requests,
    pub invalid: u64,
    /// within this period.
    #[serde(deserialize_with = "text::duration")]
    pub per: Duration,
    /// How long it lasts.
    #[serde(deserialize_with = "text::duration")]
    pub lasting: Duration,
}

/// What is wrong with a description.
#[derive(Debug)]
pub struct SpecError(String);

impl Spec {
    /// A profile that comes with the simulator.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let (_, limits, bodies) = PROFILES.iter().find(|(found, ..)| *found == name)?;
        let text = format!("{limits}\n{bodies}");
        Some(Self::from_toml(&text).expect("a profile that comes with the simulator is tested"))
    }

    /// The names of the profiles that come with the simulator.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.iter().map(|(name, ..)| *name)
    }

    /// Reads a description.
    ///
    /// # Errors
    ///
    /// If it is no TOML, has unknown fields, a limit of zero, or a route to a bucket that is not
    /// there.
    pub fn from_toml(text: &str) -> Result<Self, SpecError> {
        let spec: Self = toml::from_str(text).map_err(|error| SpecError(error.to_string()))?;
        for route in &spec.routes {
            let bucket = route.bucket.as_ref();
            if let Some(name) = bucket.filter(|name| !spec.buckets.contains_key(*name)) {
                return Err(SpecError(format!("{}: no bucket is named `{name}`", route.path)));
            }
        }
        let is_request =
            |text: &str| text.split_once(" /").is_some_and(|(first, _)| !first.is_empty());
        if let Some(answer) = spec.answers.iter().find(|answer| !is_request(&answer.request)) {
            let found = &answer.request;
            return Err(SpecError(format!("`{found}`: expected a request like `GET /path`")));
        }
        if let Some(found) = spec.example.as_ref().filter(|example| !is_request(example)) {
            return Err(SpecError(format!("`{found}`: expected a request like `GET /path`")));
        }
        let of_models = spec.model.iter().flat_map(ModelSpec::limits);
        let limits = spec.buckets.values().map(BucketSpec::limit).chain(spec.global);
        if limits.chain(of_models).any(|limit| limit.limit == 0 || limit.per.is_zero()) {
            return Err(SpecError("a limit and its period must be at least one".to_owned()));
        }
        Ok(spec)
    }

    /// A request that a limit counts; none if nothing is limited by route.
    #[must_use]
    pub fn example(&self) -> Option<Example> {
        if let Some((method, path)) = self.example.as_deref().and_then(|text| text.split_once(' '))
        {
            return Some(Example { method: method.to_owned(), path: path.to_owned() });
        }
        let route = self.routes.iter().find(|route| route.bucket.is_some())?;
        let segment =
            |part: &str| if part.contains(['{', '*']) { "1".to_owned() } else { part.to_owned() };
        let path: Vec<String> = route.path.split('/').map(segment).collect();
        let method = route.method.clone().unwrap_or_else(|| "GET".to_owned());
        Some(Example { method, path: path.join("/") })
    }

    /// The same with every period divided by `factor`, so that tests need not wait for minutes.
    #[must_use]
    pub fn faster(mut self, factor: u32) -> Self {
        let factor = factor.max(1);
        if let Some(model) = &mut self.model {
            model.every /= factor;
            model.limits_mut().for_each(|limit| limit.per /= factor);
        }
        self.buckets.values_mut().for_each(|bucket| bucket.per /= factor);
        self.global.iter_mut().for_each(|global| global.per /= factor);
        self.html_retry /= factor;
        for route in &mut self.routes {
            route.sub_limit.iter_mut().for_each(|sub| sub.per /= factor);
        }
        self
    }
}

impl BucketSpec {
    pub(super) const fn limit(&self) -> LimitSpec {
        LimitSpec { limit: self.limit, per: self.per, window: self.window }
    }
}

impl SubLimitSpec {
    pub(super) const fn limit(&self) -> LimitSpec {
        LimitSpec { limit: self.limit, per: self.per, window: Window::Fixed }
    }

    /// Whether a request with this body counts.
    pub(super) fn applies(&self, body: &[u8]) -> bool {
        let parsed: Result<serde_json::Value, _> = serde_json::from_slice(body);
        parsed.is_ok_and(|value| value.get(&self.field).is_some())
    }
}

tollway_core::plain_error!(SpecError, self => &self.0);

const fn too_many() -> u16 {
    429
}

const fn a_second() -> Duration {
    Duration::from_secs(1)
}
