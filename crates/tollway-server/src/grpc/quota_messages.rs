//! The messages of Envoy's `rlqs.proto`, as far as they are used.
//!
//! Written by hand, as those of [`super::messages`] are. A map is a list of entries on the wire,
//! and of a `oneof` at most one field is there.

use prost::Message;

use super::messages::Duration;

/// `envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports`.
#[derive(Clone, PartialEq, Message)]
pub struct UsageReports {
    /// The domain: of the first message of a stream at least.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// How much of each bucket was used.
    #[prost(message, repeated, tag = "2")]
    pub usages: Vec<BucketUsage>,
}

/// `RateLimitQuotaUsageReports.BucketQuotaUsage`.
#[derive(Clone, PartialEq, Message)]
pub struct BucketUsage {
    /// The bucket.
    #[prost(message, optional, tag = "1")]
    pub bucket_id: Option<BucketId>,
    /// The time since the last report, in whole seconds.
    #[prost(message, optional, tag = "2")]
    pub time_elapsed: Option<Duration>,
    /// Requests allowed in this time.
    #[prost(uint64, tag = "3")]
    pub allowed: u64,
    /// Requests denied in this time.
    #[prost(uint64, tag = "4")]
    pub denied: u64,
}

/// `envoy.service.rate_limit_quota.v3.BucketId`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct BucketId {
    /// Keys and values, whose order means nothing.
    #[prost(message, repeated, tag = "1")]
    pub bucket: Vec<BucketEntry>,
}

/// An entry of `BucketId.bucket`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Message)]
pub struct BucketEntry {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// `envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct QuotaResponse {
    /// What to do with buckets.
    #[prost(message, repeated, tag = "1")]
    pub actions: Vec<BucketAction>,
}

/// `RateLimitQuotaResponse.BucketAction`.
#[derive(Clone, PartialEq, Message)]
pub struct BucketAction {
    /// The bucket.
    #[prost(message, optional, tag = "1")]
    pub bucket_id: Option<BucketId>,
    /// What it is limited to from now on.
    #[prost(message, optional, tag = "2")]
    pub assignment: Option<Assignment>,
    /// Forget it.
    #[prost(message, optional, tag = "3")]
    pub abandon: Option<Nothing>,
}

/// `BucketAction.QuotaAssignmentAction`.
#[derive(Clone, PartialEq, Message)]
pub struct Assignment {
    /// How long it is good: whole seconds from its receipt.
    #[prost(message, optional, tag = "2")]
    pub lifetime: Option<Duration>,
    /// The limit.
    #[prost(message, optional, tag = "3")]
    pub strategy: Option<Strategy>,
}

/// `envoy.type.v3.RateLimitStrategy`, without what Envoy ignores.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Strategy {
    /// 0 allows everything, 1 denies everything.
    #[prost(int32, optional, tag = "1")]
    pub blanket: Option<i32>,
    /// A token bucket.
    #[prost(message, optional, tag = "3")]
    pub token_bucket: Option<TokenBucket>,
}

/// `envoy.type.v3.TokenBucket`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct TokenBucket {
    /// Its size.
    #[prost(uint32, tag = "1")]
    pub max_tokens: u32,
    /// What it refills in an interval: without it, nothing.
    #[prost(message, optional, tag = "2")]
    pub tokens_per_fill: Option<UInt32Value>,
    /// The interval: whole seconds, at least one.
    #[prost(message, optional, tag = "3")]
    pub fill_interval: Option<Duration>,
}

/// `google.protobuf.UInt32Value`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct UInt32Value {
    /// The value.
    #[prost(uint32, tag = "1")]
    pub value: u32,
}

/// A message without fields.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Nothing {}
