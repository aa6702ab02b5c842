//! One dimension of an API's limits: what is counted, where it is told, how it comes back.

use std::ops::Deref;
use std::time::Duration;

use serde::Deserialize;
use tollway_core::Quota;
use tollway_core::fields::Form;

use super::usage::UsageField;

/// Whom a dimension counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reach {
    /// The requests of a bucket.
    #[default]
    Bucket,
    /// Every request of the credential.
    Credential,
}

/// How what was used comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Window {
    /// Not stated: told apart by what the answers show, and taken for fixed until then.
    #[default]
    Auto,
    /// All at once, when the window ends.
    Fixed,
    /// Bit by bit.
    Sliding,
}

/// One dimension of an API's limits.
#[derive(Clone, Debug)]
pub struct Dimension {
    pub(super) name: String,
    pub(crate) reach: Reach,
    pub(crate) window: Window,
    pub(super) source: Source,
    /// The limit that the documentation states, for an upstream that does not tell it.
    pub(crate) stated: Option<Quota>,
    /// How fast it comes back, where that does not follow from the limit.
    pub(crate) refill: Option<Quota>,
    /// What to add to every reset, because the upstream rounds it down.
    pub(crate) slack: Duration,
    /// Whether the first request after a reset goes alone, because the reset may promise too much.
    pub(crate) verify: bool,
    /// Whether it is one bucket for the whole credential, which pacing may go by.
    pub(super) is_common: bool,
    /// Whether requests are paced by it, so that what is left holds nobody up.
    pub(crate) is_paced: bool,
    /// Where an answer tells what its request took.
    pub(super) usage: Option<UsageField>,
}

impl Dimension {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is one bucket for the whole credential, which pacing may go by.
    pub(super) fn is_common(&self) -> bool {
        self.is_common
    }

    /// Whether no answer ever tells it, so that it is counted here.
    pub(crate) fn is_modelled(&self) -> bool {
        matches!(self.source, Source::Modelled)
    }
}

/// Where a dimension is told.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// One number per field.
    Fields(Fields),
    /// Shopify's `32/40`.
    UsedOfSize(FieldName),
    /// Riot's `20:1,100:120` and the same for what was used.
    Counts { limit: FieldName, used: FieldName },
    /// The structured fields of the IETF drafts, and their predecessors.
    Structured,
    /// Nowhere.
    Modelled,
}

/// The names of a dimension's fields.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    pub(super) limit: Option<FieldName>,
    pub(super) remaining: Option<FieldName>,
    pub(super) used: Option<FieldName>,
    pub(super) reset: Vec<TimeField>,
    pub(super) interval: Option<TimeField>,
}

/// A field that holds a time, and how it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TimeField {
    pub(super) header: FieldName,
    #[serde(deserialize_with = "super::file::form")]
    pub(super) form: Form,
}

/// The name of a header field, in lower case.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct FieldName(String);

impl TryFrom<String> for FieldName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_!#$%&'*+.^`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(token) {
            return Err(format!("`{name}` is not the name of a header field"));
        }
        Ok(Self(name.to_ascii_lowercase()))
    }
}

impl Deref for FieldName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}
