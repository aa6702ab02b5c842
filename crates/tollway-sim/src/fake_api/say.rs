//! How the fake upstream words its answers: fields in the units of each API, bodies, dates.

use std::time::Duration;

use serde::Deserialize;
use tollway_core::Timestamp;
use tollway_core::fields::calendar;

use super::fault::{Ending, Faults};
use super::model::{Due, Generated};
use super::route::Match;
use super::{Refusal, Request, Response, Scope, Spec, Standing, bodies};

/// What a header field says.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) enum Value {
    Limit,
    Remaining,
    Used,
    /// `32/40`.
    UsedOfLimit,
    /// The bucket's hash.
    Bucket,
    /// The bucket's name.
    Resource,
    /// user, shared or global.
    Scope,
    ResetEpochSeconds,
    ResetEpochDecimal,
    ResetAfterSeconds,
    ResetAfterDecimal,
    /// `6m0s`, as Go prints durations.
    ResetGo,
    ResetRfc3339,
    ResetHttpDate,
    RetrySeconds,
    RetryDecimal,
    /// `"default";q=100;w=60`.
    IetfPolicy,
    /// `"default";r=50;t=30`.
    IetfLimit,
    Literal(String),
}

/// What an answer is put together from.
pub(super) struct Saying<'a> {
    pub(super) spec: &'a Spec,
    pub(super) faults: &'a Faults,
    pub(super) now: Timestamp,
}

/// What the fields of one answer speak of.
struct Subject<'a> {
    bucket: &'a str,
    per: Duration,
    scope: &'static str,
    standing: Standing,
}

impl Saying<'_> {
    pub(super) fn success(
        &self,
        request: &Request<'_>,
        found: &Match,
        told: Option<Standing>,
        number: u64,
    ) -> Response {
        let mut fields = self.opening("application/json");
        if let (Some(standing), Some((name, per))) = (told, self.spoken_bucket(found)) {
            let subject = Subject { bucket: name, per, scope: "user", standing };
            self.say(&self.spec.fields, &subject, &mut fields);
        }
        let described = bodies::served(self.spec, request, found, number, self.now);
        let (status, body) = described.unwrap_or_else(|| (200, echo(request, number)));
        // Clients read what is said to be JSON as JSON, even nothing.
        if body.is_empty() {
            fields.retain(|(name, _)| name != "Content-Type");
        }
        whole(status, fields, body)
    }

    pub(super) fn denial(&self, found: &Match, refusal: Refusal, standing: Standing) -> Response {
        let mut fields = self.opening("application/json");
        let scope = match refusal {
            Refusal::Global => "global",
            Refusal::Sub | Refusal::Bucket(Scope::User) => "user",
            Refusal::Bucket(Scope::Shared) => "shared",
        };
        let bucket = self.spoken_bucket(found);
        let (name, per) = bucket.unwrap_or(("", Duration::ZERO));
        // Of a sub-limit the fields tell nothing: they speak of the bucket, which has room.
        let spoken =
            if refusal == Refusal::Sub { roomy(self.spec, name, standing) } else { standing };
        let subject = Subject { bucket: name, per, scope, standing: spoken };
        if refusal == Refusal::Global {
            self.say(&self.spec.global_fields, &subject, &mut fields);
        } else {
            if bucket.is_some() {
                self.say(&self.spec.fields, &subject, &mut fields);
            }
            let truth = Subject { standing, ..subject };
            self.say(&self.spec.denied_fields, &truth, &mut fields);
        }
        whole(self.spec.denied_status, fields, self.denied_body(refusal, standing))
    }

    pub(super) fn plain(&self, status: u16, message: &str) -> Response {
        if let Some(error) = self.spec.errors.get(&status.to_string()) {
            let told = error.status.unwrap_or(status);
            return whole(told, self.opening("application/json"), error.body.clone());
        }
        let body = serde_json::json!({ "message": message, "code": 0 });
        whole(status, self.opening("application/json"), body.to_string())
    }

    /// What a call of a model is answered with.
    pub(super) fn model_answer(&self, answer: Generated, told: &[(Due, Standing)]) -> Response {
        let is_stream = !answer.pieces.is_empty();
        let content = if is_stream { "text/event-stream" } else { "application/json" };
        let mut fields = self.opening(content);
        self.say_models(told, &mut fields);
        let Generated { body, pieces, tokens, every } = answer;
        let response = whole(200, fields, body);
        // What is sent whole is sent when all of it has been made.
        let delay = every.saturating_mul(u32::try_from(tokens).unwrap_or(u32::MAX));
        let delay = if is_stream { Duration::ZERO } else { delay };
        Response { pieces, every, tokens, delay, ..response }
    }

    /// The denial of a call of a model by the limit on `dimension`.
    pub(super) fn model_denial(
        &self,
        dimension: &str,
        told: &[(Due, Standing)],
        standing: Option<Standing>,
    ) -> Response {
        let mut fields = self.opening("application/json");
        self.say_models(told, &mut fields);
        // A call that is larger than the limit is never served: there is no time to tell.
        if let Some(standing) = standing {
            let subject =
                Subject { bucket: dimension, per: Duration::ZERO, scope: "user", standing };
            self.say(&self.spec.denied_fields, &subject, &mut fields);
        }
        let retry = standing.map_or(Duration::ZERO, |standing| standing.next_after);
        let body = self.spec.denied_body.replace("{retry}", &decimal(retry));
        whole(self.spec.denied_status, fields, body.replace("{dimension}", dimension))
    }

    fn say_models(&self, told: &[(Due, Standing)], fields: &mut Vec<(String, String)>) {
        let Some(model) = &self.spec.model else { return };
        for (due, standing) in told {
            let said = model.fields.get(due.dimension).map_or(&[][..], Vec::as_slice);
            let (bucket, standing) = (due.dimension, *standing);
            self.say(
                said,
                &Subject { bucket, per: due.limit.per, scope: "user", standing },
                fields,
            );
        }
    }

    pub(super) fn json(&self, status: u16, body: &serde_json::Value) -> Response {
        whole(status, self.opening("application/json"), body.to_string())
    }

    fn denied_body(&self, refusal: Refusal, standing: Standing) -> String {
        let retry = decimal(standing.next_after);
        let global = if refusal == Refusal::Global { "true" } else { "false" };
        let body = self.spec.denied_body.replace("{retry}", &retry).replace("{global}", global);
        body.replace("{dimension}", "requests")
    }

    /// The bucket that fields speak of, if it speaks at all.
    fn spoken_bucket(&self, found: &Match) -> Option<(&str, Duration)> {
        let name = self.spec.routes[found.route?].bucket.as_deref()?;
        let bucket = self.spec.buckets.get(name)?;
        (!bucket.silent).then_some((name, bucket.per))
    }

    fn opening(&self, content: &str) -> Vec<(String, String)> {
        let date = self.wall(self.faults.date_skew_ms());
        vec![
            ("Content-Type".to_owned(), content.to_owned()),
            ("Date".to_owned(), calendar::print_http_date(date)),
            ("Via".to_owned(), "1.1 fake".to_owned()),
        ]
    }

    fn say(
        &self,
        list: &[(String, Value)],
        subject: &Subject<'_>,
        out: &mut Vec<(String, String)>,
    ) {
        if self.faults.is_hidden() {
            return;
        }
        for (name, value) in list {
            let garbled = self.faults.is_garbled();
            let text = if garbled { nonsense(name) } else { self.text(value, subject) };
            out.push((name.clone(), text));
        }
    }

    fn text(&self, value: &Value, subject: &Subject<'_>) -> String {
        let Subject { bucket, per, scope, standing } = subject;
        let (full, next) = (standing.full_after, standing.next_after);
        let reset = self.wall(0) + full;
        match value {
            Value::Limit => standing.limit.to_string(),
            Value::Remaining => standing.remaining.to_string(),
            Value::Used => (standing.limit - standing.remaining).to_string(),
            Value::UsedOfLimit => {
                format!("{}/{}", standing.limit - standing.remaining, standing.limit)
            }
            Value::Bucket => hash(bucket, self.faults.generation()),
            Value::Resource => (*bucket).to_owned(),
            Value::Scope => (*scope).to_owned(),
            Value::ResetEpochSeconds => seconds_up(reset).to_string(),
            Value::ResetEpochDecimal => decimal(reset),
            Value::ResetAfterSeconds => seconds_up(full).to_string(),
            Value::ResetAfterDecimal => decimal(full),
            Value::ResetGo => go(full),
            Value::ResetRfc3339 => calendar::print_rfc3339(reset),
            Value::ResetHttpDate => calendar::print_http_date(reset),
            Value::RetrySeconds => seconds_up(next).to_string(),
            Value::RetryDecimal => decimal(next),
            Value::IetfPolicy => {
                format!("\"default\";q={};w={}", standing.limit, seconds_up(*per).max(1))
            }
            Value::IetfLimit => {
                // `t` is the time until there is more: of a fixed window its end.
                let more = if next.is_zero() { full } else { next };
                format!("\"default\";r={};t={}", standing.remaining, seconds_up(more))
            }
            Value::Literal(text) => text.clone(),
        }
    }

    /// The server's clock, right or wrong, as time since the epoch.
    fn wall(&self, further_ms: i64) -> Duration {
        let truth = Duration::from_nanos(self.now.as_nanos());
        let ahead_ms = self.faults.skew_ms().saturating_add(further_ms);
        let by = Duration::from_millis(ahead_ms.unsigned_abs());
        if ahead_ms < 0 { truth.saturating_sub(by) } else { truth.saturating_add(by) }
    }
}

/// A 429 of the network in front of the API: no JSON, no `Via`, no limit fields.
pub(super) fn html(retry: Duration) -> Response {
    let fields = vec![
        ("Content-Type".to_owned(), "text/html; charset=UTF-8".to_owned()),
        ("Retry-After".to_owned(), seconds_up(retry).to_string()),
        ("Server".to_owned(), "cloudflare".to_owned()),
    ];
    let body = "<!doctype html><title>Access denied</title><h1>Error 1015</h1>\
                <p>You are being rate limited</p>";
    whole(429, fields, body.to_owned())
}

impl TryFrom<String> for Value {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if let Some(literal) = text.strip_prefix('=') {
            return Ok(Self::Literal(literal.to_owned()));
        }
        Ok(match text.as_str() {
            "limit" => Self::Limit,
            "remaining" => Self::Remaining,
            "used" => Self::Used,
            "used-of-limit" => Self::UsedOfLimit,
            "bucket" => Self::Bucket,
            "resource" => Self::Resource,
            "scope" => Self::Scope,
            "reset-epoch-seconds" => Self::ResetEpochSeconds,
            "reset-epoch-decimal" => Self::ResetEpochDecimal,
            "reset-after-seconds" => Self::ResetAfterSeconds,
            "reset-after-decimal" => Self::ResetAfterDecimal,
            "reset-go" => Self::ResetGo,
            "reset-rfc3339" => Self::ResetRfc3339,
            "reset-http-date" => Self::ResetHttpDate,
            "retry-seconds" => Self::RetrySeconds,
            "retry-decimal" => Self::RetryDecimal,
            "ietf-policy" => Self::IetfPolicy,
            "ietf-limit" => Self::IetfLimit,
            _ => return Err(format!("`{text}` is nothing that a field can say")),
        })
    }
}

/// What a route answers that nobody described.
fn echo(request: &Request<'_>, number: u64) -> String {
    let path = request.target.split('?').next().unwrap_or_default();
    let said = serde_json::json!({
        "id": number.to_string(), "method": request.method, "path": path, "number": number,
    });
    said.to_string()
}

fn whole(status: u16, fields: Vec<(String, String)>, body: String) -> Response {
    Response {
        status,
        fields,
        body,
        pieces: Vec::new(),
        every: Duration::ZERO,
        tokens: 0,
        delay: Duration::ZERO,
        ending: Ending::Whole,
    }
}

/// The bucket as it stands beside a sub-limit that is spent: something left, back soon.
fn roomy(spec: &Spec, bucket: &str, standing: Standing) -> Standing {
    let Some(bucket) = spec.buckets.get(bucket) else { return standing };
    Standing {
        allowed: true,
        limit: bucket.limit,
        remaining: bucket.limit.saturating_sub(1),
        full_after: bucket.per,
        next_after: Duration::ZERO,
    }
}

/// A name as the upstream makes them up: 32 hexadecimal digits that say nothing.
fn hash(bucket: &str, generation: u64) -> String {
    let mut mixed: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in bucket.bytes().chain(generation.to_le_bytes()) {
        mixed = (mixed ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    format!("{mixed:032x}")
}

fn nonsense(name: &str) -> String {
    let choices = ["banana", "-17", "99999999999999999999999", "NaN", "1e309"];
    choices[name.len() % choices.len()].to_owned()
}

fn seconds_up(duration: Duration) -> u64 {
    tollway_core::fields::seconds_up(duration)
}

/// Seconds with three decimals, rounded up: who waits as told is served.
fn decimal(duration: Duration) -> String {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    format!("{}.{:03}", millis / 1_000, millis % 1_000)
}

/// As Go prints durations: `1m30.5s`, `12ms`.
fn go(duration: Duration) -> String {
    let millis = duration.as_nanos().div_ceil(1_000_000) as u64;
    if millis < 1_000 {
        return format!("{millis}ms");
    }
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let seconds = format!("{}s", rest as f64 / 1_000.0);
    if minutes > 0 { format!("{minutes}m{seconds}") } else { seconds }
}
