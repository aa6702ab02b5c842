//! The forms in which servers write a wait, and how each is read.
//!
//! The same name carries different forms: `RateLimit-Reset` is a delta for the IETF and an epoch
//! for GitLab, `x-ratelimit-reset-tokens` a duration for OpenAI and plain seconds for Azure. So the
//! form is an argument that a profile states, and [`Form::Guess`] only the fallback.

use alloc::vec::Vec;
use core::time::Duration;

use super::calendar;
use super::digits::{count, seconds, units};

/// Numbers from here on are taken for epoch seconds: as a delta it would be 31 years.
const GUESS_EPOCH_SECONDS_MIN: Duration = Duration::from_secs(1_000_000_000);
/// Numbers from here on are taken for epoch milliseconds: as seconds it would be the year 33658.
const GUESS_EPOCH_MILLIS_MIN: Duration = Duration::from_secs(1_000_000_000_000);

/// How a wait is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Form {
    /// Seconds from now, decimals allowed: `30`, `0.755`.
    DeltaSeconds,
    /// Milliseconds from now.
    DeltaMillis,
    /// Seconds since the Unix epoch, decimals allowed.
    EpochSeconds,
    /// Milliseconds since the Unix epoch.
    EpochMillis,
    /// An HTTP-date, or a date as JavaScript prints it.
    HttpDate,
    /// An RFC 3339 timestamp.
    Rfc3339,
    /// A duration with units: `6m0s`, `12ms`, `1h2m3.5s`.
    Duration,
    /// Whatever it looks like.
    #[default]
    Guess,
}

impl Form {
    /// The wait that `text` means, for a server whose time is `epoch`; `None` if it says none.
    ///
    /// Instants that have passed mean no wait. Negative numbers say "unknown", not "now".
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollway_core::fields::Form;
    ///
    /// let now = Duration::from_secs(1_700_000_000);
    /// assert_eq!(Form::Guess.delay("6m0s", now), Some(Duration::from_secs(360)));
    /// assert_eq!(Form::Guess.delay("1700000030", now), Some(Duration::from_secs(30)));
    /// assert_eq!(Form::Guess.delay("30", now), Some(Duration::from_secs(30)));
    /// assert_eq!(Form::Guess.delay("-1", now), None);
    /// ```
    pub fn delay(self, text: &str, epoch: Duration) -> Option<Duration> {
        let text = text.trim_matches([' ', '\t']);
        let until = |instant: Duration| instant.saturating_sub(epoch);
        match self {
            Self::DeltaSeconds => seconds(text),
            Self::DeltaMillis => units(text, 1_000_000),
            Self::EpochSeconds => seconds(text).map(until),
            Self::EpochMillis => units(text, 1_000_000).map(until),
            Self::HttpDate => calendar::http_date(text, epoch).map(until),
            Self::Rfc3339 => calendar::rfc3339(text).map(until),
            Self::Duration => duration(text),
            Self::Guess => guess(text, epoch),
        }
    }
}

/// Reads an HTTP-date as time since the Unix epoch; `now` decides the century of an RFC 850 date.
pub fn http_date(text: &str, now: Duration) -> Option<Duration> {
    calendar::http_date(text, now)
}

/// Reads "used of size": Shopify's `32/40`.
pub fn used_of_size(text: &str) -> Option<(u64, u64)> {
    let (used, size) = text.split_once('/')?;
    Some((count(used)?, count(size)?))
}

/// Reads counts per window in seconds: Riot's `20:1,100:120`. `None` if any entry is malformed.
pub fn counts_per_window(text: &str) -> Option<Vec<(u64, Duration)>> {
    let entry = |entry: &str| {
        let (units, window) = entry.split_once(':')?;
        Some((count(units)?, seconds(window)?))
    };
    text.split(',').map(entry).collect()
}

fn guess(text: &str, epoch: Duration) -> Option<Duration> {
    let Some(number) = seconds(text) else {
        return [Form::Duration, Form::HttpDate, Form::Rfc3339]
            .into_iter()
            .find_map(|form| form.delay(text, epoch));
    };
    if number >= GUESS_EPOCH_MILLIS_MIN {
        Form::EpochMillis.delay(text, epoch)
    } else if number >= GUESS_EPOCH_SECONDS_MIN {
        Form::EpochSeconds.delay(text, epoch)
    } else {
        Some(number)
    }
}

/// A sequence of numbers with units, as Go prints durations.
fn duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let number_end = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|char: char| char.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        total = total.saturating_add(units(number, unit_nanos(unit)?)?);
        rest = tail;
    }
    (!text.is_empty()).then_some(total)
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return None,
    })
}
