//! The text of a profile, as it is written.
//!
//! Everything that is validated later keeps its place in the text (`Spanned`), so that an error can
//! name the line and the field. docs/upstream.md explains each field.

use serde::Deserialize;
use toml::Spanned;

use super::ProfileError;

type Text = Spanned<String>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) name: Text,
    pub(super) about: Option<String>,
    pub(super) docs: Option<String>,
    pub(super) upstream: Option<String>,
    #[serde(default)]
    pub(super) route: Routes,
    #[serde(default)]
    pub(super) rules: Vec<Rule>,
    pub(super) global: Option<Global>,
    pub(super) concurrency: Option<Spanned<u32>>,
    pub(super) bucket: Option<Text>,
    #[serde(default)]
    pub(super) dimensions: Vec<Dimension>,
    #[serde(default)]
    pub(super) retry: Retry,
    #[serde(default)]
    pub(super) signals: Vec<Signal>,
    pub(super) invalid: Option<Invalid>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Routes {
    pub(super) by: Option<Text>,
    #[serde(default)]
    pub(super) strip: Vec<Text>,
    #[serde(default)]
    pub(super) ids: Vec<Text>,
    #[serde(default)]
    pub(super) ids_after: Vec<Text>,
    #[serde(default)]
    pub(super) major: Vec<Text>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    #[serde(rename = "match")]
    pub(super) pattern: Text,
    pub(super) class: Option<Text>,
    pub(super) exempt: Option<Text>,
    #[serde(default)]
    pub(super) cost: Vec<Cost>,
    pub(super) limit: Option<Text>,
    pub(super) lane: Option<Lane>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cost {
    pub(super) dimension: Text,
    pub(super) units: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lane {
    pub(super) name: Text,
    #[serde(default)]
    pub(super) body: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Global {
    pub(super) limit: Text,
    pub(super) jitter: Option<Text>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dimension {
    pub(super) name: Text,
    pub(super) reach: Option<Text>,
    pub(super) window: Option<Text>,
    pub(super) after_reset: Option<Text>,
    pub(super) limit: Option<Text>,
    pub(super) remaining: Option<Text>,
    pub(super) used: Option<Text>,
    #[serde(default)]
    pub(super) reset: Vec<Value>,
    pub(super) interval: Option<Value>,
    pub(super) used_of_size: Option<Text>,
    pub(super) counts: Option<Counts>,
    pub(super) structured: Option<Text>,
    pub(super) stated: Option<Text>,
    pub(super) refill: Option<Text>,
    pub(super) slack: Option<Text>,
    pub(super) cost: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Value {
    pub(super) header: Text,
    pub(super) form: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counts {
    pub(super) limit: Text,
    pub(super) used: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Retry {
    #[serde(default)]
    pub(super) header: Vec<Value>,
    pub(super) body: Option<BodyValue>,
    pub(super) unsaid: Option<Text>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BodyValue {
    pub(super) field: Text,
    pub(super) form: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Signal {
    pub(super) status: Spanned<Vec<u16>>,
    pub(super) header: Option<Text>,
    pub(super) equals: Option<String>,
    pub(super) absent: Option<Text>,
    pub(super) body: Option<Text>,
    pub(super) means: Text,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Invalid {
    pub(super) status: Spanned<Vec<u16>>,
    #[serde(default)]
    pub(super) shared_counts: bool,
}

/// Reads the text; the error names the place.
pub(super) fn read(text: &str) -> Result<File, ProfileError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        error_at(text, at, error.message())
    })
}

/// An error about the byte at `at`: the line, and the field as its table and key name it.
pub(super) fn error_at(text: &str, at: usize, message: impl Into<String>) -> ProfileError {
    let before = text.get(..at).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |end| end + 1);
    let line = before.matches('\n').count() + 1;
    let here = text.get(start..).unwrap_or_default().lines().next().unwrap_or_default();
    ProfileError { line, field: field(before, here), message: message.into() }
}

/// `dimensions[1].reset`: the last table above, and the key of the line itself.
fn field(before: &str, here: &str) -> String {
    let header = |line: &&str| line.starts_with('[');
    let table = before.lines().rev().chain([here]).find(header).unwrap_or_default();
    let mut path = table.trim_matches(['[', ']', ' ']).to_owned();
    if table.starts_with("[[") {
        let nth = before.lines().filter(|line| *line == table).count().saturating_sub(1);
        path += &format!("[{nth}]");
    }
    let key = here.split_once('=').map(|(key, _)| key.trim()).filter(|_| !here.starts_with('['));
    match (path.is_empty(), key) {
        (true, key) => key.unwrap_or_default().to_owned(),
        (false, None) => path,
        (false, Some(key)) => format!("{path}.{key}"),
    }
}
