//! Bodies that clients of each API read: templates by route, errors by status, all data.
//!
//! In a template `<word>` is replaced:
//!
//! | word | by |
//! |---|---|
//! | `<id>` | a number that no other answer has |
//! | `<epoch>`, `<time>` | now, in seconds since 1970 and as RFC 3339 |
//! | `<path.NAME>` | the segment `{NAME}` of the path |
//! | `<body.NAME>`, `<body.NAME=OTHER>` | that field of the request, JSON or form, as JSON; else `OTHER` or `null` |
//!
//! A route without a template is answered with an echo.

use serde::Deserialize;
use serde_json::Value;
use tollway_core::Timestamp;
use tollway_core::fields::calendar;

use super::route::Match;
use super::{Request, Spec};

/// So that ids are as long as real ones.
const FIRST_ID: u64 = 1_000_000;

/// What a route answers when it serves.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AnswerSpec {
    /// The method and the path: `GET /channels/{channel}`.
    pub request: String,
    /// The status.
    #[serde(default = "ok")]
    pub status: u16,
    /// A template; none for an answer without a body.
    #[serde(default)]
    pub body: String,
}

/// What an error looks like.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ErrorSpec {
    /// The status, where the API reports errors with another one.
    #[serde(default)]
    pub status: Option<u16>,
    /// The body.
    pub body: String,
}

/// The status and body with which `request` is served; `None` if nobody described its route.
pub(super) fn served(
    spec: &Spec,
    request: &Request<'_>,
    found: &Match,
    number: u64,
    now: Timestamp,
) -> Option<(u16, String)> {
    let (answer, names) = spec.answers.iter().find_map(|answer| {
        let (method, path) = answer.request.split_once(' ')?;
        let names = found.named(path).filter(|_| method.eq_ignore_ascii_case(request.method))?;
        Some((answer, names))
    })?;
    let words = Words { number, now, names, fields: fields(request.body) };
    Some((answer.status, words.fill(answer.body.trim_start())))
}

/// The fields of a JSON object or of a form.
fn fields(body: &[u8]) -> Value {
    if let Ok(value @ Value::Object(_)) = serde_json::from_slice(body) {
        return value;
    }
    let pairs = form_urlencoded::parse(body);
    pairs.map(|(name, value)| (name.into_owned(), Value::String(value.into_owned()))).collect()
}

/// What templates can say.
struct Words<'a> {
    number: u64,
    now: Timestamp,
    names: Vec<(&'a str, &'a str)>,
    fields: Value,
}

impl Words<'_> {
    fn fill(&self, template: &str) -> String {
        let mut parts = template.split('<');
        let mut text = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (word, rest) = part.split_once('>').unwrap_or((part, ""));
            text.push_str(&self.say(word));
            text.push_str(rest);
        }
        text
    }

    fn say(&self, word: &str) -> String {
        let since_1970 = std::time::Duration::from_nanos(self.now.as_nanos());
        let (word, otherwise) = word.split_once('=').unwrap_or((word, "null"));
        match word.split_once('.').unwrap_or((word, "")) {
            ("id", _) => (FIRST_ID + self.number).to_string(),
            ("epoch", _) => since_1970.as_secs().to_string(),
            ("time", _) => calendar::print_rfc3339(since_1970),
            ("path", name) => {
                let found = self.names.iter().find(|(found, _)| *found == name);
                found.map_or(otherwise, |(_, value)| value).to_owned()
            }
            ("body", name) => self.fields.get(name).map_or(otherwise.to_owned(), Value::to_string),
            _ => otherwise.to_owned(),
        }
    }
}

const fn ok() -> u16 {
    200
}
