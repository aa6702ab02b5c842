//! The text of a profile, as it is written, and how single values in it are read.
//!
//! A value is validated where it is read, so serde names its place in the text. What depends on
//! several values is validated in `build`; such values keep their place (`Spanned`), so that the
//! error can name the line and the field. docs/upstream.md explains each field.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use tollway_core::fields::Form;
use tollway_core::{Quota, parse_duration};
use toml::Spanned;

use super::dimension::{FieldName, Reach, TimeField, Window};
use super::routing::{Routing, Rule};
use super::signal::{Invalid, Retry, Signal};
use super::usage::UsageField;
use super::{GlobalLimit, ProfileError, Timeouts};

/// More requests than this are never in flight where no answer has told of a limit.
const IN_FLIGHT_MAX: u32 = 256;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(deserialize_with = "name")]
    pub(super) name: String,
    #[serde(default)]
    pub(super) about: String,
    pub(super) docs: Option<String>,
    pub(super) upstream: Option<String>,
    #[serde(default, deserialize_with = "credentials")]
    pub(super) credential: Vec<FieldName>,
    #[serde(default)]
    pub(super) timeouts: Timeouts,
    #[serde(default)]
    pub(super) route: Routing,
    #[serde(default)]
    pub(super) rules: Vec<Rule>,
    pub(super) global: Option<GlobalLimit>,
    pub(super) concurrency: Option<u32>,
    #[serde(default = "one", deserialize_with = "in_flight")]
    pub(super) first_burst: u32,
    #[serde(default = "in_flight_max", deserialize_with = "in_flight")]
    pub(super) opens_up_to: u32,
    pub(super) bucket: Option<FieldName>,
    #[serde(default)]
    pub(super) dimensions: Vec<Dimension>,
    #[serde(default)]
    pub(super) retry: Retry,
    #[serde(default)]
    pub(super) signals: Vec<Signal>,
    pub(super) invalid: Option<Invalid>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dimension {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) reach: Reach,
    #[serde(default)]
    pub(super) window: Window,
    #[serde(default)]
    pub(super) after_reset: AfterReset,
    pub(super) limit: Option<Spanned<FieldName>>,
    pub(super) remaining: Option<FieldName>,
    pub(super) used: Option<FieldName>,
    #[serde(default)]
    pub(super) reset: Vec<Spanned<TimeField>>,
    pub(super) interval: Option<TimeField>,
    pub(super) used_of_size: Option<FieldName>,
    pub(super) counts: Option<Counts>,
    pub(super) structured: Option<Structured>,
    #[serde(default, deserialize_with = "optional_quota")]
    pub(super) stated: Option<Quota>,
    #[serde(default, deserialize_with = "optional_quota")]
    pub(super) refill: Option<Quota>,
    #[serde(default, deserialize_with = "duration")]
    pub(super) slack: Duration,
    pub(super) cost: Option<u32>,
    pub(super) common: Option<Spanned<bool>>,
    pub(super) usage: Option<UsageField>,
}

/// What the first request after a reset may rely on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum AfterReset {
    #[default]
    Full,
    Probe,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Structured {
    Ietf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counts {
    pub(super) limit: FieldName,
    pub(super) used: FieldName,
}

/// Reads the text; the error names the place.
pub(super) fn read(text: &str) -> Result<File, ProfileError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        error_at(text, at, error.message())
    })
}

/// A text that `parse` accepts.
fn parsed<'de, D: Deserializer<'de>, T>(
    from: D,
    expected: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).ok_or_else(|| D::Error::custom(format!("`{text}` is not {expected}")))
}

fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = |text: &str| !text.is_empty() && text.bytes().all(plain);
    parsed(from, "a name of lower-case letters, digits and dashes", |text| {
        is_name(text).then(|| text.to_owned())
    })
}

pub(super) fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let expected = "a duration such as 100ms, 90s or 1h";
    parsed(from, expected, |text| parse_duration(text).ok())
}

pub(super) fn optional_duration<'de, D>(from: D) -> Result<Option<Duration>, D::Error>
where
    D: Deserializer<'de>,
{
    duration(from).map(Some)
}

/// The fields that carry a credential: one, or several of which the first that is there counts.
fn credentials<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<FieldName>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Fields {
        One(String),
        First(Vec<String>),
    }
    let names = match Fields::deserialize(from)? {
        Fields::One(name) => vec![name],
        Fields::First(names) => names,
    };
    names.into_iter().map(|name| FieldName::try_from(name).map_err(D::Error::custom)).collect()
}

fn one() -> u32 {
    1
}

fn in_flight_max() -> u32 {
    IN_FLIGHT_MAX
}

/// Requests in flight while a limit is not known: at least one, and not so many that nothing is
/// learned.
fn in_flight<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let count = u32::deserialize(from)?;
    if (1..=IN_FLIGHT_MAX).contains(&count) {
        return Ok(count);
    }
    Err(D::Error::custom(format!("{count} is not a number from 1 to {IN_FLIGHT_MAX}")))
}

pub(super) fn quota<'de, D: Deserializer<'de>>(from: D) -> Result<Quota, D::Error> {
    parsed(from, "a quota such as 50/1s", |text| text.parse().ok())
}

pub(super) fn optional_quota<'de, D>(from: D) -> Result<Option<Quota>, D::Error>
where
    D: Deserializer<'de>,
{
    quota(from).map(Some)
}

/// The quota of a limit over all routes.
pub(super) fn global_quota<'de, D: Deserializer<'de>>(from: D) -> Result<Quota, D::Error> {
    let quota = quota(from)?;
    if quota.units() > GlobalLimit::UNITS_MAX {
        let message = format!("a global limit has at most {} units", GlobalLimit::UNITS_MAX);
        return Err(D::Error::custom(message));
    }
    Ok(quota)
}

pub(super) fn form<'de, D: Deserializer<'de>>(from: D) -> Result<Form, D::Error> {
    const FORMS: [(&str, Form); 8] = [
        ("epoch_s", Form::EpochSeconds),
        ("epoch_ms", Form::EpochMillis),
        ("delta_s", Form::DeltaSeconds),
        ("delta_ms", Form::DeltaMillis),
        ("http_date", Form::HttpDate),
        ("rfc3339", Form::Rfc3339),
        ("go_duration", Form::Duration),
        ("guess", Form::Guess),
    ];
    let expected = format!("one of {}", FORMS.map(|(name, _)| name).join(", "));
    parsed(from, &expected, |text| {
        FORMS.iter().find(|(name, _)| *name == text).map(|(_, form)| *form)
    })
}

/// Statuses, at least one.
pub(super) fn statuses<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u16>, D::Error> {
    let statuses = Vec::deserialize(from)?;
    if statuses.is_empty() {
        Err(D::Error::custom("name at least one status"))
    } else {
        Ok(statuses)
    }
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
