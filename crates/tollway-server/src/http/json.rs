//! Bodies of the JSON endpoints: read by serde, written by hand.

use std::borrow::Cow;

use serde::Deserialize;
use tollway_core::{Cost, Decision, Mode, Retry, Verdict};

use super::problem::Trouble;
use crate::rules::{Ask, AskError, Rules};
use crate::wait::millis_up;

/// One charge: `{"policy":"api","key":"ada","cost":2}`; with `"count":true` taken whether or not
/// the policy would allow it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChargeBody<'a> {
    /// The policy's name.
    #[serde(borrow)]
    pub policy: Cow<'a, str>,
    /// The key.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// The cost, 1 unless given.
    pub cost: Option<u64>,
    /// Whether it is taken in any case.
    #[serde(default)]
    pub count: bool,
}

/// One request: a charge of its own, or `{"charges":[…]}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckBody<'a> {
    #[serde(borrow)]
    policy: Option<Cow<'a, str>>,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    cost: Option<u64>,
    #[serde(default)]
    count: bool,
    #[serde(borrow)]
    charges: Option<Vec<ChargeBody<'a>>>,
}

/// Several independent requests: `{"requests":[…]}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchBody<'a> {
    /// The requests.
    #[serde(borrow)]
    pub requests: Vec<CheckBody<'a>>,
}

/// A settlement: `{"reservation":"…","costs":[3]}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettleBody<'a> {
    /// The reservation's name.
    #[serde(borrow)]
    pub reservation: Cow<'a, str>,
    /// Real costs, one per charge in order; as reserved where left out.
    #[serde(default)]
    pub costs: Vec<u64>,
}

/// Reads a body.
pub(crate) fn read<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Trouble> {
    serde_json::from_slice(body).map_err(|error| Trouble::Bad(format!("the body: {error}")))
}

impl CheckBody<'_> {
    /// What the body asks.
    pub(super) fn asks<'a>(
        &'a self,
        rules: &'a Rules,
        most: usize,
    ) -> Result<Vec<Ask<'a>>, Trouble> {
        match (&self.charges, &self.policy, &self.key) {
            (None, Some(policy), Some(key)) => {
                Ok(vec![ask(rules, policy, key, (self.cost, self.count))?])
            }
            (Some(charges), None, None) if self.cost.is_none() && !self.count => {
                if charges.is_empty() || charges.len() > most {
                    return Err(Trouble::Bad(format!("charges must be 1 to {most}")));
                }
                let ask = |charge: &'a ChargeBody<'_>| {
                    ask(rules, &charge.policy, &charge.key, (charge.cost, charge.count))
                };
                charges.iter().map(ask).collect()
            }
            _ => Err(Trouble::Bad("give either policy and key, or charges".to_owned())),
        }
    }
}

fn ask<'a>(
    rules: &'a Rules,
    policy: &str,
    key: &'a str,
    (cost, count): (Option<u64>, bool),
) -> Result<Ask<'a>, Trouble> {
    let cost = Cost::new(cost.unwrap_or(1));
    let cost = cost.ok_or_else(|| Trouble::Bad("cost must be a whole number from 1".to_owned()))?;
    let mut ask =
        rules.ask_named(policy.as_bytes(), key.as_bytes(), cost).map_err(|error| match error {
            AskError::UnknownPolicy => Trouble::UnknownPolicy(policy.to_owned()),
            AskError::Key(error) => Trouble::Bad(error.to_string()),
        })?;
    if count {
        ask.charge.mode = Mode::Count;
    }
    Ok(ask)
}

/// Writes a verdict: `{"allowed":…,"denied_by":…,"charges":[…]}`, the closing brace left out.
pub(super) fn push_verdict(out: &mut Vec<u8>, verdict: &Verdict, asks: &[Ask<'_>]) {
    out.extend_from_slice(b"{\"allowed\":");
    push_bool(out, verdict.is_allowed());
    out.extend_from_slice(b",\"denied_by\":");
    match verdict.denied_by().and_then(|index| asks.get(index)) {
        Some(ask) => push_name(out, ask.charge.policy.name()),
        None => out.extend_from_slice(b"null"),
    }
    if verdict.is_degraded() {
        out.extend_from_slice(b",\"degraded\":true");
    }
    out.extend_from_slice(b",\"charges\":[");
    for (index, (ask, decision)) in asks.iter().zip(verdict.decisions()).enumerate() {
        if index > 0 {
            out.push(b',');
        }
        push_charge(out, ask, decision);
    }
    out.push(b']');
}

fn push_charge(out: &mut Vec<u8>, ask: &Ask<'_>, decision: &Decision) {
    let snapshot = decision.snapshot();
    out.extend_from_slice(b"{\"policy\":");
    push_name(out, ask.charge.policy.name());
    out.extend_from_slice(b",\"allowed\":");
    push_bool(out, decision.is_allowed());
    push_number(out, ",\"limit\":", snapshot.limit());
    push_number(out, ",\"remaining\":", snapshot.remaining());
    match decision.retry() {
        None => {}
        Some(Retry::Never) => {
            out.extend_from_slice(b",\"retry_after_ms\":null,\"retry\":\"never\"")
        }
        Some(Retry::After(wait)) => push_number(out, ",\"retry_after_ms\":", millis_up(wait)),
    }
    push_number(out, ",\"reset_after_ms\":", millis_up(snapshot.reset_after()));
    out.push(b'}');
}

fn push_bool(out: &mut Vec<u8>, truth: bool) {
    out.extend_from_slice(if truth { b"true" } else { b"false" });
}

/// Writes `before` and then the number.
pub(super) fn push_number(out: &mut Vec<u8>, before: &str, number: u64) {
    out.extend_from_slice(before.as_bytes());
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// A policy's name: it has neither quotes nor backslashes nor control characters, by construction.
fn push_name(out: &mut Vec<u8>, name: &str) {
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.push(b'"');
}
