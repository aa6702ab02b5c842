//! What a request really took, where an answer tells it: in a field of its head, or in its body.
//!
//! An estimate is what a request may be sent by; the truth is known when it was carried out. A body
//! is not read whole for it: JSON writers put the usage near the end, so its last bytes are looked
//! at, and where the number stands is found by its names alone ([`super::body`]).

use serde::Deserialize;
use tollway_core::fields::{Lines, count};

use super::dimension::{Dimension, FieldName};
use super::{Observation, Profile, body};
use crate::budget::correction::is_settled;

/// The last bytes of a body that are looked at.
pub const USAGE_BYTES_MAX: usize = 8 << 10;

/// What a request really took of each dimension, in the profile's order; none where it is not told.
pub type Usage = [Option<u32>; super::DIMENSIONS_MAX];

/// Where an answer tells what a dimension lost.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "RawUsageField")]
pub(super) enum UsageField {
    Header(FieldName),
    /// Numbers to add up, each by the names on the way to it.
    Body(Vec<Vec<String>>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawUsageField {
    header: Option<FieldName>,
    body: Option<Paths>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Paths {
    One(String),
    Sum(Vec<String>),
}

impl TryFrom<RawUsageField> for UsageField {
    type Error = &'static str;

    fn try_from(raw: RawUsageField) -> Result<Self, Self::Error> {
        let paths = match (raw.header, raw.body) {
            (Some(name), None) => return Ok(Self::Header(name)),
            (None, Some(Paths::One(path))) => vec![path],
            (None, Some(Paths::Sum(paths))) if !paths.is_empty() => paths,
            _ => {
                return Err("name either a header, or a body's field such as `usage.total_tokens`");
            }
        };
        let names = |path: &String| path.split('.').map(str::to_owned).collect::<Vec<_>>();
        let paths: Vec<_> = paths.iter().map(names).collect();
        if paths.iter().flatten().any(String::is_empty) {
            return Err("a body's field is names with dots between, such as `usage.total_tokens`");
        }
        Ok(Self::Body(paths))
    }
}

impl Profile {
    /// What the head of an answer tells of what the request took.
    #[must_use]
    pub fn usage_in_head(&self, lines: &Lines<'_>) -> Usage {
        self.usage(|field| match field {
            UsageField::Header(name) => lines.first(name).and_then(count),
            UsageField::Body(_) => None,
        })
    }

    /// Whether answers tell anywhere what a request took.
    #[must_use]
    pub fn tells_usage(&self) -> bool {
        self.dimensions.iter().any(|dimension| dimension.usage.is_some())
    }

    /// Whether the end of an accepted answer's body tells what the request took of a dimension of
    /// which `observation` does not say what is left: the body must be JSON, and not compressed. An
    /// event stream tells it elsewhere.
    #[must_use]
    pub fn usage_is_in_body(
        &self,
        status: u16,
        lines: &Lines<'_>,
        observation: &Observation,
    ) -> bool {
        let is_told = |(index, of): (usize, &Dimension)| {
            matches!(of.usage, Some(UsageField::Body(_))) && !is_settled(observation, index)
        };
        let kind = lines.first("content-type").unwrap_or_default().to_ascii_lowercase();
        (200..300).contains(&status)
            && self.dimensions.iter().enumerate().any(is_told)
            && (kind.contains("/json") || kind.contains("+json"))
            && lines.first("content-encoding").is_none_or(|coding| coding == "identity")
    }

    /// What the last bytes of a body tell of what the request took ([`USAGE_BYTES_MAX`]).
    #[must_use]
    pub fn usage_in_body(&self, end: &[u8]) -> Usage {
        self.usage(|field| match field {
            UsageField::Header(_) => None,
            UsageField::Body(paths) => {
                paths.iter().map(|path| body::count_at(end, path)).sum::<Option<u64>>()
            }
        })
    }

    fn usage(&self, told: impl Fn(&UsageField) -> Option<u64>) -> Usage {
        let mut usage = Usage::default();
        for (found, of) in usage.iter_mut().zip(&self.dimensions) {
            let units = of.usage.as_ref().and_then(&told);
            *found = units.map(|units| u32::try_from(units).unwrap_or(u32::MAX));
        }
        usage
    }
}
