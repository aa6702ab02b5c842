//! From a response to an [`Observation`], as a profile describes it.

use std::time::Duration;

use tollway_core::Quota;
use tollway_core::fields::{
    Form, Lines, Observed, count, counts_per_window, http_date, read, retry_after, used_of_size,
};

use super::dimension::{FieldName, Fields, Source, TimeField};
use super::signal::Meaning;
use super::{Observation, Profile, Reading, Response, Scope, body};
use crate::pace::Outcome;

/// No wait is longer: an upstream that asks for more is wrong, or will say so again.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(86_400);
/// Nobody means more than the longest month: quotas are told by the day, the week and the month.
const MEANT_MAX: Duration = Duration::from_secs(31 * 86_400);
/// How long is waited instead of more, before one request sees what is true.
const ABSURD_WAIT: Duration = Duration::from_secs(300);
/// Windows of one dimension; further ones are ignored and counted as malformed.
const PARTS_MAX: usize = 4;
/// A number from here on is no delta: it would be 31 years.
const EPOCH_SECONDS_MIN: Duration = Duration::from_secs(1_000_000_000);
/// A number from here on is no epoch in seconds: it would be the year 33658.
const EPOCH_MILLIS_MIN: Duration = Duration::from_secs(1_000_000_000_000);

pub(super) fn observe(profile: &Profile, response: &Response<'_>) -> Observation {
    let date = response.lines.first("date").and_then(|text| http_date(text, response.now));
    let mut reader = Reader { response, epoch: date.unwrap_or(response.now), malformed: 0 };
    let meaning = meaning(profile, response);
    let scope = meaning.and_then(Meaning::scope);
    // A cached answer tells what was left when it was made.
    let is_cached = response.lines.first("age").and_then(count).is_some_and(|age_s| age_s > 0);
    let readings = if is_cached { Vec::new() } else { reader.readings(profile) };
    let is_limit = meaning.is_some_and(Meaning::is_limit);
    let retry_after = reader.retry_after(profile, is_limit);
    Observation {
        status: response.status,
        outcome: match is_limit {
            true => Outcome::Limited,
            false if response.status >= 500 => Outcome::Failed,
            false => Outcome::Accepted,
        },
        bucket: profile.bucket.as_ref().and_then(|name| bucket(response.lines.first(name)?)),
        readings,
        retry_after,
        scope,
        date,
        invalid: profile.invalid.as_ref().is_some_and(|it| it.counts(response.status, scope)),
        malformed: reader.malformed,
    }
}

/// What the answer means by the first signal that fits; a 429 is a limit even if none does.
fn meaning(profile: &Profile, response: &Response<'_>) -> Option<Meaning> {
    let found = profile.signals.iter().find(|signal| signal.matches(response));
    found.map(|signal| signal.means).or((response.status == 429).then_some(Meaning::Limit))
}

/// The upstream's name of a bucket, bounded: it becomes part of a key.
fn bucket(text: &str) -> Option<std::sync::Arc<str>> {
    (!text.is_empty() && text.len() <= 128).then(|| text.into())
}

/// A wait, and the instant if the upstream named one.
struct Instant {
    after: Duration,
    at: Option<Duration>,
    /// Whether the upstream asked for more than anybody can mean.
    is_doubtful: bool,
}

struct Reader<'r> {
    response: &'r Response<'r>,
    epoch: Duration,
    malformed: u32,
}

impl Reader<'_> {
    fn readings(&mut self, profile: &Profile) -> Vec<Reading> {
        let mut readings = Vec::new();
        for (index, dimension) in profile.dimensions.iter().enumerate() {
            let of = |reading| Reading { dimension: index as u8, ..reading };
            match &dimension.source {
                Source::Fields(fields) => readings.extend(self.fields(fields).map(of)),
                Source::UsedOfSize(name) => readings.extend(self.used_of_size(name).map(of)),
                Source::Counts { limit, used } => {
                    readings.extend(self.counts(limit, used).into_iter().map(of));
                }
                Source::Structured => readings.extend(self.structured().into_iter().map(of)),
                Source::Modelled => {}
            }
        }
        readings
    }

    fn fields(&mut self, fields: &Fields) -> Option<Reading> {
        let said = |name: &Option<FieldName>, reader: &mut Self| {
            name.as_ref().and_then(|name| reader.parsed(name, count))
        };
        let stated = fields.limit.as_ref().and_then(|name| self.parsed(name, limit));
        let (limit, window) = (stated.map(|it| it.0), stated.and_then(|it| it.1));
        let used = said(&fields.used, self);
        let left = said(&fields.remaining, self);
        let remaining = left.or_else(|| Some(limit?.saturating_sub(used?)));
        // Reddit tells what was used and what is left, and leaves the sum to us.
        let limit = limit.or_else(|| Some(remaining?.saturating_add(used?)));
        let resets: Vec<_> = fields.reset.iter().filter_map(|value| self.instant(value)).collect();
        let reset = resets.first();
        let interval = fields.interval.as_ref().and_then(|value| self.instant(value));
        limit.or(remaining)?;
        Some(Reading {
            limit,
            remaining,
            reset_after: reset.map(|reset| reset.after),
            told_after: reset.is_some_and(|reset| reset.at.is_none()),
            is_doubtful: reset.is_some_and(|reset| reset.is_doubtful),
            resets_at: resets.iter().find_map(|reset| reset.at),
            window: interval.map(|interval| interval.after).or(window),
            ..Reading::default()
        })
    }

    fn used_of_size(&mut self, name: &str) -> Option<Reading> {
        let (used, size) = self.parsed(name, used_of_size)?;
        let remaining = Some(size.saturating_sub(used));
        Some(Reading { limit: Some(size), remaining, ..Reading::default() })
    }

    fn counts(&mut self, limit: &str, used: &str) -> Vec<Reading> {
        let Some(limits) = self.parsed(limit, counts_per_window) else { return Vec::new() };
        let used = self.parsed(used, counts_per_window).unwrap_or_default();
        self.malformed += limits.len().saturating_sub(PARTS_MAX) as u32;
        let reading = |(part, (limit, window)): (usize, (u64, Duration))| {
            let used = used.iter().find(|(_, of)| *of == window).map(|(used, _)| *used);
            Reading {
                part: part as u8,
                limit: Some(limit),
                remaining: used.map(|used| limit.saturating_sub(used)),
                window: Some(window.min(WAIT_MAX)),
                ..Reading::default()
            }
        };
        limits.into_iter().take(PARTS_MAX).enumerate().map(reading).collect()
    }

    fn structured(&mut self) -> Vec<Reading> {
        let limits = read(self.response.lines, self.response.now).limits;
        let told = ["ratelimit", "ratelimit-policy", "ratelimit-remaining", "ratelimit-limit"];
        let is_told = told.iter().any(|name| self.response.lines.first(name).is_some());
        if limits.is_empty() && is_told {
            self.malformed += 1;
        }
        self.malformed += limits.len().saturating_sub(PARTS_MAX) as u32;
        let mut reading = |(part, limit): (usize, Observed)| {
            let reset = limit.reset_after.or(limit.more_after).map(|wait| self.bounded(wait));
            Reading {
                part: part as u8,
                limit: limit.quota,
                remaining: limit.remaining,
                reset_after: reset.map(|(wait, _)| wait),
                told_after: true,
                is_doubtful: reset.is_some_and(|(_, is_doubtful)| is_doubtful),
                window: limit.window.map(|window| window.min(WAIT_MAX)),
                ..Reading::default()
            }
        };
        limits.into_iter().take(PARTS_MAX).enumerate().map(&mut reading).collect()
    }

    fn retry_after(&mut self, profile: &Profile, is_limit: bool) -> Option<Duration> {
        let retry = &profile.retry;
        let from_body = retry.body.as_ref().and_then(|value| {
            let text = body::number(self.response.body, &value.field)?;
            value.form.delay(text, self.epoch)
        });
        // Fields of an upstream's own tell a wait even when there is nothing to wait for.
        let from_fields = if retry.headers.is_empty() || !is_limit {
            self.standard_retry_after()
        } else {
            retry.headers.iter().find_map(|value| self.instant(value)).map(|found| found.after)
        };
        from_body.or(from_fields).map(|wait| self.bounded(wait).0)
    }

    /// A wait that can be meant; another one instead of one that cannot, and whether that is so.
    fn bounded(&mut self, wait: Duration) -> (Duration, bool) {
        let is_doubtful = wait > MEANT_MAX;
        self.malformed += u32::from(is_doubtful);
        (if is_doubtful { ABSURD_WAIT } else { wait.min(WAIT_MAX) }, is_doubtful)
    }

    fn standard_retry_after(&mut self) -> Option<Duration> {
        let found = retry_after(self.response.lines, self.response.now);
        if found.is_none() && self.response.lines.first("retry-after").is_some() {
            self.malformed += 1;
        }
        found
    }

    /// The field as `parse` reads it; counted as malformed if it is there and makes no sense.
    fn parsed<T>(&mut self, name: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let text = self.response.lines.joined(name)?;
        let value = parse(&text);
        self.malformed += u32::from(value.is_none());
        value
    }

    /// The wait in a field. A number that is absurd in the stated form is read as what it looks
    /// like: an epoch for a delta would be a wait of 50 years.
    fn instant(&mut self, value: &TimeField) -> Option<Instant> {
        let text = self.response.lines.first(&value.header)?;
        let form = if is_plausible(value.form, text) { value.form } else { Form::Guess };
        self.malformed += u32::from(form != value.form);
        let Some(after) = form.delay(text, self.epoch) else {
            self.malformed += u32::from(form == value.form);
            return None;
        };
        let absolute =
            matches!(form, Form::EpochSeconds | Form::EpochMillis | Form::HttpDate | Form::Rfc3339);
        let (after, is_doubtful) = self.bounded(after);
        let at = absolute.then(|| form.delay(text, Duration::ZERO)).flatten();
        Some(Instant { after, at: at.filter(|_| !is_doubtful), is_doubtful })
    }
}

/// A limit, and its window where both are in one field: ESI's `150/15m`.
fn limit(text: &str) -> Option<(u64, Option<Duration>)> {
    let plain = count(text).map(|limit| (limit, None));
    plain.or_else(|| {
        let quota: Quota = text.parse().ok()?;
        Some((quota.units(), Some(quota.period().min(WAIT_MAX))))
    })
}

fn is_plausible(form: Form, text: &str) -> bool {
    let Some(number) = Form::DeltaSeconds.delay(text, Duration::ZERO) else { return true };
    match form {
        Form::DeltaSeconds => number < EPOCH_SECONDS_MIN,
        Form::DeltaMillis => number < EPOCH_MILLIS_MIN,
        Form::EpochSeconds => (EPOCH_SECONDS_MIN..EPOCH_MILLIS_MIN).contains(&number),
        Form::EpochMillis => number >= EPOCH_MILLIS_MIN,
        _ => true,
    }
}

/// Bytes of a body that are looked at.
const BODY_BYTES: usize = 4_096;

/// Bytes of the body that [`observe`] needs.
pub(super) fn body_wanted(profile: &Profile, status: u16, lines: &Lines<'_>) -> usize {
    let mut may = profile.signals.iter().filter(|signal| signal.may_match(status, lines));
    let decided = may.next();
    let signal_reads = decided.is_some_and(super::signal::Signal::reads_body);
    let is_limit = decided.map_or(status == 429, |signal| signal.means.is_limit());
    if signal_reads || (is_limit && profile.retry.body.is_some()) { BODY_BYTES } else { 0 }
}

impl Scope {
    /// The word for it, as Discord has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Shared => "shared",
            Self::Global => "global",
        }
    }
}
