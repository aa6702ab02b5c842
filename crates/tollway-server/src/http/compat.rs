//! Contracts of others: throttlecrab's `POST /throttle`, envoyproxy/ratelimit's `POST /json`.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Value, json};
use tollway_core::Decision;
use tollway_core::fields::seconds_up;

use super::problem::Trouble;
use super::request::Call;
use super::verdict::push_number;
use crate::adhoc::throttle_once;
use crate::rls::{self, Descriptor, Unit};

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
pub(super) async fn throttle(call: Call<'_>) -> Result<(), Trouble> {
    let body: ThrottleBody<'_> = call.body()?;
    let numbers = [body.max_burst, body.count_per_period, body.period];
    let quantity = body.quantity.unwrap_or(1);
    let decision = throttle_once(call.worker, &body.key, numbers, quantity).await?;
    push_throttle(&decision, &mut call.reply.body);
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
pub(super) async fn json(mut call: Call<'_>) -> Result<(), Trouble> {
    let body: RlsBody<'_> = call.body()?;
    let descriptors = body.descriptors.iter().map(descriptor).collect::<Result<_, _>>()?;
    let request = rls::Request { domain: &body.domain, descriptors, hits_addend: body.hits_addend };
    let answer = rls::decide(call.worker, &request).await?;
    call.reply.status = if answer.is_over { 429 } else { 200 };
    let statuses: Vec<Value> = answer.statuses.iter().map(status).collect();
    let mut json = json!({"overallCode": code(answer.is_over), "statuses": statuses});
    if !answer.metadata.is_empty() {
        json["dynamicMetadata"] = Value::Object(answer.metadata);
    }
    call.reply.fields = answer.fields;
    call.reply.fields.retain(|(name, _)| *name != "Content-Type");
    call.write(&json)
}

fn descriptor<'a>(body: &'a DescriptorBody<'_>) -> Result<Descriptor<'a>, Trouble> {
    let limit = match &body.limit {
        None => None,
        Some(limit) => {
            let unit = Unit::named(&limit.unit).ok_or_else(|| Trouble::bad(rls::UNIT_EXPECTED))?;
            Some((limit.requests_per_unit, unit))
        }
    };
    let hits = match &body.hits_addend {
        None => None,
        Some(Number::Plain(hits)) => Some(*hits),
        Some(Number::Text(text)) => {
            Some(text.parse().map_err(|_| Trouble::bad("hitsAddend must be a whole number"))?)
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
