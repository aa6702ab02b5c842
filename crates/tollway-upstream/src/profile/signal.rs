//! What tells a limit from another answer, and how long to wait then.

use std::time::Duration;

use tollway_core::fields::{Form, Lines};

use super::dimension::Value;
use super::{Response, Scope, body};

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A limit was met, and whom that concerns if it is known.
    Limit(Option<Scope>),
    /// It looks like a limit and is none: a lock, a missing permission.
    NoLimit,
}

/// Answers of one kind, and what they mean.
#[derive(Clone, Debug)]
pub(super) struct Signal {
    pub(super) status: Vec<u16>,
    pub(super) header: Option<String>,
    pub(super) equals: Option<String>,
    pub(super) absent: Option<String>,
    pub(super) body: Option<String>,
    pub(super) means: Meaning,
}

impl Signal {
    pub(super) fn matches(&self, response: &Response<'_>) -> bool {
        self.may_match(response.status, response.lines)
            && self.body.as_ref().is_none_or(|text| body::contains(response.body, text))
    }

    /// As far as can be said without the body.
    pub(super) fn may_match(&self, status: u16, lines: &Lines<'_>) -> bool {
        let is = |name: &String| match (lines.first(name), &self.equals) {
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
#[derive(Clone, Debug)]
pub(super) struct Retry {
    pub(super) headers: Vec<Value>,
    pub(super) body: Option<BodyValue>,
    pub(super) unsaid: Duration,
}

/// A number in a JSON body, and how it is written.
#[derive(Clone, Debug)]
pub(super) struct BodyValue {
    pub(super) field: String,
    pub(super) form: Form,
}

/// Which answers the upstream counts against a budget of invalid requests.
#[derive(Clone, Debug)]
pub(super) struct Invalid {
    pub(super) status: Vec<u16>,
    pub(super) shared_counts: bool,
}

impl Invalid {
    pub(super) fn counts(&self, status: u16, scope: Option<Scope>) -> bool {
        self.status.contains(&status) && (self.shared_counts || scope != Some(Scope::Shared))
    }
}
