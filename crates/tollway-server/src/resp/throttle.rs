//! `CL.THROTTLE`, `THROTTLE` and `GCRA`: a check whose policy comes with it.
//!
//! | command | answer |
//! |---|---|
//! | `CL.THROTTLE key max_burst count period [quantity]` | limited, max_burst + 1, remaining, retry s or -1, reset s |
//! | `THROTTLE key max_burst count period [quantity]` | allowed, max_burst, remaining, reset s, retry s or 0 |
//! | `GCRA key max_burst count period [TOKENS quantity]` | as `CL.THROTTLE` |
//!
//! A quantity of 0 looks without taking; a negative one gives back (`CL.THROTTLE` only, as
//! redis-cell does). Numbers that would overflow are refused with an error instead of wrapping.

use std::rc::Rc;
use std::time::Duration;

use tollway_core::{Algorithm, Cost, Decision, Key, Policy, Retry, Snapshot};

use super::batch::PendingCheck;
use super::encode::Encoder;
use super::parse::integer;
use crate::adhoc::Numbers;
use crate::operation::Verb;
use crate::worker::Worker;

/// Which of the commands was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThrottleCommand {
    /// redis-cell's.
    Cell,
    /// throttlecrab's.
    Crab,
    /// Redis's own, withheld from its releases.
    Gcra,
}

impl ThrottleCommand {
    /// The command of this name.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        match name.len() {
            11 if name.eq_ignore_ascii_case(b"CL.THROTTLE") => Some(Self::Cell),
            8 if name.eq_ignore_ascii_case(b"THROTTLE") => Some(Self::Crab),
            4 if name.eq_ignore_ascii_case(b"GCRA") => Some(Self::Gcra),
            _ => None,
        }
    }

    /// What the arguments ask (to check, to peek or to refund), or the text of the error.
    pub(super) fn parse<'a>(
        self,
        args: &[&'a [u8]],
        worker: &Worker,
    ) -> Result<(Verb, PendingCheck<'a>), String> {
        let (key, numbers, quantity) = match self {
            Self::Cell => cell_arguments(args)?,
            Self::Crab => crab_arguments(args)?,
            Self::Gcra => gcra_arguments(args)?,
        };
        let key = Key::new(key).map_err(|error| self.error(&error.to_string()))?;
        let policy = worker.adhoc.borrow_mut().policy(numbers);
        let policy: Rc<Policy> = policy.map_err(|error| self.error(&error.to_string()))?;
        let cost = Cost::new(quantity.unsigned_abs()).unwrap_or(Cost::ONE);
        let verb = match quantity {
            0 => Verb::Peek,
            1.. => Verb::Check,
            _ => Verb::Refund,
        };
        Ok((verb, PendingCheck::AdHoc { command: self, policy, key, cost }))
    }

    /// The answer to a check.
    #[inline]
    pub(super) fn encode(self, decision: &Decision, encoder: &mut Encoder<'_>) {
        let snapshot = decision.snapshot();
        let retry = decision.retry().map(|retry| retry.after());
        let limited = i64::from(retry.is_some());
        let (limit, remaining) = (clamp(snapshot.limit()), clamp(snapshot.remaining()));
        encoder.five(match self {
            Self::Cell | Self::Gcra => {
                let retry = retry.flatten().map_or(-1, cell_seconds);
                [limited, limit, remaining, retry, cell_seconds(snapshot.reset_after())]
            }
            Self::Crab => {
                let reset = seconds_up(snapshot.reset_after());
                // No wait helps: the longest there is, rather than 0, which would say "now".
                let retry = retry.map_or(0, |retry| retry.map_or(i64::MAX, seconds_up));
                [1 - limited, limit, remaining, reset, retry]
            }
        });
    }

    /// The answer to a look or a refund. A key that earlier numbers emptied further than these
    /// allow is limited even for a quantity of 0.
    pub(super) fn encode_snapshot(
        self,
        snapshot: Snapshot,
        policy: &Policy,
        encoder: &mut Encoder<'_>,
    ) {
        let over = fill_time(policy).and_then(|fill| snapshot.reset_after().checked_sub(fill));
        let decision = match over.filter(|over| !over.is_zero()) {
            Some(over) => Decision::Deny { snapshot, retry: Retry::After(over) },
            None => Decision::Allow(snapshot),
        };
        self.encode(&decision, encoder);
    }

    /// The text of an error, with the prefix that clients of the command expect.
    pub(super) fn error(self, text: &str) -> String {
        match self {
            Self::Cell => format!("Cell error: {text}"),
            Self::Crab | Self::Gcra => format!("ERR {text}"),
        }
    }
}

type Arguments<'a> = (&'a [u8], Numbers, i64);

fn cell_arguments<'a>(args: &[&'a [u8]]) -> Result<Arguments<'a>, String> {
    let cell = |text: String| ThrottleCommand::Cell.error(&text);
    let (&[_, key, max_burst, count, period], quantity) = split(args) else {
        let usage = "<key> <max_burst> <count per period> <period> [<quantity>]";
        return Err(cell(format!("Usage: CL.THROTTLE {usage}")));
    };
    let number = |text: &[u8]| {
        let error = || cell(format!("Couldn't parse as integer: {}", text.escape_ascii()));
        lenient_integer(text).ok_or_else(error)
    };
    let (max_burst, count, period) = (number(max_burst)?, number(count)?, number(period)?);
    let quantity = quantity.map_or(Ok(1), number)?;
    if count == 0 || period == 0 {
        return Err(cell("Zero rates are not supported".to_owned()));
    }
    let numbers = Numbers::per_seconds(max_burst.saturating_add(1), count, period);
    Ok((key, numbers.ok_or_else(|| cell(OUT_OF_RANGE.to_owned()))?, quantity))
}

fn crab_arguments<'a>(args: &[&'a [u8]]) -> Result<Arguments<'a>, String> {
    let (&[_, key, max_burst, count, period], quantity) = split(args) else {
        return Err("ERR wrong number of arguments for 'throttle' command".to_owned());
    };
    let number = |text: &[u8], name: &str| {
        lenient_integer(text).ok_or_else(|| format!("ERR invalid {name}"))
    };
    let max_burst = number(max_burst, "max_burst")?;
    let count = number(count, "count_per_period")?;
    let period = number(period, "period")?;
    let quantity = quantity.map_or(Ok(1), |text| number(text, "quantity"))?;
    if quantity < 0 {
        return Err("ERR quantity cannot be negative".to_owned());
    }
    let numbers = Numbers::per_seconds(max_burst, count, period);
    Ok((key, numbers.ok_or_else(|| format!("ERR {OUT_OF_RANGE}"))?, quantity))
}

fn gcra_arguments<'a>(args: &[&'a [u8]]) -> Result<Arguments<'a>, String> {
    let wrong = || "ERR wrong number of arguments for 'gcra' command".to_owned();
    let (&[_, key, max_burst, count, period], tokens) =
        args.split_first_chunk::<5>().ok_or_else(wrong)?;
    let not_integer = || "ERR value is not an integer or out of range".to_owned();
    let quantity = match tokens {
        [] => 1,
        [word, tokens] if word.eq_ignore_ascii_case(b"TOKENS") => {
            integer(tokens).filter(|&tokens| tokens > 0).ok_or_else(not_integer)?
        }
        _ => return Err("ERR syntax error".to_owned()),
    };
    let max_burst = integer(max_burst).ok_or_else(not_integer)?;
    let count = integer(count).ok_or_else(not_integer)?;
    let period_ns = decimal_seconds_ns(period)?;
    let numbers = Numbers::new(max_burst.saturating_add(1), count, period_ns);
    Ok((key, numbers.ok_or_else(|| format!("ERR {OUT_OF_RANGE}"))?, quantity))
}

const OUT_OF_RANGE: &str = "max_burst, count and period must be positive and within range";

/// The five arguments that must be there, and the quantity that may be.
fn split<'a, 'b>(args: &'b [&'a [u8]]) -> (&'b [&'a [u8]], Option<&'a [u8]>) {
    match args {
        [must @ .., quantity] if must.len() == 5 => (must, Some(quantity)),
        must => (must, None),
    }
}

/// An integer as Rust reads it, which is how redis-cell and throttlecrab do: `+5` and `05` pass.
fn lenient_integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Seconds with decimals as nanoseconds, rounded up: a longer period is the stricter one.
fn decimal_seconds_ns(text: &[u8]) -> Result<u64, String> {
    let seconds = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    match seconds {
        Some(seconds) if seconds <= 0.0 => Err("ERR period must be > 0".to_owned()),
        Some(seconds) if seconds < 1e10 => Ok((seconds * 1e9).ceil() as u64),
        _ => Err("ERR value is not a valid float".to_owned()),
    }
}

/// How long an empty bucket takes to fill, where keys may be emptier than that.
fn fill_time(policy: &Policy) -> Option<Duration> {
    let Algorithm::Gcra(gcra) = policy.algorithm() else { return None };
    let quota = gcra.quota();
    let fill_ns = quota.period().as_nanos() * u128::from(quota.burst());
    let is_whole = gcra.is_per_call() && quota.units() == 1;
    is_whole.then(|| Duration::from_nanos(u64::try_from(fill_ns).unwrap_or(u64::MAX)))
}

fn clamp(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Whole seconds as redis-cell rounds them: up, if any whole millisecond is left over.
fn cell_seconds(duration: Duration) -> i64 {
    clamp(duration.as_secs()) + i64::from(duration.subsec_millis() > 0)
}

fn seconds_up(duration: Duration) -> i64 {
    clamp(tollway_core::fields::seconds_up(duration))
}
