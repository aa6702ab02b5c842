//! The dialects of rate-limit fields a server can answer in, and their exact text.
//!
//! | dialect | fields |
//! |---|---|
//! | `draft10` | `RateLimit-Policy: "p";q=100;w=60`, `RateLimit: "p";r=50;t=30` |
//! | `draft07` | `RateLimit-Policy: 100;w=60`, `RateLimit: limit=100, remaining=50, reset=30` |
//! | `draft03` | `RateLimit-Policy`, `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset` |
//! | `x-ratelimit-clear` | Sharkey's `X-RateLimit-Remaining`, `-Clear`, and `-Reset` if denied |
//! | `x-ratelimit-delta` | `X-RateLimit-Limit`, `-Remaining`, `-Reset` in seconds from now |
//! | `x-ratelimit-epoch` | the same with `-Reset` in seconds since the Unix epoch |
//! | `retry-after` | nothing but `Retry-After` |
//! | `off` | nothing at all |
//!
//! Every dialect but `off` adds `Retry-After` to a denial that a wait can cure. Draft 10 reports
//! all policies; the others can name only one and report [`Report::tightest`]. Their `reset` means
//! "the whole quota is back", so an allowed answer says the time until full: with the time to the
//! next unit a client would spend a full quota that is not there. A denial says the retry time
//! there instead, because those drafts forbid a `Retry-After` earlier than the `reset`. Their
//! `limit` is what one request could ever take, so that `remaining` never exceeds it.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use super::digits::{push_integer, push_seconds_millis, seconds_up};
use super::{Field, Report, Standing};
use crate::gcra::gcd;

/// Scaled windows longer than this would tell a client a volume nobody meant to promise.
const SCALED_WINDOW_MAX: Duration = Duration::from_secs(60);

crate::named_enum! {
    /// Which header fields a server answers with.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    #[non_exhaustive]
    pub enum Dialect {
        /// draft-ietf-httpapi-ratelimit-headers-10.
        #[default]
        Draft10 = "draft10",
        /// Revision -07 of the same draft: a Dictionary.
        Draft07 = "draft07",
        /// Revisions -03 to -06: one field per number.
        Draft03 = "draft03",
        /// The fields of Sharkey, with `X-RateLimit-Clear`.
        XRateLimitClear = "x-ratelimit-clear",
        /// `X-RateLimit-*`, reset in seconds from now.
        XRateLimitDelta = "x-ratelimit-delta",
        /// `X-RateLimit-*`, reset in seconds since the Unix epoch.
        XRateLimitEpoch = "x-ratelimit-epoch",
        /// Only `Retry-After`, only on denials.
        RetryAfter = "retry-after",
        /// No field at all.
        Off = "off",
    }
}

impl Dialect {
    /// Whether its answers tell times since the epoch: only then must [`Report::epoch`] be right.
    pub const fn tells_epoch(self) -> bool {
        matches!(self, Self::XRateLimitEpoch)
    }

    /// Gives every field of an answer to `put`, in a fixed order.
    ///
    /// `line` is scratch space: reusing it keeps a hot path free of allocations.
    ///
    /// ```
    /// use core::time::Duration;
    /// use tollway_core::fields::{Dialect, Report, Standing};
    ///
    /// let standing = Standing {
    ///     policy: "user",
    ///     limit: 100,
    ///     quota: 100,
    ///     window: Some(Duration::from_secs(60)),
    ///     remaining: 50,
    ///     more_after: Some(Duration::from_millis(600)),
    ///     full_after: Duration::from_secs(30),
    /// };
    /// let report = Report { standings: &[standing], denied: None, epoch: Duration::ZERO };
    /// let mut text = String::new();
    /// Dialect::Draft10.emit(&report, &mut String::new(), |field, value| {
    ///     text += &format!("{}: {value}\n", field.name());
    /// });
    /// assert_eq!(text, "RateLimit-Policy: \"user\";q=100;w=60\nRateLimit: \"user\";r=50;t=1\n");
    /// ```
    pub fn emit(self, report: &Report<'_>, line: &mut String, mut put: impl FnMut(Field, &str)) {
        self.emit_policies(report, line, &mut put);
        self.emit_standings(report, line, &mut put);
    }

    /// Only the fields that stay the same while the policies do: `RateLimit-Policy`.
    ///
    /// A server with fixed policies writes them once and repeats the bytes.
    pub fn emit_policies(
        self,
        report: &Report<'_>,
        line: &mut String,
        mut put: impl FnMut(Field, &str),
    ) {
        let named = match self {
            Self::Draft10 => true,
            Self::Draft07 | Self::Draft03 => false,
            _ => return,
        };
        if report.standings.is_empty() {
            return;
        }
        line.clear();
        for standing in report.by_policy() {
            push_policy(line, standing, named);
        }
        put(Field::RateLimitPolicy, line);
    }

    /// Only the fields that change with every answer.
    pub fn emit_standings(
        self,
        report: &Report<'_>,
        line: &mut String,
        mut put: impl FnMut(Field, &str),
    ) {
        match self {
            Self::Draft10 => emit_draft10(report, line, &mut put),
            Self::Draft07 => emit_draft07(report, line, &mut put),
            Self::Draft03 => emit_triplet(report, line, DRAFT_03, &mut put),
            Self::XRateLimitClear => emit_clear(report, line, &mut put),
            Self::XRateLimitDelta => emit_triplet(report, line, DELTA, &mut put),
            Self::XRateLimitEpoch => emit_triplet(report, line, EPOCH, &mut put),
            Self::RetryAfter => {}
            Self::Off => return,
        }
        if let Some(retry) = report.retry() {
            put_number(Field::RetryAfter, seconds_up(retry), line, &mut put);
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// A dialect name that does not exist; displays the ones that do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownDialect;

impl fmt::Display for UnknownDialect {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("unknown header dialect; expected one of")?;
        for (index, dialect) in Dialect::ALL.into_iter().enumerate() {
            write!(out, "{}{dialect}", if index == 0 { " " } else { ", " })?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownDialect {}

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(text: &str) -> Result<Self, UnknownDialect> {
        Self::ALL.into_iter().find(|dialect| dialect.name() == text).ok_or(UnknownDialect)
    }
}

/// The three fields of a one-number-per-field dialect, and how it counts time.
#[derive(Clone, Copy)]
struct Names {
    limit: Field,
    remaining: Field,
    reset: Field,
    reset_is_epoch: bool,
}

const DRAFT_03: Names = Names {
    limit: Field::RateLimitLimit,
    remaining: Field::RateLimitRemaining,
    reset: Field::RateLimitReset,
    reset_is_epoch: false,
};
const DELTA: Names = Names {
    limit: Field::XRateLimitLimit,
    remaining: Field::XRateLimitRemaining,
    reset: Field::XRateLimitReset,
    reset_is_epoch: false,
};
const EPOCH: Names = Names { reset_is_epoch: true, ..DELTA };

fn emit_draft10(report: &Report<'_>, line: &mut String, put: &mut impl FnMut(Field, &str)) {
    if report.standings.is_empty() {
        return;
    }
    line.clear();
    for standing in report.by_policy() {
        push_separator(line);
        push_string(line, standing.policy);
        line.push_str(";r=");
        push_integer(line, standing.remaining);
        if let Some(more) = standing.more_after {
            line.push_str(";t=");
            push_integer(line, seconds_up(more));
        }
    }
    put(Field::RateLimit, line);
}

fn emit_draft07(report: &Report<'_>, line: &mut String, put: &mut impl FnMut(Field, &str)) {
    let Some(standing) = report.tightest() else { return };
    line.clear();
    line.push_str("limit=");
    push_integer(line, standing.limit);
    line.push_str(", remaining=");
    push_integer(line, standing.remaining);
    line.push_str(", reset=");
    push_integer(line, seconds_up(reset(report, standing)));
    put(Field::RateLimit, line);
}

fn emit_triplet(
    report: &Report<'_>,
    line: &mut String,
    names: Names,
    put: &mut impl FnMut(Field, &str),
) {
    let Some(standing) = report.tightest() else { return };
    put_number(names.limit, standing.limit, line, put);
    put_number(names.remaining, standing.remaining, line, put);
    let mut reset = reset(report, standing);
    if names.reset_is_epoch {
        reset = reset.saturating_add(report.epoch);
    }
    put_number(names.reset, seconds_up(reset), line, put);
}

/// Sharkey merges several limits into one answer: the fewest left, the longest to clear.
fn emit_clear(report: &Report<'_>, line: &mut String, put: &mut impl FnMut(Field, &str)) {
    let remaining = report.standings.iter().map(|standing| standing.remaining).min();
    let clear = report.standings.iter().map(|standing| standing.full_after).max();
    let (Some(remaining), Some(clear)) = (remaining, clear) else { return };
    let remaining = if report.denied.is_some() { 0 } else { remaining };
    put_number(Field::XRateLimitRemaining, remaining, line, put);
    put_seconds_millis(Field::XRateLimitClear, clear, line, put);
    if let Some(retry) = report.retry() {
        put_seconds_millis(Field::XRateLimitReset, retry, line, put);
    }
}

fn reset(report: &Report<'_>, standing: &Standing<'_>) -> Duration {
    report.retry().unwrap_or(standing.full_after)
}

fn push_policy(line: &mut String, standing: &Standing<'_>, named: bool) {
    let (quota, window) = scaled(standing);
    push_separator(line);
    if named {
        push_string(line, standing.policy);
        line.push_str(";q=");
    }
    push_integer(line, quota);
    match window {
        Some(window_s) => {
            line.push_str(";w=");
            push_integer(line, window_s);
        }
        None if named && standing.window.is_none() => line.push_str(";qu=\"concurrent-requests\""),
        None => {}
    }
}

/// Quota and window in whole seconds, the least multiple of both that the field can say.
///
/// ```text
/// 10 per 100 ms -> 100 per 1 s      5 per 1.5 s -> 10 per 3 s      7 per 60.001 s -> 7, no window
/// ```
fn scaled(standing: &Standing<'_>) -> (u64, Option<u64>) {
    const NANOS: u32 = 1_000_000_000;
    let Some(window) = standing.window else { return (standing.quota, None) };
    let factor = NANOS / gcd(window.subsec_nanos().into(), NANOS.into()) as u32;
    if factor == 1 && !window.is_zero() {
        return (standing.quota, Some(window.as_secs()));
    }
    match window.checked_mul(factor) {
        Some(whole) if !whole.is_zero() && whole <= SCALED_WINDOW_MAX => {
            (standing.quota.saturating_mul(u64::from(factor)), Some(whole.as_secs()))
        }
        _ => (standing.quota, None),
    }
}

fn push_separator(line: &mut String) {
    if !line.is_empty() {
        line.push_str(", ");
    }
}

/// Appends an RFC 9651 String. What it cannot hold becomes `_`: a name must not break the field.
fn push_string(line: &mut String, text: &str) {
    line.push('"');
    // Names of policies are plain; this runs on every response.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\') {
        line.push_str(text);
    } else {
        text.chars().for_each(|char| push_escaped(line, char));
    }
    line.push('"');
}

fn push_escaped(line: &mut String, char: char) {
    match char {
        '"' | '\\' => line.extend(['\\', char]),
        ' '..='~' => line.push(char),
        _ => line.push('_'),
    }
}

fn put_number(field: Field, n: u64, line: &mut String, put: &mut impl FnMut(Field, &str)) {
    line.clear();
    push_integer(line, n);
    put(field, line);
}

fn put_seconds_millis(
    field: Field,
    wait: Duration,
    line: &mut String,
    put: &mut impl FnMut(Field, &str),
) {
    line.clear();
    push_seconds_millis(line, wait);
    put(field, line);
}
