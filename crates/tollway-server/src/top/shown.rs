//! Top keys as JSON: for `/admin/top`, the events of the page, and the view of one key.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Activity, Ranked, Record, Seen};
use crate::metrics::Metrics;

const MINUTE_S: u64 = 60;
const FIVE_MINUTES_S: u64 = 300;

/// The policies that records are about, by domain and name.
#[derive(Debug)]
pub(crate) struct Names(BTreeMap<u32, (String, String)>);

impl Names {
    /// The policies of these records.
    pub(crate) fn of<'a>(metrics: &Metrics, records: impl Iterator<Item = &'a Record>) -> Self {
        let numbers: BTreeSet<u32> = records.map(|record| record.tally).collect();
        Self(metrics.names(&numbers))
    }

    /// The policies of these keys' last decisions.
    pub(crate) fn of_ranked<'a>(
        metrics: &Metrics,
        ranked: impl Iterator<Item = &'a Ranked>,
    ) -> Self {
        let lasts = ranked.flat_map(|key| [&key.allowed.last, &key.denied.last]);
        Self::of(metrics, lasts.flatten())
    }

    fn get(&self, number: u32) -> (&str, &str) {
        let name = self.0.get(&number);
        name.map_or(("", ""), |(domain, policy)| (&**domain, &**policy))
    }
}

/// Keys with their rates per second and what came of them last.
pub(crate) fn list(ranking: &[Ranked], names: &Names) -> Vec<Value> {
    let entry = |Ranked { key, allowed, denied }: &Ranked| {
        let mut entry = rates([allowed.seen, denied.seen]);
        entry["key"] = key.escape_ascii().to_string().into();
        entry["key_hex"] = hex(key).into();
        entry["last_allowed"] = last(allowed, names);
        entry["last_denied"] = last(denied, names);
        entry
    };
    ranking.iter().map(entry).collect()
}

/// Decisions per second, allowed and denied.
pub(crate) fn rates([allowed, denied]: [Seen; 2]) -> Value {
    json!({
        "allowed_1m": per_second(allowed.minute, MINUTE_S),
        "allowed_5m": per_second(allowed.five_minutes, FIVE_MINUTES_S),
        "denied_1m": per_second(denied.minute, MINUTE_S),
        "denied_5m": per_second(denied.five_minutes, FIVE_MINUTES_S),
    })
}

/// With three decimals, rounded up: a key that was seen is not shown as never seen.
fn per_second(count: u64, window_s: u64) -> f64 {
    count.saturating_mul(1_000).div_ceil(window_s) as f64 / 1_000.0
}

fn last(activity: &Activity, names: &Names) -> Value {
    activity.last.map_or(Value::Null, |last| record(&last, names))
}

/// What came of a request.
pub(crate) fn record(record: &Record, names: &Names) -> Value {
    let (domain, policy) = names.get(record.tally);
    let at_ms = record.at.as_nanos() / 1_000_000;
    let mut told = json!({"at_ms": at_ms, "domain": domain, "policy": policy, "cost": record.cost});
    if let Some(reason) = record.reason {
        told["reason"] = reason.name().into();
        told["times"] = record.times.into();
        told["retry_after_ms"] = record.retry_ns.map(|wait| wait.div_ceil(1_000_000)).into();
    }
    told
}

/// Bytes as hexadecimal digits: no byte of a key is ever text on its way to the page.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes that pairs of hexadecimal digits spell.
pub(crate) fn bytes_of_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    digits.as_bytes().chunks(2).map(byte).collect()
}
