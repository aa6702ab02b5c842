//! `POST /dashboard/key`: how one key stands under each policy.

use serde::Deserialize;
use serde_json::{Value, json};
use tollway_core::{Cost, Key, Retry};

use super::reply;
use crate::decide::Decider;
use crate::http::{Call, Trouble};
use crate::rules::{Rule, Source, Treatment};
use crate::wait::millis_up;

const PAGE: usize = 25;
const PAGE_MAX: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    /// The key's bytes as hexadecimal digits: a key is not always text.
    key_hex: String,
    #[serde(default)]
    q: String,
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
}

/// One page of policies with how the key stands under each. Looks, takes nothing.
pub(crate) async fn look_up(call: Call<'_>) -> Result<(), Trouble> {
    let body: Body = call.body()?;
    let limit = body.limit.unwrap_or(PAGE).min(PAGE_MAX);
    let bytes = bytes_of(&body.key_hex)?;
    let key = Key::new(&bytes).map_err(|error| Trouble::bad(format!("key_hex: {error}")))?;
    let rules = call.service().enforcer.rules();
    let wanted = body.q.to_ascii_lowercase();
    let matching = |rule: &&Rule| rule.policy().name().to_ascii_lowercase().contains(&wanted);
    let matched = rules.rules().iter().filter(matching).count();
    let decider = call.worker.decider(&rules);
    let mut standings = Vec::new();
    for rule in rules.rules().iter().filter(matching).skip(body.offset).take(limit) {
        standings.push(standing(&decider, rule, key).await?);
    }
    let json = json!({
        "banned": rules.operator_changes().is_banned(&bytes),
        "matched": matched,
        "offset": body.offset,
        "standings": standings,
    });
    reply(call, &json)
}

async fn standing(decider: &Decider<'_>, rule: &Rule, key: Key<'_>) -> Result<Value, Trouble> {
    let rules = decider.rules;
    let ask = rules.ask(Source::rule(rule), key, Cost::ONE);
    let change = rules.operator_changes().of(key.as_bytes());
    let own = change.and_then(|change| change.policy(rule.policy().name()));
    // A charge that a peek would deny says when it would be allowed; of several, only the first.
    let asks: Vec<_> = ask.with_spacing().collect();
    let verdict = decider.peek(&asks).await?;
    let decisive = verdict.denied_by().unwrap_or(0);
    let Some(decision) = verdict.decisions().get(decisive) else { return Ok(Value::Null) };
    let snapshot = decision.snapshot();
    let retry_after_ms = match decision.retry() {
        Some(Retry::After(wait)) => json!(millis_up(wait)),
        _ => Value::Null,
    };
    Ok(json!({
        "policy": rule.policy().name(),
        "quota": ask.charge.policy.algorithm().to_string(),
        "own_quota": own.is_some(),
        "treatment": match ask.treatment {
            Treatment::Enforce => "enforced",
            Treatment::Shadow => "shadow",
            Treatment::Exempt => "unlimited",
            Treatment::Ban => "banned",
        },
        "allowed": decision.is_allowed(),
        "limit": snapshot.limit(),
        "remaining": snapshot.remaining(),
        "retry_after_ms": retry_after_ms,
        "reset_after_ms": millis_up(snapshot.reset_after()),
        "degraded": verdict.is_degraded(),
    }))
}

/// The bytes that hexadecimal digits spell.
pub(super) fn bytes_of(digits: &str) -> Result<Vec<u8>, Trouble> {
    let wrong = || Trouble::bad("key_hex must be pairs of hexadecimal digits");
    let pairs = digits.as_bytes().chunks(2);
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    pairs.map(byte).collect::<Option<_>>().ok_or_else(wrong)
}
