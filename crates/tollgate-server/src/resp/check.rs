//! `TOLL.CHECK` and `TOLL.PEEK`: one or more charges, all or nothing.
//!
//! ```text
//!   TOLL.CHECK policy key [COST n] [policy key [COST n] ...]
//! ```
//!
//! RESP2: `[allowed, denied_by or nil, degraded, [[policy, allowed, limit, remaining,
//! retry_after_ms, reset_after_ms] ...]]`, where `retry_after_ms` is -1 if allowed and -2 if no
//! wait helps. RESP3: a map with the same names, and `charges` as maps. Milliseconds are rounded
//! up.

use tollgate_core::{Cost, Decision, Retry, Verdict};

use super::encode::{Encoder, Version};
use super::parse::unsigned;
use crate::auth::Role;
use crate::rules::{Ask, Rules};
use crate::wait::millis_up;
use crate::worker::Worker;

/// Which of the commands was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `TOLL.CHECK`.
    Check,
    /// `TOLL.PEEK`.
    Peek,
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
    pub(super) async fn apply(self, asks: &[Ask<'_>], worker: &Worker, encoder: &mut Encoder<'_>) {
        let answer = match self {
            Self::Check => worker.check(asks).await,
            Self::Peek => worker.peek(asks).await,
        };
        match answer {
            Ok(verdict) => encode(&verdict, asks, encoder),
            Err(error) => encoder.error(&format!("ERR {error}")),
        }
    }
}

/// Reads `policy key [COST n] ...`; the text of the error otherwise.
pub(super) fn asks<'a>(
    args: &[&'a [u8]],
    rules: &'a Rules,
    charges_max: usize,
) -> Result<Vec<Ask<'a>>, String> {
    let mut asks = Vec::with_capacity(1);
    let mut rest = args;
    while let [policy, key, after @ ..] = rest {
        if asks.len() == charges_max {
            return Err(format!("ERR more than {charges_max} charges in one request"));
        }
        let (cost, after) = cost(after)?;
        let ask = rules.ask(policy, key, cost).map_err(|error| format!("ERR {error}"))?;
        asks.push(ask);
        rest = after;
    }
    if asks.is_empty() || !rest.is_empty() {
        return Err("ERR wrong number of arguments; policy key [COST n] expected".to_owned());
    }
    Ok(asks)
}

fn cost<'a, 'b>(args: &'b [&'a [u8]]) -> Result<(Cost, &'b [&'a [u8]]), String> {
    // A policy may be named COST: it is only taken for the word if a number follows.
    let [word, number, after @ ..] = args else { return Ok((Cost::ONE, args)) };
    if !word.eq_ignore_ascii_case(b"COST") {
        return Ok((Cost::ONE, args));
    }
    match unsigned(number).and_then(Cost::new) {
        Some(cost) => Ok((cost, after)),
        None => Err("ERR COST must be a whole number from 1".to_owned()),
    }
}

/// Writes a verdict on `asks`.
pub(super) fn encode(verdict: &Verdict, asks: &[Ask<'_>], encoder: &mut Encoder<'_>) {
    let is_map = encoder.version() == Version::Three;
    if is_map {
        encoder.map(4);
    } else {
        encoder.array(4);
    }
    encode_summary(verdict, asks, encoder);
}

/// Writes what a verdict says, without the frame around it: four fields.
pub(super) fn encode_summary(verdict: &Verdict, asks: &[Ask<'_>], encoder: &mut Encoder<'_>) {
    name(encoder, "allowed");
    encoder.boolean(verdict.is_allowed());
    name(encoder, "denied_by");
    match verdict.denied_by().and_then(|index| asks.get(index)) {
        Some(ask) => encoder.bulk(ask.charge.policy.name().as_bytes()),
        None => encoder.null(),
    }
    name(encoder, "degraded");
    encoder.boolean(verdict.is_degraded());
    name(encoder, "charges");
    encoder.array(asks.len());
    for (ask, decision) in asks.iter().zip(verdict.decisions()) {
        encode_charge(ask, decision, encoder);
    }
}

fn encode_charge(ask: &Ask<'_>, decision: &Decision, encoder: &mut Encoder<'_>) {
    let snapshot = decision.snapshot();
    if encoder.version() == Version::Three {
        encoder.map(6);
    } else {
        encoder.array(6);
    }
    name(encoder, "policy");
    encoder.bulk(ask.charge.policy.name().as_bytes());
    name(encoder, "allowed");
    encoder.boolean(decision.is_allowed());
    name(encoder, "limit");
    encoder.unsigned(snapshot.limit());
    name(encoder, "remaining");
    encoder.unsigned(snapshot.remaining());
    name(encoder, "retry_after_ms");
    match decision.retry() {
        None => encoder.integer(-1),
        Some(Retry::Never) => encoder.integer(-2),
        Some(Retry::After(wait)) => encoder.unsigned(millis_up(wait)),
    }
    name(encoder, "reset_after_ms");
    encoder.unsigned(millis_up(snapshot.reset_after()));
}

/// A field's name, which only a map has.
pub(super) fn name(encoder: &mut Encoder<'_>, name: &str) {
    if encoder.version() == Version::Three {
        encoder.bulk(name.as_bytes());
    }
}
