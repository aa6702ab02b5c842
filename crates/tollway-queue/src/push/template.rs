//! A text with places that each job fills: `/guilds/{group}/roles/{payload.role_id}`.
//!
//! | place | what stands there |
//! |---|---|
//! | `{group}` | the job's group |
//! | `{id}`, `{attempt}` | the job's number, and which attempt at it this is |
//! | `{payload.user_id}`, `{payload.user.id}` | a field of the payload, if that is JSON |
//!
//! A field must be a text, a whole number or a boolean. What a job cannot fill makes it a dead
//! letter: to try it again would change nothing.

use std::cell::OnceCell;

use serde_json::Value;

use crate::Lease;
use crate::error::Error;

/// A text with places to fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Group,
    Id,
    Attempt,
    Payload(FieldPath),
}

/// The names that lead to a field of a payload: `user.id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldPath(Vec<String>);

/// A job that fills places. Its payload is read as JSON once, and only if a place needs it.
pub(super) struct JobValues<'a> {
    pub(super) lease: &'a Lease,
    payload: OnceCell<Option<Value>>,
}

impl<'a> JobValues<'a> {
    pub(super) const fn new(lease: &'a Lease) -> Self {
        Self { lease, payload: OnceCell::new() }
    }

    /// The payload; `None` if it is no JSON.
    pub(super) fn payload(&self) -> Option<&Value> {
        let read = || serde_json::from_slice(&self.lease.payload).ok();
        self.payload.get_or_init(read).as_ref()
    }
}

impl FieldPath {
    /// Reads the names after `payload.`.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let names: Vec<String> = text.split('.').map(str::to_owned).collect();
        if names.iter().any(String::is_empty) {
            return Err(Error::invalid(format!("payload.{text} names no field")));
        }
        Ok(Self(names))
    }

    /// The field that it leads to in the payload of `job`.
    pub(super) fn find<'j>(&self, job: &'j JobValues<'_>) -> Result<&'j Value, String> {
        let payload = job.payload().ok_or("the payload is not JSON")?;
        let found = self.0.iter().try_fold(payload, |value, name| value.get(name));
        found.ok_or_else(|| format!("the payload has no field {}", self.0.join(".")))
    }

    fn text(&self, job: &JobValues<'_>) -> Result<String, String> {
        match self.find(job)? {
            Value::String(text) => Ok(text.clone()),
            Value::Bool(truth) => Ok(truth.to_string()),
            Value::Number(number) if !number.is_f64() => Ok(number.to_string()),
            _ => {
                let name = self.0.join(".");
                let what = "a text, a whole number of at most 64 bits, or a boolean";
                Err(format!("payload.{name} must be {what}"))
            }
        }
    }
}

impl Template {
    /// Reads a text with places.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            let unclosed = || Error::invalid("a place to fill lacks its closing brace");
            let (name, after) = after.split_once('}').ok_or_else(unclosed)?;
            parts.push(Part::Text(before.to_owned()));
            parts.push(place(name)?);
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        Ok(Self(parts))
    }

    /// The text as `job` fills it; `put` writes a value, and may refuse it.
    pub(super) fn fill(
        &self,
        job: &JobValues<'_>,
        put: impl Fn(&mut String, &str) -> Result<(), String>,
    ) -> Result<String, String> {
        let mut filled = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Group => put(&mut filled, job.lease.group.as_str())?,
                Part::Id => put(&mut filled, &job.lease.id.to_string())?,
                Part::Attempt => put(&mut filled, &job.lease.attempt.to_string())?,
                Part::Payload(path) => put(&mut filled, &path.text(job)?)?,
            }
        }
        Ok(filled)
    }

    /// The text with the same value at every place.
    pub(super) fn fill_alike(&self, value: &str) -> String {
        let text = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            _ => value.to_owned(),
        };
        self.0.iter().map(text).collect()
    }
}

fn place(name: &str) -> Result<Part, Error> {
    match (name, name.strip_prefix("payload.")) {
        ("group", _) => Ok(Part::Group),
        ("id", _) => Ok(Part::Id),
        ("attempt", _) => Ok(Part::Attempt),
        (_, Some(path)) => FieldPath::parse(path).map(Part::Payload),
        _ => Err(Error::invalid(format!(
            "{{{name}}} is no place to fill; there are {{group}}, {{id}}, {{attempt}} and \
             {{payload.FIELD}}"
        ))),
    }
}
