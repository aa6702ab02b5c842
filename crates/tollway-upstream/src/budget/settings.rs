//! The bounds of a credential's budgets.

use std::time::Duration;

use super::{Claim, Reason, Refusal};

/// The bounds of a credential's budgets, and how long what is lost may still turn up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Buckets remembered.
    pub buckets_max: usize,
    /// Requests that may wait, over all buckets.
    pub queue_max: usize,
    /// Bytes that waiting requests may hold, over all buckets.
    pub queue_bytes_max: u64,
    /// Requests in flight in a bucket about which the upstream says nothing.
    pub in_flight_max: u32,
    /// How long after an abandoned request the upstream may still count it.
    pub linger: Duration,
    /// How long a probe may keep the others waiting before the next one goes.
    pub lease: Duration,
    /// How long an idle bucket that says nothing any more is remembered.
    pub idle: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            buckets_max: 131_072,
            queue_max: 10_000,
            queue_bytes_max: 64 << 20,
            in_flight_max: 256,
            linger: Duration::from_secs(2),
            lease: Duration::from_secs(10),
            idle: Duration::from_secs(600),
        }
    }
}

impl Settings {
    /// Whether a claim may wait beside `waiting` others, which hold `bytes`.
    pub(crate) fn room_for(
        &self,
        claim: &Claim,
        waiting: usize,
        bytes: u64,
    ) -> Result<(), Refusal> {
        let full = |reason| Err(Refusal { reason, wait: Some(self.lease) });
        if waiting >= self.queue_max {
            return full(Reason::QueueFull);
        }
        if bytes.saturating_add(claim.bytes) > self.queue_bytes_max {
            return full(Reason::BytesFull);
        }
        Ok(())
    }
}
