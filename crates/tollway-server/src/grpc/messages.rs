//! The messages of Envoy's `rls.proto` and of throttlecrab, as far as they are used.
//!
//! Written by hand: the closure of `rls.proto` is 25 files and half a minute of compiling, of which
//! these few messages are spoken.

use prost::Message;

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    /// The domain.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The descriptors.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Units asked of each; 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    /// Keys and values.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// A limit in place of the configured one.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// Units asked, in place of the request's; 0 only looks.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<UInt64Value>,
    /// Whether the units are given back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// `RateLimitDescriptor.Entry`.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// `RateLimitDescriptor.RateLimitOverride`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct RateLimitOverride {
    /// Units.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit of time.
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

/// `google.protobuf.UInt64Value`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct UInt64Value {
    /// The value.
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    /// 1 OK, 2 over limit.
    #[prost(int32, tag = "1")]
    pub overall_code: i32,
    /// One per descriptor, in order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Header fields for the response to the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Header fields for the request to the upstream.
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<HeaderValue>,
    /// The body of a denial.
    #[prost(bytes = "vec", tag = "5")]
    pub raw_body: Vec<u8>,
    /// What the rules tell the proxy.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<prost_types::Struct>,
}

/// `RateLimitResponse.DescriptorStatus`.
#[derive(Clone, PartialEq, Message)]
pub struct DescriptorStatus {
    /// 1 OK, 2 over limit.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The limit that was asked.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<RateLimit>,
    /// Units left.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// When everything is back.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// `RateLimitResponse.RateLimit`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimit {
    /// Units.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit of time.
    #[prost(int32, tag = "2")]
    pub unit: i32,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Duration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// The rest.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `envoy.config.core.v3.HeaderValue`.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderValue {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// `throttlecrab.ThrottleRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct ThrottleRequest {
    /// Who is limited.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Units at once.
    #[prost(int32, tag = "2")]
    pub max_burst: i32,
    /// Units per period.
    #[prost(int32, tag = "3")]
    pub count_per_period: i32,
    /// The period in seconds.
    #[prost(int32, tag = "4")]
    pub period: i32,
    /// Units asked.
    #[prost(int32, tag = "5")]
    pub quantity: i32,
}

/// `throttlecrab.ThrottleResponse`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ThrottleResponse {
    /// Whether the units were taken.
    #[prost(bool, tag = "1")]
    pub allowed: bool,
    /// Units at once.
    #[prost(int32, tag = "2")]
    pub limit: i32,
    /// Units left.
    #[prost(int32, tag = "3")]
    pub remaining: i32,
    /// Seconds to wait, 0 if allowed.
    #[prost(int32, tag = "4")]
    pub retry_after: i32,
    /// Seconds until everything is back.
    #[prost(int32, tag = "5")]
    pub reset_after: i32,
}
