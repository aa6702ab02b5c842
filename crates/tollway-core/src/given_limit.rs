//! A limit as a configuration or a call gives it: one algorithm, and with an older limit of two
//! parts a second bucket beside it.

use alloc::string::ToString;

use crate::leaky_bucket::LeakyBucket;
use crate::legacy::{Legacy, Translation};
use crate::{Algorithm, Parameters};

/// What enforces a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenLimit {
    /// What every unit is charged to.
    pub algorithm: Algorithm,
    /// What every call is charged to as one unit, whatever it costs: the shortest time between two
    /// calls of a [`Legacy`] limit that has one beside its maximum.
    pub spacing: Option<LeakyBucket>,
}

impl From<Algorithm> for GivenLimit {
    fn from(algorithm: Algorithm) -> Self {
        Self { algorithm, spacing: None }
    }
}

impl GivenLimit {
    /// What limits in the older form are called where an algorithm is expected.
    pub const LEGACY: &'static str = "legacy";

    /// Every name that [`Self::from_parameters`] knows.
    pub const NAMES: [&'static str; Algorithm::NAMES.len() + 1] = {
        let mut names = [Self::LEGACY; Algorithm::NAMES.len() + 1];
        let mut index = 0;
        while index < Algorithm::NAMES.len() {
            names[index] = Algorithm::NAMES[index];
            index += 1;
        }
        names
    };

    /// The limit called `name`, if there is one, made of what is given for it, if that is right.
    pub fn from_parameters(name: &str, given: &dyn Parameters) -> Option<Option<Self>> {
        match name {
            Self::LEGACY => Some(legacy(given)),
            _ => Algorithm::from_parameters(name, given).map(|made| made.map(Self::from)),
        }
    }
}

fn legacy(given: &dyn Parameters) -> Option<GivenLimit> {
    let has_max = given.has("max") || given.has("duration");
    let max = has_max.then(|| (given.number("max"), millis(given, "duration")));
    let min_interval = given.has("min_interval").then(|| millis(given, "min_interval"));
    let mut legacy = Legacy::default();
    if let Some((max, duration_ms)) = max {
        (legacy.max, legacy.duration_ms) = (Some(max?), Some(duration_ms?));
    }
    if let Some(min_interval_ms) = min_interval {
        legacy.min_interval_ms = Some(min_interval_ms?);
    }
    let translated = legacy.translate().map_err(|error| {
        given.refuse(if has_max { "max" } else { "min_interval" }, error.to_string());
    });
    let (algorithm, spacing) = match translated.ok()? {
        Translation { bucket: Some(bucket), spacing } => (bucket, spacing),
        Translation { bucket: None, spacing: Some(spacing) } => (spacing, None),
        Translation { bucket: None, spacing: None } => {
            let right = "give max and duration, or min_interval, or both";
            given.refuse("", alloc::format!("limits nothing; {right}"));
            return None;
        }
    };
    let spacing = match spacing {
        Some(spacing) => Some(spacing.scaled(given)?),
        None => None,
    };
    Some(GivenLimit { algorithm: algorithm.scaled(given)?.into(), spacing })
}

/// A length of time in whole milliseconds, as the older form counts them.
fn millis(given: &dyn Parameters, name: &'static str) -> Option<u64> {
    let time = given.duration(name)?;
    let millis = u64::try_from(time.as_millis()).ok();
    let whole = millis.filter(|_| time.subsec_nanos() % 1_000_000 == 0);
    if whole.is_none() {
        given.refuse(name, "expected whole milliseconds".to_string());
    }
    whole
}
