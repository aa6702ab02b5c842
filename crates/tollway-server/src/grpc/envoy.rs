//! `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`.

use tonic::{Code, Status};

use super::messages::{
    DescriptorStatus, Duration, HeaderValue, RateLimit, RateLimitDescriptor, RateLimitRequest,
    RateLimitResponse,
};
use crate::rls::{self, Descriptor, Unit};
use crate::worker::Worker;

/// The name of the service.
pub(super) const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// The path of its method.
pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

/// Answers a call.
pub(super) async fn should_rate_limit(
    worker: &Worker,
    message: &RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let descriptors = message.descriptors.iter().map(descriptor).collect::<Result<_, _>>()?;
    let request =
        rls::Request { domain: &message.domain, descriptors, hits_addend: message.hits_addend };
    let answer = rls::decide(worker, &request).await?;
    let field = |(name, value): &(&'static str, String)| HeaderValue {
        key: name.to_ascii_lowercase(),
        value: value.clone(),
    };
    Ok(RateLimitResponse {
        overall_code: code(answer.is_over),
        statuses: answer.statuses.iter().map(status).collect(),
        response_headers_to_add: answer.fields.iter().map(field).collect(),
        request_headers_to_add: Vec::new(),
        raw_body: answer.body.map(String::into_bytes).unwrap_or_default(),
        dynamic_metadata: (!answer.metadata.is_empty()).then(|| structure(answer.metadata)),
    })
}

fn structure(fields: serde_json::Map<String, serde_json::Value>) -> prost_types::Struct {
    let fields = fields.into_iter().map(|(name, field)| (name, value(field)));
    prost_types::Struct { fields: fields.collect() }
}

fn value(json: serde_json::Value) -> prost_types::Value {
    use prost_types::value::Kind;
    use serde_json::Value;

    let kind = match json {
        Value::Null => Kind::NullValue(0),
        Value::Bool(truth) => Kind::BoolValue(truth),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text),
        Value::Array(values) => Kind::ListValue(prost_types::ListValue {
            values: values.into_iter().map(value).collect(),
        }),
        Value::Object(fields) => Kind::StructValue(structure(fields)),
    };
    prost_types::Value { kind: Some(kind) }
}

fn descriptor(message: &RateLimitDescriptor) -> Result<Descriptor<'_>, Status> {
    let limit = match &message.limit {
        None => None,
        Some(limit) => {
            let unknown = || Status::new(Code::InvalidArgument, rls::UNIT_EXPECTED);
            let unit = Unit::numbered(limit.unit).ok_or_else(unknown)?;
            Some((limit.requests_per_unit, unit))
        }
    };
    Ok(Descriptor {
        entries: message.entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect(),
        limit,
        hits: message.hits_addend.map(|hits| hits.value),
        is_negative: message.is_negative_hits,
    })
}

fn status(status: &rls::Status) -> DescriptorStatus {
    let limit = |(requests, unit, name): &(u32, Unit, String)| RateLimit {
        requests_per_unit: *requests,
        unit: *unit as i32,
        name: name.clone(),
    };
    let duration = |reset: std::time::Duration| Duration {
        seconds: i64::try_from(reset.as_secs()).unwrap_or(i64::MAX),
        nanos: reset.subsec_nanos() as i32,
    };
    DescriptorStatus {
        code: code(status.is_over),
        current_limit: status.limit.as_ref().map(limit),
        limit_remaining: status.remaining,
        duration_until_reset: status.reset_after.map(duration),
    }
}

const fn code(is_over: bool) -> i32 {
    if is_over { OVER_LIMIT } else { OK }
}
