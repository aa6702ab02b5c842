//! Limits in Envoy's units, both ways.

use std::time::Duration;

use tollway_core::fixed_window::{Anchor, FixedWindow};
use tollway_core::{Policy, Quota, QuotaError};

use crate::descriptors::Limit;
use crate::metrics::Metrics;

/// A unit of time, by its number on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unit {
    /// None that has a name.
    #[default]
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    /// A week.
    Week = 7,
}

/// What to say of a unit that is none of these.
pub(crate) const UNIT_EXPECTED: &str =
    "unit must be SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR";

impl Unit {
    /// Every unit that has a length, with its name in proto3 JSON and its seconds.
    const TABLE: [(Self, &'static str, u64); 7] = [
        (Self::Second, "SECOND", 1),
        (Self::Minute, "MINUTE", 60),
        (Self::Hour, "HOUR", 3_600),
        (Self::Day, "DAY", 86_400),
        (Self::Week, "WEEK", 7 * 86_400),
        (Self::Month, "MONTH", 30 * 86_400),
        (Self::Year, "YEAR", 365 * 86_400),
    ];

    /// The unit of this number.
    pub(crate) fn numbered(number: i32) -> Option<Self> {
        Self::TABLE.into_iter().map(|row| row.0).find(|unit| *unit as i32 == number)
    }

    /// The unit of this name, in any case.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let found = Self::TABLE.into_iter().find(|row| row.1.eq_ignore_ascii_case(name));
        found.map(|row| row.0)
    }

    /// The name in proto3 JSON.
    pub(crate) fn name(self) -> &'static str {
        self.row().map_or("UNKNOWN", |row| row.1)
    }

    /// How long it is; zero if unknown.
    fn duration(self) -> Duration {
        self.row().map_or(Duration::ZERO, |row| Duration::from_secs(row.2))
    }

    fn row(self) -> Option<(Self, &'static str, u64)> {
        Self::TABLE.into_iter().find(|row| row.0 == self)
    }
}

/// The policy that envoyproxy/ratelimit means: a window aligned to Unix time.
///
/// # Errors
///
/// If the numbers make no quota.
pub(crate) fn limit_policy(name: &str, requests: u32, unit: Unit) -> Result<Policy, QuotaError> {
    // A limit of zero denies everything; the policy stands in for what is then never asked.
    let quota = Quota::new(u64::from(requests.max(1)), unit.duration())?;
    let window = FixedWindow::new(quota, Anchor::Epoch);
    Ok(Policy::new(printable(name), window).expect("the name was made printable"))
}

/// The limit that came with a request.
pub(super) fn limit_of_request(
    requests: u32,
    unit: Unit,
    metrics: &Metrics,
) -> Result<Limit, QuotaError> {
    let policy = limit_policy("override", requests, unit)?;
    let limit = Limit::new(Some(policy), metrics.tally("", "override"));
    Ok(Limit { deny_all: requests == 0, ..limit })
}

/// A policy's units and the unit of its window; [`Unit::Unknown`] if its window is none of them.
pub(crate) fn unit_and_requests(policy: &Policy) -> (u32, Unit) {
    let algorithm = policy.algorithm();
    let (units, window) = algorithm.window().unwrap_or((algorithm.limit(), Duration::ZERO));
    let unit = Unit::TABLE.into_iter().map(|row| row.0).find(|unit| unit.duration() == window);
    (u32::try_from(units).unwrap_or(u32::MAX), unit.unwrap_or_default())
}

/// A name that a header field can carry, made of any text.
pub(crate) fn printable(text: &str) -> String {
    let keep = |char: char| {
        if matches!(char, ' '..='~') && char != '"' && char != '\\' { char } else { '_' }
    };
    let name: String = text.chars().take(Policy::NAME_LEN_MAX).map(keep).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}
