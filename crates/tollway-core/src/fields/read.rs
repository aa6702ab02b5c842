//! What the header fields of a response say about the sender's limits.
//!
//! Precedence, most explicit first: `Retry-After` beside any of them, then draft 10, draft 07,
//! `RateLimit-*`, `X-RateLimit-*`. Only the first family that says anything is read: mixing two
//! would pair one's remaining with another's reset. A field that is malformed in any part is
//! ignored whole, and the next family gets its chance.

use alloc::borrow::Cow;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use super::digits::{count, seconds, units};
use super::form::{Form, http_date};
use super::lines::Lines;
use super::sf::{self, Bare, Member, Params, param};

/// What one policy of the sender looks like; everything it did not say is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// The policy's name.
    pub policy: Option<String>,
    /// The partition key, decoded.
    pub partition: Option<Vec<u8>>,
    /// Units per window.
    pub quota: Option<u64>,
    /// What is counted, where it is not requests.
    pub unit: Option<String>,
    /// The window of the quota.
    pub window: Option<Duration>,
    /// Units left.
    pub remaining: Option<u64>,
    /// Time until more units become available: draft 10's `t`.
    pub more_after: Option<Duration>,
    /// Time until the whole quota is back: the `reset` of the others.
    pub reset_after: Option<Duration>,
}

/// The family of fields a [`Reading`] was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// `RateLimit` and `RateLimit-Policy` as Lists.
    Draft10,
    /// `RateLimit` as a Dictionary.
    Draft07,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`.
    RateLimit,
    /// `X-RateLimit-*` or `X-Rate-Limit-*`, the reset in whatever form it looks like.
    XRateLimit,
}

/// Everything a response says about limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// The wait demanded by `Retry-After`; it takes precedence over every `more_after`.
    pub retry_after: Option<Duration>,
    /// Where `limits` was read from.
    pub family: Option<Family>,
    /// The sender's policies.
    pub limits: Vec<Observed>,
}

/// Reads a response without knowing who sent it.
///
/// `now` is the reader's time since the Unix epoch; the response's own `Date` replaces it where it
/// has one, so that skewed clocks do no harm. A response served from a cache (`Age` above zero)
/// says nothing about the present, so only its `Retry-After` is read.
///
/// ```
/// use core::time::Duration;
/// use tollway_core::fields::{Lines, read};
///
/// let lines: Lines<'_> = [("RateLimit", &br#""day";r=100;t=36000"#[..])].into_iter().collect();
/// let reading = read(&lines, Duration::ZERO);
/// assert_eq!(reading.limits[0].remaining, Some(100));
/// assert_eq!(reading.limits[0].more_after, Some(Duration::from_secs(36000)));
/// ```
pub fn read(lines: &Lines<'_>, now: Duration) -> Reading {
    let retry_after = retry_after(lines, now);
    if lines.first("age").and_then(count).is_some_and(|age_s| age_s > 0) {
        return Reading { retry_after, ..Reading::default() };
    }
    let epoch = server_epoch(lines, now);
    let (family, limits) = [
        (Family::Draft10, draft10 as fn(&Lines<'_>, Duration) -> Vec<Observed>),
        (Family::Draft07, draft07),
        (Family::RateLimit, rate_limit_fields),
        (Family::XRateLimit, x_rate_limit_fields),
    ]
    .into_iter()
    .map(|(family, reader)| (Some(family), reader(lines, epoch)))
    .find(|(_, limits)| !limits.is_empty())
    .unwrap_or_default();
    Reading { retry_after, family, limits }
}

/// The wait demanded by `retry-after-ms` or `Retry-After`, in seconds or as an HTTP-date.
///
/// Decimals pass although RFC 9110 has none (Shopify sends `2.0`). Of several lines the longest
/// wait counts. A date is measured from the response's `Date`, or from `now` without one.
pub fn retry_after(lines: &Lines<'_>, now: Duration) -> Option<Duration> {
    let millis = lines.all("retry-after-ms").filter_map(|text| units(text, 1_000_000)).max();
    millis.or_else(|| {
        let epoch = server_epoch(lines, now);
        let wait = |text| seconds(text).or_else(|| Form::HttpDate.delay(text, epoch));
        lines.all("retry-after").filter_map(wait).max()
    })
}

/// A family of one number per field: three names and the form of the reset.
///
/// Profiles of particular upstreams are lists of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Triplet<'n> {
    /// Name of the field with the quota, `100` or `100, 100;w=60`.
    pub limit: Cow<'n, str>,
    /// Name of the field with what remains.
    pub remaining: Cow<'n, str>,
    /// Name of the field with the reset.
    pub reset: Cow<'n, str>,
    /// How the reset is written.
    pub form: Form,
}

impl<'n> Triplet<'n> {
    /// The triplet of those names.
    pub const fn new(limit: &'n str, remaining: &'n str, reset: &'n str, form: Form) -> Self {
        Self {
            limit: Cow::Borrowed(limit),
            remaining: Cow::Borrowed(remaining),
            reset: Cow::Borrowed(reset),
            form,
        }
    }

    /// Reads it for a server whose time is `epoch`; `None` if quota and remainder are both absent.
    pub fn read(&self, lines: &Lines<'_>, epoch: Duration) -> Option<Observed> {
        let (quota, window) = lines.joined(&self.limit).and_then(|text| quota(&text)).unzip();
        let remaining = lines.first(&self.remaining).and_then(count);
        if quota.is_none() && remaining.is_none() {
            return None;
        }
        let reset = lines.first(&self.reset).and_then(|text| self.form.delay(text, epoch));
        let window = window.flatten();
        Some(Observed { quota, window, remaining, reset_after: reset, ..Observed::default() })
    }
}

/// The sender's time: its `Date`, or else the reader's `now`.
fn server_epoch(lines: &Lines<'_>, now: Duration) -> Duration {
    lines.first("date").and_then(|text| http_date(text, now)).unwrap_or(now)
}

fn draft10(lines: &Lines<'_>, _epoch: Duration) -> Vec<Observed> {
    let items = |name, item: fn(Member) -> Option<Observed>| -> Option<Vec<Observed>> {
        sf::list(&lines.joined(name)?)?.into_iter().map(item).collect()
    };
    let mut limits = items("ratelimit-policy", draft10_policy).unwrap_or_default();
    for standing in items("ratelimit", draft10_standing).unwrap_or_default() {
        match limits.iter_mut().find(|limit| limit.policy == standing.policy) {
            Some(limit) => {
                limit.remaining = standing.remaining;
                limit.more_after = standing.more_after;
                limit.partition = standing.partition.or(limit.partition.take());
            }
            None => limits.push(standing),
        }
    }
    limits
}

fn draft10_policy(member: Member) -> Option<Observed> {
    let (policy, params) = named(member)?;
    let window = optional(&params, "w", natural)?;
    if window == Some(0) {
        return None;
    }
    Some(Observed {
        policy: Some(policy),
        partition: optional(&params, "pk", bytes)?,
        quota: Some(natural(param(&params, "q")?)?),
        unit: optional(&params, "qu", string)?.filter(|unit| !unit.starts_with("request")),
        window: window.map(Duration::from_secs),
        ..Observed::default()
    })
}

/// `r` is required by the text but missing from the draft's own appendix: its absence is no error.
fn draft10_standing(member: Member) -> Option<Observed> {
    let (policy, params) = named(member)?;
    Some(Observed {
        policy: Some(policy),
        partition: optional(&params, "pk", bytes)?,
        remaining: optional(&params, "r", natural)?,
        more_after: optional(&params, "t", natural)?.map(Duration::from_secs),
        ..Observed::default()
    })
}

fn draft07(lines: &Lines<'_>, _epoch: Duration) -> Vec<Observed> {
    let read = || {
        let entries = sf::dictionary(&lines.joined("ratelimit")?)?;
        let value = |key: &str| match entries.iter().find(|(name, _)| name == key) {
            Some((_, Member::Item(bare, _))) => natural(bare).map(Some),
            Some((_, Member::Inner(..))) => None,
            None => Some(None),
        };
        let (limit, remaining, reset) = (value("limit")?, value("remaining")?, value("reset")?);
        if limit.is_none() && remaining.is_none() {
            return None;
        }
        let window = lines.joined("ratelimit-policy").and_then(|text| window_of(&text, limit?));
        let reset_after = reset.map(Duration::from_secs);
        Some(Observed { quota: limit, window, remaining, reset_after, ..Observed::default() })
    };
    read().into_iter().collect()
}

/// Guessed form: the IETF says seconds from now, GitLab and Twitch send epochs by the same name.
fn rate_limit_fields(lines: &Lines<'_>, epoch: Duration) -> Vec<Observed> {
    const NAMES: Triplet<'_> =
        Triplet::new("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", Form::Guess);
    let mut limit = NAMES.read(lines, epoch);
    if let Some(limit) = &mut limit
        && limit.window.is_none()
    {
        limit.window =
            lines.joined("ratelimit-policy").and_then(|text| window_of(&text, limit.quota?));
    }
    limit.into_iter().collect()
}

fn x_rate_limit_fields(lines: &Lines<'_>, epoch: Duration) -> Vec<Observed> {
    const NAMES: [Triplet<'_>; 2] = [
        Triplet::new(
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            Form::Guess,
        ),
        Triplet::new(
            "x-rate-limit-limit",
            "x-rate-limit-remaining",
            "x-rate-limit-reset",
            Form::Guess,
        ),
    ];
    let mut limit = NAMES.iter().find_map(|names| names.read(lines, epoch));
    if let Some(limit) = &mut limit {
        apply_x_variants(limit, lines);
    }
    limit.into_iter().collect()
}

/// Sharkey means "until the next call passes" by `-Reset` and has `-Clear` for the rest; Discord
/// repeats its reset as a delta in `-Reset-After`, which no clock skew can spoil.
fn apply_x_variants(limit: &mut Observed, lines: &Lines<'_>) {
    if let Some(clear) = lines.first("x-ratelimit-clear").and_then(seconds) {
        limit.more_after = limit.reset_after;
        limit.reset_after = Some(clear);
    }
    if let Some(after) = lines.first("x-ratelimit-reset-after").and_then(seconds) {
        limit.reset_after = Some(after);
    }
}

/// `100`, `599.0`, or a list whose first number counts: Envoy's `2, 2;w=60;name="demo"`.
fn quota(text: &str) -> Option<(u64, Option<Duration>)> {
    if let Some(plain) = count(text) {
        return Some((plain, None));
    }
    match sf::list(text)?.first()? {
        Member::Item(first, _) => natural(first).map(|quota| (quota, window_of(text, quota))),
        Member::Inner(..) => None,
    }
}

/// The window stated for that quota in a list like `100;w=60, 1000;w=3600`.
fn window_of(text: &str, quota: u64) -> Option<Duration> {
    let states_it = |member: &Member| match member {
        Member::Item(value, params) if natural(value) == Some(quota) => {
            param(params, "w").and_then(natural).filter(|&window_s| window_s > 0)
        }
        _ => None,
    };
    sf::list(text)?.iter().find_map(states_it).map(Duration::from_secs)
}

/// A member named by a String, or by a Token as in the draft's appendix.
fn named(member: Member) -> Option<(String, Params)> {
    match member {
        Member::Item(Bare::String(name) | Bare::Token(name), params) => Some((name, params)),
        _ => None,
    }
}

/// An absent parameter is fine, one of the wrong type or range makes the field malformed.
fn optional<T>(params: &Params, key: &str, read: fn(&Bare) -> Option<T>) -> Option<Option<T>> {
    param(params, key).map_or(Some(None), |value| read(value).map(Some))
}

fn natural(value: &Bare) -> Option<u64> {
    match value {
        Bare::Integer(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

fn string(value: &Bare) -> Option<String> {
    match value {
        Bare::String(text) => Some(text.to_string()),
        _ => None,
    }
}

fn bytes(value: &Bare) -> Option<Vec<u8>> {
    match value {
        Bare::Bytes(bytes) => Some(bytes.clone()),
        _ => None,
    }
}
