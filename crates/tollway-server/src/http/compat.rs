//! Contracts of others: throttlecrab's `POST /throttle`, envoyproxy/ratelimit's `POST /json`.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, json};
use tollway_core::fields::seconds_up;
use tollway_core::{Cost, Decision, Key, Verdict};

use super::json::{push_number, read};
use super::problem::Trouble;
use super::reply::Reply;
use super::request::Request;
use crate::adhoc::Numbers;
use crate::rls::{self, Descriptor, Refusal, Unit};
use crate::worker::Worker;

#[derive(Deserialize)]
struct ThrottleBody<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    max_burst: i64,
    count_per_period: i64,
    period: i64,
    quantity: Option<i64>,
}

/// throttlecrab's `POST /throttle`: 200 even if denied.
pub(super) async fn throttle(
    worker: &Worker,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: ThrottleBody<'_> = read(request.body)?;
    let bad = |text: &str| Trouble::Bad(text.to_owned());
    let numbers = Numbers::per_seconds(body.max_burst, body.count_per_period, body.period)
        .ok_or_else(|| bad("max_burst, count_per_period and period must be positive"))?;
    let quantity = u64::try_from(body.quantity.unwrap_or(1));
    let quantity = quantity.map_err(|_| bad("quantity cannot be negative"))?;
    let policy = worker.adhoc.borrow_mut().policy(numbers);
    let policy = policy.map_err(|error| bad(&error.to_string()))?;
    let key = Key::new(body.key.as_bytes()).map_err(|error| bad(&error.to_string()))?;
    let cost = Cost::new(quantity).unwrap_or(Cost::ONE);
    let rules = worker.service.enforcer.rules();
    let decider = worker.decider(&rules);
    let ask = decider.ask_adhoc(&policy, key, cost);
    let verdict = match quantity {
        0 => {
            let peeked = decider.peek(&[ask]).await?;
            Verdict::one(Decision::Allow(peeked.decisions()[0].snapshot()))
        }
        _ => decider.check(&[ask]).await?,
    };
    push_throttle(&verdict.decisions()[0], &mut reply.body);
    Ok(())
}

fn push_throttle(decision: &Decision, out: &mut Vec<u8>) {
    let snapshot = decision.snapshot();
    let retry = decision.retry().map(|retry| retry.after().map_or(i64::MAX as u64, seconds_up));
    out.extend_from_slice(b"{\"allowed\":");
    out.extend_from_slice(if decision.is_allowed() { b"true" } else { b"false" });
    push_number(out, ",\"limit\":", snapshot.limit());
    push_number(out, ",\"remaining\":", snapshot.remaining());
    push_number(out, ",\"reset_after\":", seconds_up(snapshot.reset_after()));
    push_number(out, ",\"retry_after\":", retry.unwrap_or(0));
    out.push(b'}');
}

/// proto3 JSON writes 64-bit numbers as strings and takes both.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number<'a> {
    Plain(u64),
    Text(#[serde(borrow)] Cow<'a, str>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RlsBody<'a> {
    #[serde(borrow, default)]
    domain: Cow<'a, str>,
    #[serde(borrow, default)]
    descriptors: Vec<DescriptorBody<'a>>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DescriptorBody<'a> {
    #[serde(borrow, default)]
    entries: Vec<EntryBody<'a>>,
    #[serde(borrow)]
    limit: Option<LimitBody<'a>>,
    #[serde(borrow, alias = "hits_addend")]
    hits_addend: Option<Number<'a>>,
    #[serde(default, alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryBody<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow, default)]
    value: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LimitBody<'a> {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: u32,
    #[serde(borrow)]
    unit: Cow<'a, str>,
}

/// envoyproxy/ratelimit's `POST /json`: 200, or 429 if over a limit.
pub(super) async fn json(
    worker: &Worker,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: RlsBody<'_> = read(request.body)?;
    let descriptors = body.descriptors.iter().map(descriptor).collect::<Result<_, _>>()?;
    let request = rls::Request { domain: &body.domain, descriptors, hits_addend: body.hits_addend };
    let answer = rls::decide(worker, &request).await.map_err(|refusal| match refusal {
        Refusal::Invalid(text) => Trouble::Bad(text),
        Refusal::Store(error) => Trouble::Store(error),
    })?;
    reply.status = if answer.is_over { 429 } else { 200 };
    let statuses: Vec<Value> = answer.statuses.iter().map(status).collect();
    let mut json = json!({"overallCode": code(answer.is_over), "statuses": statuses});
    if !answer.metadata.is_empty() {
        json["dynamicMetadata"] = Value::Object(answer.metadata);
    }
    reply.body.extend_from_slice(json.to_string().as_bytes());
    reply.fields = answer.fields;
    reply.fields.retain(|(name, _)| *name != "Content-Type");
    Ok(())
}

fn descriptor<'a>(body: &'a DescriptorBody<'_>) -> Result<Descriptor<'a>, Trouble> {
    let bad = |text: &str| Trouble::Bad(text.to_owned());
    let limit = match &body.limit {
        None => None,
        Some(limit) => {
            let unit = Unit::named(&limit.unit).ok_or_else(|| bad("unknown unit in a limit"))?;
            Some((limit.requests_per_unit, unit))
        }
    };
    let hits = match &body.hits_addend {
        None => None,
        Some(Number::Plain(hits)) => Some(*hits),
        Some(Number::Text(text)) => {
            Some(text.parse().map_err(|_| bad("hitsAddend must be a whole number"))?)
        }
    };
    let entries = body.entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect();
    Ok(Descriptor { entries, limit, hits, is_negative: body.is_negative_hits })
}

const fn code(is_over: bool) -> &'static str {
    if is_over { "OVER_LIMIT" } else { "OK" }
}

/// A status as proto3 JSON writes it: zero values left out.
fn status(status: &rls::Status) -> Value {
    let mut json = json!({"code": code(status.is_over)});
    if let Some((requests, unit, name)) = &status.limit {
        json["currentLimit"] =
            json!({"requestsPerUnit": requests, "unit": unit.name(), "name": name});
    }
    if status.remaining > 0 {
        json["limitRemaining"] = status.remaining.into();
    }
    if let Some(reset) = status.reset_after {
        json["durationUntilReset"] = format!("{}s", seconds_up(reset)).into();
    }
    json
}
