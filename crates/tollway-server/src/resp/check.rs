//! `TOLL.CHECK` and `TOLL.PEEK`: one or more charges, all or nothing.
//!
//! ```text
//!   TOLL.CHECK policy key [COST n] [COUNT] [policy key [COST n] [COUNT] ...] [NANOS]
//! ```
//!
//! `[allowed, denied_by or nil, degraded, [[policy, allowed, limit, remaining, retry_after_ms,
//! reset_after_ms] ...]]`, where `retry_after_ms` is -1 if allowed and -2 if no wait helps.
//! Milliseconds are rounded up.
//!
//! The same array in RESP2 and RESP3, with 1 and 0 for truth. Rejected: a map in RESP3. Some clients
//! make an array of names and values of it, whose first element is the word `allowed`: after an
//! upgrade of the client, `if (reply[0])` would be true for every denial.
//!
//! `COUNT` takes the units whether or not the policy would allow it. `NANOS` tells times in
//! nanoseconds (`retry_after_ns`, `reset_after_ns`) and adds `next_after_ns`, so that another
//! Tollway can pass on exactly what was decided. It stands alone at the end, where no policy can:
//! a policy is followed by a key.

use tollway_core::{Cost, Decision, Mode, Retry, Snapshot, StoreError, Verdict};

use super::encode::Encoder;
use super::parse::unsigned;
use crate::auth::Role;
use crate::decide::Decider;
use crate::rules::{Ask, AskError, Rules};
use crate::wait::Unit;

/// Which of the commands was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `TOLL.CHECK`.
    Check,
    /// `TOLL.PEEK`.
    Peek,
}

/// What a command asks, and how it wants times told.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    /// The charges.
    pub asks: Vec<Ask<'a>>,
    /// The unit of times in the answer.
    pub unit: Unit,
}

impl Kind {
    /// The command of this name.
    pub(super) fn named(name: &[u8]) -> Option<Self> {
        match name.len() {
            10 if name.eq_ignore_ascii_case(b"TOLL.CHECK") => Some(Self::Check),
            9 if name.eq_ignore_ascii_case(b"TOLL.PEEK") => Some(Self::Peek),
            _ => None,
        }
    }

    /// The role it needs.
    pub(super) const fn role(self) -> Role {
        match self {
            Self::Check => Role::Check,
            Self::Peek => Role::Read,
        }
    }

    /// Asks and writes the answer.
    pub(super) async fn apply(
        self,
        asked: &Asked<'_>,
        decider: &Decider<'_>,
        encoder: &mut Encoder<'_>,
    ) {
        let answer = match self {
            Self::Check => decider.check(&asked.asks).await,
            Self::Peek => decider.peek(&asked.asks).await,
        };
        match answer {
            Ok(verdict) => encode(&verdict, &asked.asks, asked.unit, encoder),
            Err(error) => encoder.error(&failure(&error)),
        }
    }
}

/// Reads `policy key [COST n] [COUNT] ... [NANOS]`; the text of the error otherwise.
pub(super) fn asks<'a>(
    args: &[&'a [u8]],
    rules: &'a Rules,
    charges_max: usize,
) -> Result<Asked<'a>, String> {
    let mut asks = Vec::with_capacity(1);
    let mut rest = args;
    while let [policy, key, after @ ..] = rest {
        if asks.len() == charges_max {
            return Err(format!("ERR more than {charges_max} charges in one request"));
        }
        let (cost, after) = cost(after)?;
        let (mode, after) = mode(after);
        let mut ask = rules.ask_named(policy, key, cost).map_err(|error| refusal(&error))?;
        ask.charge.mode = mode;
        asks.push(ask);
        rest = after;
    }
    let unit = match rest {
        [] => Unit::Millis,
        [word] if word.eq_ignore_ascii_case(b"NANOS") => Unit::Nanos,
        _ => return Err(USAGE.to_owned()),
    };
    if asks.is_empty() { Err(USAGE.to_owned()) } else { Ok(Asked { asks, unit }) }
}

const USAGE: &str = "ERR wrong number of arguments; policy key [COST n] [COUNT] expected";

fn cost<'a, 'b>(args: &'b [&'a [u8]]) -> Result<(Cost, &'b [&'a [u8]]), String> {
    let [word, number, after @ ..] = args else { return Ok((Cost::ONE, args)) };
    if !word.eq_ignore_ascii_case(b"COST") {
        return Ok((Cost::ONE, args));
    }
    match unsigned(number).and_then(Cost::new) {
        Some(cost) => Ok((cost, after)),
        None => Err("ERR COST must be a whole number from 1".to_owned()),
    }
}

fn mode<'a, 'b>(args: &'b [&'a [u8]]) -> (Mode, &'b [&'a [u8]]) {
    match args {
        [word, after @ ..] if word.eq_ignore_ascii_case(b"COUNT") => (Mode::Count, after),
        _ => (Mode::Enforce, args),
    }
}

/// Why a name and a key cannot be asked. An unknown policy has a code of its own: a client of
/// ours tells a mistake in configuration from a failure by it.
fn refusal(error: &AskError) -> String {
    match error {
        AskError::UnknownPolicy => format!("NOPOLICY {error}"),
        AskError::Key(_) => format!("ERR {error}"),
    }
}

/// Why the store did not answer. What may pass has a code of its own.
pub(super) fn failure(error: &StoreError) -> String {
    let code = if error.is_transient() { "UNAVAILABLE" } else { "ERR" };
    format!("{code} {error}")
}

/// Writes a verdict on `asks`.
pub(super) fn encode(verdict: &Verdict, asks: &[Ask<'_>], unit: Unit, encoder: &mut Encoder<'_>) {
    encoder.array(4);
    encode_summary(verdict, asks, unit, encoder);
}

/// Writes what a verdict says, without the frame around it: four fields.
pub(super) fn encode_summary(
    verdict: &Verdict,
    asks: &[Ask<'_>],
    unit: Unit,
    encoder: &mut Encoder<'_>,
) {
    encoder.integer(i64::from(verdict.is_allowed()));
    match verdict.denied_by().and_then(|index| asks.get(index)) {
        Some(ask) => encoder.bulk(ask.charge.policy.name().as_bytes()),
        None => encoder.null(),
    }
    encoder.integer(i64::from(verdict.is_degraded()));
    encoder.array(asks.len());
    for (ask, decision) in asks.iter().zip(verdict.decisions()) {
        encode_charge(ask, decision, unit, encoder);
    }
}

/// Writes one charge and what was decided on it.
pub(super) fn encode_charge(
    ask: &Ask<'_>,
    decision: &Decision,
    unit: Unit,
    encoder: &mut Encoder<'_>,
) {
    let snapshot = decision.snapshot();
    encoder.array(6 + usize::from(unit == Unit::Nanos));
    encoder.bulk(ask.charge.policy.name().as_bytes());
    encoder.integer(i64::from(decision.is_allowed()));
    encoder.unsigned(snapshot.limit());
    encoder.unsigned(snapshot.remaining());
    match decision.retry() {
        None => encoder.integer(-1),
        Some(Retry::Never) => encoder.integer(-2),
        Some(Retry::After(wait)) => encoder.unsigned(unit.of(wait)),
    }
    encode_times(snapshot, unit, encoder);
}

/// Writes when a key is as good as new and, to the nanosecond, when it has more.
pub(super) fn encode_times(snapshot: Snapshot, unit: Unit, encoder: &mut Encoder<'_>) {
    encoder.unsigned(unit.of(snapshot.reset_after()));
    if unit == Unit::Nanos {
        encoder.unsigned(unit.of(snapshot.next_after()));
    }
}
