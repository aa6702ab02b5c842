//! What tells a limit from another answer, and how long to wait then.

use std::time::Duration;

use serde::Deserialize;
use tollway_core::fields::{Form, Lines};

use super::dimension::{FieldName, TimeField};
use super::{Response, Scope, body};

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Meaning {
    /// A limit was met; whom that concerns is not known.
    Limit,
    /// A limit of that [`Scope`] was met.
    User,
    Shared,
    Global,
    /// It looks like a limit and is none: a lock, a missing permission.
    NoLimit,
}

impl Meaning {
    pub(super) fn is_limit(self) -> bool {
        self != Self::NoLimit
    }

    /// Whom a limit concerns, if that is known.
    pub(super) fn scope(self) -> Option<Scope> {
        match self {
            Self::User => Some(Scope::User),
            Self::Shared => Some(Scope::Shared),
            Self::Global => Some(Scope::Global),
            Self::Limit | Self::NoLimit => None,
        }
    }
}

/// Answers of one kind, and what they mean.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Signal {
    #[serde(deserialize_with = "super::file::statuses")]
    status: Vec<u16>,
    header: Option<FieldName>,
    equals: Option<String>,
    absent: Option<FieldName>,
    body: Option<String>,
    pub(super) means: Meaning,
}

impl Signal {
    pub(super) fn matches(&self, response: &Response<'_>) -> bool {
        self.may_match(response.status, response.lines)
            && self.body.as_ref().is_none_or(|text| body::contains(response.body, text))
    }

    /// As far as can be said without the body.
    pub(super) fn may_match(&self, status: u16, lines: &Lines<'_>) -> bool {
        let is = |name: &FieldName| match (lines.first(name), &self.equals) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(found), Some(wanted)) => found.eq_ignore_ascii_case(wanted),
        };
        self.status.contains(&status)
            && self.header.as_ref().is_none_or(is)
            && self.absent.as_ref().is_none_or(|name| lines.first(name).is_none())
    }

    pub(super) fn reads_body(&self) -> bool {
        self.body.is_some()
    }
}

/// Where a refusal says how long to wait.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Retry {
    #[serde(rename = "header")]
    pub(super) headers: Vec<TimeField>,
    pub(super) body: Option<BodyValue>,
    /// The wait after a refusal that does not say one.
    #[serde(deserialize_with = "super::file::duration")]
    pub(super) unsaid: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { headers: Vec::new(), body: None, unsaid: Duration::from_secs(1) }
    }
}

/// A number in a JSON body, and how it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BodyValue {
    pub(super) field: String,
    #[serde(deserialize_with = "super::file::form")]
    pub(super) form: Form,
}

/// Which answers the upstream counts against a budget of invalid requests.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Invalid {
    status: Vec<u16>,
    #[serde(default)]
    shared_counts: bool,
}

impl Invalid {
    pub(super) fn counts(&self, status: u16, scope: Option<Scope>) -> bool {
        self.status.contains(&status) && (self.shared_counts || scope != Some(Scope::Shared))
    }
}
