//! From a method and a target to a [`Route`].
//!
//! ```text
//!  /api/v10/channels/42/messages/7?limit=5
//!  └ strip ┘└ major ─┘          └ id
//!  template  /channels/:major/messages/:id      path  /channels/42/messages/:id      major  42
//! ```

use std::fmt::Write as _;

use tollway_core::Quota;

use super::pattern::{Id, Pattern, SEGMENT_BYTES_MAX, SEGMENTS_MAX};
use super::route::{Costs, Parts, Route};

/// What separates the limits of an upstream's routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum By {
    /// Method and path.
    #[default]
    MethodAndPath,
    /// The path alone.
    Path,
    /// Nothing: one limit for all.
    Nothing,
}

/// How targets become routes.
#[derive(Clone, Debug, Default)]
pub(super) struct Routing {
    pub(super) by: By,
    pub(super) strip: Vec<Pattern>,
    pub(super) ids: Vec<Id>,
    pub(super) ids_after: Vec<Box<str>>,
    pub(super) major: Vec<Pattern>,
    pub(super) rules: Vec<Rule>,
    pub(super) costs: Costs,
}

/// What is particular about some routes.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) pattern: Pattern,
    pub(super) class: Option<Box<str>>,
    pub(super) exempt_global: bool,
    pub(super) exempt: bool,
    pub(super) costs: Costs,
    pub(super) stated: Option<Quota>,
    pub(super) lane: Option<Lane>,
}

/// A sub-limit that some requests to a route may meet.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) name: Box<str>,
    /// Fields of the request's body of which it concerns only those that have one; all if empty.
    pub(super) body: Vec<String>,
}

impl Routing {
    pub(super) fn route(&self, method: &str, target: &str, body: Option<&[u8]>) -> Route {
        let segments = self.segments(target);
        let rule = self.rules.iter().find(|rule| rule.pattern.matches(method, &segments));
        let (template, path, major) = self.template(&segments);
        let class = rule.and_then(|rule| rule.class.clone());
        let is_apart = class.is_some() && self.by == By::Nothing;
        let shape = is_apart.then(|| self.shape(method, &segments).into());
        let lane = rule.and_then(|rule| rule.lane.as_ref()).filter(|lane| lane.concerns(body));
        Route::of_parts(Parts {
            method: if self.by == By::MethodAndPath { method.into() } else { "".into() },
            template: template.into(),
            path: path.into(),
            major: major.into(),
            class,
            shape,
            lane: lane.map(|lane| lane.name.clone()),
            costs: rule.map_or(self.costs, |rule| rule.costs),
            exempt_global: rule.is_some_and(|rule| rule.exempt_global),
            exempt: rule.is_some_and(|rule| rule.exempt),
            stated: rule.and_then(|rule| rule.stated),
        })
    }

    pub(super) fn has_body_lane(&self, method: &str, target: &str) -> bool {
        let segments = self.segments(target);
        let rule = self.rules.iter().find(|rule| rule.pattern.matches(method, &segments));
        rule.and_then(|rule| rule.lane.as_ref()).is_some_and(|lane| !lane.body.is_empty())
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

impl Lane {
    /// Without the body nobody can tell, so it does: a lane too many is blocked, never one too few.
    fn concerns(&self, body: Option<&[u8]>) -> bool {
        let Some(body) = body else { return true };
        self.body.is_empty() || self.body.iter().any(|field| super::body::has_field(body, field))
    }
}

/// Stands for a secret in keys and pages (FNV-1a): the same in every process, and no way back from
/// it to a token of dozens of random characters.
fn fingerprint(secret: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    secret.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The segment, cut where no limit needs it longer.
fn bounded(segment: &str) -> &str {
    let mut end = segment.len().min(SEGMENT_BYTES_MAX);
    while !segment.is_char_boundary(end) {
        end -= 1;
    }
    &segment[..end]
}
