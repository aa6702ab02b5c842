//! From a method and a target to a [`Route`].
//!
//! ```text
//!  /api/v10/channels/42/messages/7?limit=5
//!  └ strip ┘└ major ─┘          └ id
//!  template  /channels/:major/messages/:id      path  /channels/42/messages/:id      major  42
//! ```

use std::fmt::Write as _;

use serde::Deserialize;
use tollway_core::Quota;
use toml::Spanned;

use super::pattern::{Id, Pattern, SEGMENT_BYTES_MAX, SEGMENTS_MAX};
use super::route::{Costs, Route, RouteFields};

/// What separates the limits of an upstream's routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) enum By {
    /// Method and path.
    #[default]
    #[serde(rename = "method+path")]
    MethodAndPath,
    /// The path alone.
    #[serde(rename = "path")]
    Path,
    /// Nothing: one limit for all.
    #[serde(rename = "none")]
    Nothing,
}

/// How targets become routes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Routing {
    pub(super) by: By,
    pub(super) strip: Vec<Pattern>,
    pub(super) ids: Vec<Id>,
    pub(super) ids_after: Vec<Box<str>>,
    pub(super) major: Vec<Pattern>,
    #[serde(skip)]
    pub(super) rules: Vec<Rule>,
    #[serde(skip)]
    pub(super) costs: Costs,
}

/// What is particular about some routes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    #[serde(rename = "match")]
    pub(super) pattern: Spanned<Pattern>,
    class: Option<Box<str>>,
    #[serde(default)]
    exempt: Exempt,
    #[serde(default)]
    pub(super) cost: Vec<RuleCost>,
    /// The same in the order of the dimensions, once these are known.
    #[serde(skip)]
    pub(super) costs: Costs,
    #[serde(rename = "limit", default, deserialize_with = "super::file::optional_quota")]
    stated: Option<Quota>,
    lane: Option<SubLimitRule>,
    /// A field of the request's body whose values have limits of their own.
    major_field: Option<Box<str>>,
}

/// What a request takes of a dimension.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleCost {
    pub(super) dimension: Spanned<String>,
    pub(super) units: u32,
}

/// Which limits do not count a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Exempt {
    #[default]
    Nothing,
    Global,
    Everything,
}

/// A sub-limit that some requests to a route may meet.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubLimitRule {
    name: Box<str>,
    /// Fields of the request's body of which it concerns only those that have one; all if empty.
    #[serde(default)]
    body: Vec<String>,
}

impl Routing {
    pub(super) fn route(&self, method: &str, target: &str, body: Option<&[u8]>) -> Route {
        let segments = self.segments(target);
        let rule = self.rule(method, &segments);
        let exempt = rule.map_or(Exempt::Nothing, |rule| rule.exempt);
        let (template, path, mut major) = self.template(&segments);
        if let Some(value) = rule.and_then(|rule| rule.major_value(body?)) {
            major += if major.is_empty() { "" } else { "/" };
            major += bounded(&value);
        }
        let class = rule.and_then(|rule| rule.class.clone());
        let is_apart = class.is_some() && self.by == By::Nothing;
        let shape = is_apart.then(|| self.shape(method, &segments).into());
        let lane = rule.and_then(|rule| rule.lane.as_ref()).filter(|lane| lane.concerns(body));
        let fields = RouteFields {
            method: if self.by == By::MethodAndPath { method.into() } else { "".into() },
            template: template.into(),
            path: path.into(),
            major: major.into(),
            class,
            shape,
            lane: lane.map(|lane| lane.name.clone()),
            costs: rule.map_or(self.costs, |rule| rule.costs),
            exempt_global: exempt != Exempt::Nothing,
            exempt: exempt == Exempt::Everything,
            stated: rule.and_then(|rule| rule.stated),
            ..RouteFields::default()
        };
        fields.named()
    }

    pub(super) fn has_body_lane(&self, method: &str, target: &str) -> bool {
        let segments = self.segments(target);
        self.rule(method, &segments).is_some_and(|rule| {
            let has_lane = rule.lane.as_ref().is_some_and(|lane| !lane.body.is_empty());
            has_lane || rule.major_field.is_some()
        })
    }

    /// The first rule that fits.
    fn rule(&self, method: &str, segments: &[&str]) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.pattern.get_ref().matches(method, segments))
    }

    /// The segments of the path, without the query and without what all paths begin with.
    fn segments<'t>(&self, target: &'t str) -> Vec<&'t str> {
        let path = target.split(['?', '#']).next().unwrap_or_default();
        let segments: Vec<&str> =
            path.split('/').filter(|part| !part.is_empty()).take(SEGMENTS_MAX).collect();
        let stripped = self.strip.iter().find(|prefix| prefix.is_prefix_of(&segments));
        segments[stripped.map_or(0, Pattern::len)..].to_vec()
    }

    /// Template, path with the major parameters kept, and those parameters.
    fn template(&self, segments: &[&str]) -> (String, String, String) {
        if self.by == By::Nothing {
            return (String::new(), String::new(), String::new());
        }
        let fitting = self.major.iter().filter(|major| major.is_prefix_of(segments));
        let major = fitting.max_by_key(|major| major.len());
        let (mut template, mut path, mut majors) = (String::new(), String::new(), String::new());
        let mut before = "";
        for (index, &segment) in segments.iter().enumerate() {
            let is_major = major.is_some_and(|major| major.captures(index));
            let is_secret = major.is_some_and(|major| major.hides(index));
            let shown = if is_secret {
                let _ = write!(majors, "/{:016x}", fingerprint(segment));
                ":token"
            } else if is_major {
                majors += if majors.is_empty() { "" } else { "/" };
                majors += bounded(segment);
                ":major"
            } else if self.is_id(before, segment) {
                ":id"
            } else {
                segment
            };
            template += "/";
            template += shown;
            path += "/";
            path += if is_major && !is_secret { bounded(segment) } else { shown };
            before = segment;
        }
        (template, path, majors)
    }

    /// Method and path, for routes that a profile puts together in classes: the upstream may know
    /// better which of them a path belongs to.
    fn shape(&self, method: &str, segments: &[&str]) -> String {
        let mut shape = method.to_owned() + " ";
        let mut before = "";
        for segment in segments {
            shape += "/";
            shape += if self.is_id(before, segment) { ":id" } else { segment };
            before = segment;
        }
        shape
    }

    fn is_id(&self, before: &str, segment: &str) -> bool {
        segment.len() > SEGMENT_BYTES_MAX
            || self.ids.iter().any(|id| id.is(segment))
            || self.ids_after.iter().any(|name| **name == *before)
    }
}

impl Rule {
    /// The value of the field of the body that has a limit of its own.
    fn major_value(&self, body: &[u8]) -> Option<String> {
        super::body::text(body, self.major_field.as_deref()?)
    }
}

impl SubLimitRule {
    /// Without the body nobody can tell, so it does: a lane too many is blocked, never one too few.
    fn concerns(&self, body: Option<&[u8]>) -> bool {
        let Some(body) = body else { return true };
        self.body.is_empty() || self.body.iter().any(|field| super::body::has_field(body, field))
    }
}

/// Stands for a text, the same in every process (FNV-1a): for a secret in keys and pages, because
/// there is no way back from it to a token of dozens of random characters; for a client's name.
pub(crate) fn fingerprint(text: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The segment, cut where no limit needs it longer.
fn bounded(segment: &str) -> &str {
    let mut end = segment.len().min(SEGMENT_BYTES_MAX);
    while !segment.is_char_boundary(end) {
        end -= 1;
    }
    &segment[..end]
}
