//! `TOLL.CHECK` and the other operations of [`crate::operation`] in RESP.
//!
//! ```text
//!   TOLL.CHECK   policy key [COST n] [COUNT] [policy key ...] [NANOS]
//!   TOLL.PEEK    as TOLL.CHECK                    -> the same, and nothing is taken
//!   TOLL.TAKE    policy key [COST n] [NANOS]      -> [granted, a charge as TOLL.CHECK's]
//!   TOLL.REFUND  policy key [COST n] [NANOS]      -> [limit, remaining, reset_after_ms]
//!   TOLL.RESET   policy key                       -> OK
//!   TOLL.RESERVE as TOLL.CHECK                    -> TOLL.CHECK's four fields,
//!                                                    reservation or nil, expires_after_ms
//!   TOLL.COMMIT  reservation [cost ...]           -> 1 settled, 0 unknown (settled, or expired)
//!   TOLL.CANCEL  reservation                      -> 1 settled, 0 unknown
//! ```
//!
//! `TOLL.CHECK` answers `[allowed, denied_by or nil, degraded, [[policy, allowed, limit, remaining,
//! retry_after_ms, reset_after_ms] ...]]`, where `retry_after_ms` is -1 if allowed and -2 if no
//! wait helps. Milliseconds are rounded up.
//!
//! The same array in RESP2 and RESP3, with 1 and 0 for truth. Rejected: a map in RESP3. Some
//! clients make an array of names and values of it, whose first element is the word `allowed`:
//! after an upgrade of the client, `if (reply[0])` would be true for every denial.
//!
//! `COUNT` takes the units whether or not the policy would allow it. `NANOS` tells times in
//! nanoseconds (`retry_after_ns`, `reset_after_ns`) and adds `next_after_ns`, so that another
//! Tollway can pass on exactly what was decided. It stands alone at the end, where no policy can: a
//! policy is followed by a key. A take grants as many of `n` units as there are, none if there are
//! none; the charge beside it is the decision on what was granted, or on one unit if nothing was.

use tollway_core::{ChargeError, Cost, Decision, Mode, Retry, Snapshot, StoreError, Verdict};

use super::encode::Encoder;
use super::parse::unsigned;
use crate::operation::{Operation, Outcome, Verb, reservation_name};
use crate::rules::{Ask, Rules};
use crate::settings::Limits;
use crate::wait::Unit;

/// The verb of the command of this name.
#[inline]
pub(super) fn verb_named(name: &[u8]) -> Option<Verb> {
    let (prefix, verb) = name.split_at_checked(5)?;
    if prefix.eq_ignore_ascii_case(b"TOLL.") { Verb::named(verb) } else { None }
}

/// What the arguments after the name ask, and the unit in which the answer tells times; the text of
/// the error otherwise.
pub(super) fn parse<'a>(
    verb: Verb,
    args: &[&'a [u8]],
    rules: &'a Rules,
    limits: &Limits,
) -> Result<(Operation<'a>, Unit), String> {
    if let Some(charges_max) = verb.charges_max(limits) {
        let (asks, unit) = asks(args, rules, charges_max)?;
        return Ok((Operation::on_charges(verb, asks), unit));
    }
    let [name, costs @ ..] = args else {
        return Err("ERR wrong number of arguments; reservation expected".to_owned());
    };
    let costs: Option<Vec<u64>> = costs.iter().map(|text| unsigned(text)).collect();
    let costs = costs.ok_or("ERR costs must be whole numbers from 0")?;
    let name = std::str::from_utf8(name).unwrap_or_default();
    let operation = Operation::settle(verb, name, costs).map_err(|text| format!("ERR {text}"))?;
    Ok((operation, Unit::default()))
}

/// Reads `policy key [COST n] [COUNT] ... [NANOS]`.
fn asks<'a>(
    args: &[&'a [u8]],
    rules: &'a Rules,
    charges_max: usize,
) -> Result<(Vec<Ask<'a>>, Unit), String> {
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
    if asks.is_empty() { Err(USAGE.to_owned()) } else { Ok((asks, unit)) }
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
fn refusal(error: &ChargeError) -> String {
    match error {
        ChargeError::UnknownPolicy => format!("NOPOLICY {error}"),
        _ => format!("ERR {error}"),
    }
}

/// Why the store did not answer. What may pass has a code of its own.
pub(super) fn failure(error: &StoreError) -> String {
    let code = if error.is_transient() { "UNAVAILABLE" } else { "ERR" };
    format!("{code} {error}")
}

/// Writes what an operation on `asks` came to.
pub(super) fn encode(outcome: &Outcome, asks: &[Ask<'_>], unit: Unit, encoder: &mut Encoder<'_>) {
    match outcome {
        Outcome::Verdict(verdict) => encode_verdict(verdict, asks, unit, encoder),
        Outcome::Granted(grant) => {
            encoder.array(2);
            encoder.unsigned(grant.granted);
            encode_charge(&asks[0], &grant.decision, unit, encoder);
        }
        Outcome::Left(snapshot) => {
            encoder.array(3 + usize::from(unit == Unit::Nanos));
            encoder.unsigned(snapshot.limit());
            encoder.unsigned(snapshot.remaining());
            encode_times(*snapshot, unit, encoder);
        }
        Outcome::Reset => encoder.simple("OK"),
        Outcome::Reserved(reserved) => {
            encoder.array(6);
            encode_summary(&reserved.verdict, asks, unit, encoder);
            match reserved.reservation {
                Some(reservation) => {
                    encoder.bulk(reservation_name(reservation.id).as_bytes());
                    encoder.unsigned(unit.of(reservation.expires_after));
                }
                None => {
                    encoder.null();
                    encoder.null();
                }
            }
        }
        Outcome::Settled(is_known) => encoder.integer(i64::from(*is_known)),
    }
}

/// Writes a verdict on `asks`.
pub(super) fn encode_verdict(
    verdict: &Verdict,
    asks: &[Ask<'_>],
    unit: Unit,
    encoder: &mut Encoder<'_>,
) {
    encoder.array(4);
    encode_summary(verdict, asks, unit, encoder);
}

/// Writes the four fields of a verdict, without the array around them.
fn encode_summary(verdict: &Verdict, asks: &[Ask<'_>], unit: Unit, encoder: &mut Encoder<'_>) {
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
fn encode_charge(ask: &Ask<'_>, decision: &Decision, unit: Unit, encoder: &mut Encoder<'_>) {
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
fn encode_times(snapshot: Snapshot, unit: Unit, encoder: &mut Encoder<'_>) {
    encoder.unsigned(unit.of(snapshot.reset_after()));
    if unit == Unit::Nanos {
        encoder.unsigned(unit.of(snapshot.next_after()));
    }
}
