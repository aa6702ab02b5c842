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
//! wait helps. Milliseconds are rounded up. A charge of a policy with owners has one field more at
//! its end: the owner that denied, or nil.
//!
//! The same array in RESP2 and RESP3, with 1 and 0 for truth. Rejected: a map in RESP3. Some
//! clients make an array of names and values of it, whose first element is the word `allowed`:
//! after an upgrade of the client, `if (reply[0])` would be true for every denial.
//!
//! In place of a policy's name there may be a limit, `{"algorithm":"leaky-bucket","size":10, …}`:
//! the fields of a policy in a configuration, as an object of JSON. No name has a quotation mark,
//! and no such object is without one.
//!
//! `COUNT` takes the units whether or not the policy would allow it. `NANOS` tells times in
//! nanoseconds (`retry_after_ns`, `reset_after_ns`) and adds `next_after_ns`, so that another
//! Tollway can pass on exactly what was decided. It stands alone at the end, where no policy can: a
//! policy is followed by a key. A take grants as many of `n` units as there are, none if there are
//! none; the charge beside it is the decision on what was granted, or on one unit if nothing was.

use tollway_core::{Cost, Decision, Mode, Retry, Snapshot, StoreError, Verdict};

use super::encode::Encoder;
use super::parse::unsigned;
use crate::operation::{ChargeAsked, LimitAsked, Operation, Outcome, Verb, reservation_name};
use crate::rules::{Ask, Rules, Unaskable};
use crate::wait::Unit;
use crate::worker::Worker;

/// The verb of the command of this name.
#[inline]
pub(super) fn verb_named(name: &[u8]) -> Option<Verb> {
    let (prefix, verb) = name.split_at_checked(5)?;
    if prefix.eq_ignore_ascii_case(b"TOLL.") { Verb::named(verb) } else { None }
}

/// What the arguments of a command say.
#[derive(Debug)]
pub(super) struct Arguments<'a> {
    what: About<'a>,
    /// The unit in which the answer tells times.
    pub unit: Unit,
}

#[derive(Debug)]
enum About<'a> {
    Charges(Vec<ChargeAsked<'a>>),
    Reservation(&'a str, Vec<u64>),
}

impl<'a> Arguments<'a> {
    /// Reads the arguments after the name; the text of the error if they are wrong.
    pub(super) fn parse(verb: Verb, args: &[&'a [u8]], worker: &Worker) -> Result<Self, String> {
        let limits = &worker.service.settings().limits;
        if let Some(charges_max) = verb.charges_max(limits) {
            let (charges, unit) = charges(args, worker, charges_max)?;
            return Ok(Self { what: About::Charges(charges), unit });
        }
        let [name, costs @ ..] = args else {
            return Err("ERR wrong number of arguments; reservation expected".to_owned());
        };
        let costs: Option<Vec<u64>> = costs.iter().map(|text| unsigned(text)).collect();
        let costs = costs.ok_or("ERR costs must be whole numbers from 0")?;
        let name = std::str::from_utf8(name).unwrap_or_default();
        Ok(Self { what: About::Reservation(name, costs), unit: Unit::default() })
    }

    /// What is to be done under these rules; the text of the error if it cannot be.
    pub(super) fn operation<'b>(
        &'b self,
        verb: Verb,
        rules: &'b Rules,
        worker: &'b Worker,
    ) -> Result<Operation<'b>, String> {
        let operation = match &self.what {
            About::Charges(charges) => {
                let tally = worker.service.enforcer.adhoc_tally();
                let ask = |charge: &'b ChargeAsked<'a>| {
                    charge.ask(rules, tally).map_err(|error| refusal(&error))
                };
                let asks: Result<Vec<Ask<'b>>, String> = charges.iter().map(ask).collect();
                Operation::on_charges(verb, asks?)
            }
            About::Reservation(name, costs) => Operation::settle(verb, name, costs.clone()),
        };
        operation.map_err(|text| format!("ERR {text}"))
    }
}

/// A check of one charge to a policy by its name, as nearly all are; `None` for any other, and for
/// what is wrong.
pub(super) fn single_check<'a>(args: &[&'a [u8]], rules: &'a Rules) -> Option<(Ask<'a>, Unit)> {
    let [policy, key, after @ ..] = args else { return None };
    let (cost, after) = cost(after).ok()?;
    let (mode, after) = mode(after);
    let unit = unit(after)?;
    let mut ask = rules.ask_named(policy, key, cost).ok()?;
    ask.charge.mode = mode;
    ask.spacing.is_none().then_some((ask, unit))
}

/// Reads `policy key [COST n] [COUNT] ... [NANOS]`.
fn charges<'a>(
    args: &[&'a [u8]],
    worker: &Worker,
    charges_max: usize,
) -> Result<(Vec<ChargeAsked<'a>>, Unit), String> {
    let mut charges = Vec::with_capacity(1);
    let mut rest = args;
    while let [policy, key, after @ ..] = rest {
        if charges.len() == charges_max {
            return Err(format!("ERR more than {charges_max} charges in one request"));
        }
        let (cost, after) = cost(after)?;
        let (mode, after) = mode(after);
        charges.push(ChargeAsked { limit: limit(policy, worker)?, key, cost, mode });
        rest = after;
    }
    let unit = unit(rest).ok_or(USAGE)?;
    if charges.is_empty() { Err(USAGE.to_owned()) } else { Ok((charges, unit)) }
}

/// A policy's name, or a limit that comes with the call.
fn limit<'a>(text: &'a [u8], worker: &Worker) -> Result<LimitAsked<'a>, String> {
    if !text.starts_with(b"{") || !text.contains(&b'"') {
        return Ok(LimitAsked::Named(text));
    }
    let tally = worker.service.enforcer.adhoc_tally();
    let limit = worker.adhoc.borrow_mut().limit(text, tally);
    limit.map(LimitAsked::Given).map_err(|wrong| format!("ERR {}", one_line(&wrong)))
}

/// A text in which nothing ends the line of an error.
fn one_line(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}

fn unit(rest: &[&[u8]]) -> Option<Unit> {
    match rest {
        [] => Some(Unit::Millis),
        [word] if word.eq_ignore_ascii_case(b"NANOS") => Some(Unit::Nanos),
        _ => None,
    }
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
fn refusal(error: &Unaskable) -> String {
    match error {
        Unaskable::UnknownPolicy => format!("NOPOLICY {error}"),
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
            encode_charge((&asks[0], None), &grant.decision, unit, encoder);
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
    for (index, (ask, decision)) in asks.iter().zip(verdict.decisions()).enumerate() {
        let owner = verdict.denied_by_owner().filter(|_| verdict.denied_by() == Some(index));
        encode_charge((ask, owner), decision, unit, encoder);
    }
}

/// Writes one charge, the owner that denied it, and what was decided on it.
fn encode_charge(
    (ask, owner): (&Ask<'_>, Option<usize>),
    decision: &Decision,
    unit: Unit,
    encoder: &mut Encoder<'_>,
) {
    let snapshot = decision.snapshot();
    let shares = ask.charge.policy.shares();
    encoder.array(6 + usize::from(unit == Unit::Nanos) + usize::from(shares.is_some()));
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
    if let Some(shares) = shares {
        match owner.and_then(|owner| shares.owners().get(owner)) {
            Some(owner) => encoder.bulk(owner.key.as_bytes()),
            None => encoder.null(),
        }
    }
}

/// Writes when a key is as good as new and, to the nanosecond, when it has more.
fn encode_times(snapshot: Snapshot, unit: Unit, encoder: &mut Encoder<'_>) {
    encoder.unsigned(unit.of(snapshot.reset_after()));
    if unit == Unit::Nanos {
        encoder.unsigned(unit.of(snapshot.next_after()));
    }
}
