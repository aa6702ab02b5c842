//! Recorded responses as text, as `curl -i` prints them, and what a profile would learn from them.
//!
//! ```text
//! GET /api/v10/channels/42/messages        the request, if it matters
//! HTTP/2 200
//! x-ratelimit-limit: 5
//!
//! {"the": "body"}                          up to the next request or status line
//! ```

use std::fmt::{self, Write as _};
use std::time::Duration;

use tollway_core::fields::Lines;

use super::{Observation, Profile, Response, Route, Scope};
use crate::pace::Outcome;

/// Recorded exchanges; further ones are an error.
const EXCHANGES_MAX: usize = 10_000;

/// One recorded exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// Method and target, if they were recorded.
    pub request: Option<(String, String)>,
    /// The status.
    pub status: u16,
    /// The header lines.
    pub lines: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Recording {
    /// Reads the exchanges in a text.
    ///
    /// # Errors
    ///
    /// A message that names the line: something that is no status line where one is needed, or a
    /// header line without a colon.
    pub fn parse(text: &str) -> Result<Vec<Self>, String> {
        let mut found: Vec<Self> = Vec::new();
        let mut request = None;
        let mut in_body = true;
        for (number, line) in text.lines().enumerate() {
            let here = |message: &str| format!("line {}: {message}", number + 1);
            if let Some(status) = status(line) {
                found.push(Self { request: request.take(), status, ..Self::default() });
                in_body = false;
            } else if let Some(asked) = request_line(line).filter(|_| in_body) {
                request = Some(asked);
            } else if let Some(current) = found.last_mut().filter(|_| request.is_none()) {
                if in_body {
                    current.body += line;
                    current.body.push('\n');
                } else if line.is_empty() {
                    in_body = true;
                } else {
                    let (name, value) =
                        line.split_once(':').ok_or_else(|| here("a header line has a colon"))?;
                    current.lines.push((name.trim().to_owned(), value.trim().to_owned()));
                }
            } else if !line.trim().is_empty() {
                return Err(here("a response begins with a status line such as HTTP/1.1 200"));
            }
            if found.len() > EXCHANGES_MAX {
                return Err(here("too many responses"));
            }
        }
        if found.is_empty() {
            return Err("there is no response: one begins with a line such as HTTP/1.1 200".into());
        }
        Ok(found)
    }

    /// Where its request went, if that was recorded.
    #[must_use]
    pub fn route(&self, profile: &Profile) -> Option<Route> {
        self.request.as_ref().map(|(method, target)| profile.route(method, target))
    }

    /// What `profile` reads in it, at a time since the Unix epoch.
    #[must_use]
    pub fn read(&self, profile: &Profile, now: Duration) -> Observation {
        let lines: Lines<'_> =
            self.lines.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let wanted = profile.body_wanted(self.status, &lines).min(self.body.len());
        let body = &self.body.as_bytes()[..wanted];
        profile.read(&Response { status: self.status, lines: &lines, body, now })
    }

    /// What would be learned from it, for people.
    #[must_use]
    pub fn explain(&self, profile: &Profile, now: Duration) -> String {
        let mut out = String::new();
        if let Some(route) = self.route(profile) {
            explain_route(&mut out, profile, &route);
        }
        explain_observation(&mut out, profile, &self.read(profile, now));
        out
    }
}

fn status(line: &str) -> Option<u16> {
    line.strip_prefix("HTTP/")?.split_whitespace().nth(1)?.parse().ok()
}

fn request_line(line: &str) -> Option<(String, String)> {
    let mut words = line.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    let is_it = is_method && target.starts_with('/');
    is_it.then(|| (method.to_owned(), target.to_owned()))
}

/// One line of an explanation, if there is something to say. Writing to a string cannot fail.
fn row(out: &mut String, label: &str, value: Option<impl fmt::Display>) {
    if let Some(value) = value {
        let _ = writeln!(out, "{label:<11} {value}");
    }
}

fn explain_route(out: &mut String, profile: &Profile, route: &Route) {
    row(out, "route", Some(route.name()));
    row(out, "major", Some(route.major()).filter(|major| !major.is_empty()));
    row(out, "class", route.class());
    row(out, "lane", route.lane());
    row(out, "stated", route.stated());
    let exempt = match (route.is_exempt(), route.is_exempt_from_global()) {
        (true, _) => Some("from everything"),
        (false, true) => Some("from the global limit"),
        (false, false) => None,
    };
    row(out, "exempt", exempt);
    for (dimension, cost) in profile.dimensions().iter().zip(route.costs()) {
        let cost = Some(cost).filter(|cost| **cost != 1);
        row(out, "cost", cost.map(|cost| format!("{cost} {}", dimension.name())));
    }
}

fn explain_observation(out: &mut String, profile: &Profile, seen: &Observation) {
    let outcome = match seen.outcome {
        Outcome::Accepted => "accepted",
        Outcome::Limited => "limited",
        Outcome::Failed => "failed",
    };
    row(out, "outcome", Some(outcome));
    row(out, "scope", seen.scope.map(Scope::name));
    row(out, "bucket", seen.bucket.as_ref());
    for reading in &seen.readings {
        let name = profile.dimension_name(usize::from(reading.dimension), reading.part);
        let _ = write!(out, "dimension   {name}");
        let number = |value: Option<u64>| value.map_or("?".to_owned(), |value| value.to_string());
        let _ = write!(out, ": {} of {} left", number(reading.remaining), number(reading.limit));
        if let Some(reset) = reading.reset_after {
            let _ = write!(out, ", reset in {reset:?}");
        }
        if let Some(at) = reading.resets_at {
            let _ = write!(out, " (at {:?})", at.as_secs_f64());
        }
        if let Some(window) = reading.window {
            let _ = write!(out, ", window {window:?}");
        }
        let _ = writeln!(out);
    }
    row(out, "retry after", seen.retry_after.map(|wait| format!("{wait:?}")));
    if seen.invalid {
        let _ = writeln!(out, "counts as an invalid request");
    }
    let malformed = Some(seen.malformed).filter(|count| *count > 0);
    row(out, "malformed", malformed.map(|count| format!("{count} fields ignored")));
}
