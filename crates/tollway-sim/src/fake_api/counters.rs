//! What the fake upstream saw: the figures that tests and benchmarks judge clients by.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Refusal, Scope};

/// Arrivals kept; later ones are counted only.
const ARRIVALS_MAX: usize = 100_000;
/// Buckets counted one by one; later ones are counted together only.
const BUCKETS_MAX: usize = 10_000;

/// Sums since the start or since they were forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// All requests.
    pub requests: u64,
    /// Requests that took from their limits.
    pub served: u64,
    /// 429s of buckets.
    pub limited_bucket: u64,
    /// 429s of the global limit.
    pub limited_global: u64,
    /// 429s of sub-limits.
    pub limited_sub: u64,
    /// 429s of limits shared with others.
    pub limited_shared: u64,
    /// 429s in HTML, as a content network sends them.
    pub html: u64,
    /// 401s.
    pub unauthorized: u64,
    /// 403s of resources.
    pub forbidden: u64,
    /// 404s.
    pub missing: u64,
    /// 404s of webhooks, which count as invalid.
    pub missing_webhook: u64,
    /// Invalid requests in the last period.
    pub invalid: u64,
    /// Whether the address is banned now.
    pub banned: bool,
    /// Bans so far.
    pub bans: u64,
    /// Requests that came while banned.
    pub while_banned: u64,
    /// Answers whose client left before their end (loopback only).
    pub abandoned: u64,
    /// Tokens of models that were sent (loopback only).
    pub tokens_sent: u64,
    /// Most requests at work at once (loopback only).
    pub in_flight_max: u64,
    /// By bucket and resource.
    pub buckets: BTreeMap<String, BucketCount>,
    /// In order of arrival.
    pub arrivals: Vec<Arrival>,
}

/// Sums of one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketCount {
    /// All requests.
    pub requests: u64,
    /// 429s.
    pub limited: u64,
}

/// One request in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Microseconds after the first request.
    pub at_us: u64,
    /// GET, POST and so on.
    pub method: String,
    /// Bucket and resource, separated by a slash.
    pub bucket: String,
    /// The answer's status.
    pub status: u16,
    /// What the client wrote into `?tag=`.
    pub tag: Option<String>,
}

impl Counters {
    /// 429s of any cause but a ban.
    #[must_use]
    pub const fn limited_all(&self) -> u64 {
        self.limited_bucket
            + self.limited_global
            + self.limited_sub
            + self.limited_shared
            + self.html
    }

    pub(super) const fn limited(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Global => self.limited_global += 1,
            Refusal::Sub => self.limited_sub += 1,
            Refusal::Bucket(Scope::Shared) => self.limited_shared += 1,
            Refusal::Bucket(Scope::User) => self.limited_bucket += 1,
        }
    }

    pub(super) fn note(&mut self, arrival: Arrival) {
        if self.buckets.len() < BUCKETS_MAX || self.buckets.contains_key(&arrival.bucket) {
            let bucket = self.buckets.entry(arrival.bucket.clone()).or_default();
            bucket.requests += 1;
            bucket.limited += u64::from(arrival.status == 429);
        }
        if self.arrivals.len() < ARRIVALS_MAX {
            self.arrivals.push(arrival);
        }
    }
}
