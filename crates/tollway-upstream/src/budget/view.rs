//! What can be seen of a bucket from outside.

use std::time::Duration;

use crate::profile::Scope;

/// What is known of a bucket's limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Knowledge {
    /// Nothing yet: one request at a time until the upstream tells.
    #[default]
    Unknown,
    /// A limit, and what is left of it.
    Known,
    /// The upstream says nothing about it: requests go until one is refused.
    Silent,
}

/// One dimension of a bucket's limit.
#[derive(Clone, Debug, PartialEq)]
pub struct DimensionView {
    /// The profile's name of it.
    pub name: String,
    /// Units per window.
    pub limit: u64,
    /// Units that may be taken now, those in flight counted as taken.
    pub remaining: u64,
    /// Time until the whole limit is back.
    pub resets_in: Option<Duration>,
    /// Whether it comes back bit by bit; none if that is not known yet.
    pub sliding: Option<bool>,
}

/// A bucket's last refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastRefusal {
    /// How long ago.
    pub ago: Duration,
    /// Whom it concerned.
    pub scope: Scope,
    /// The wait that was asked for.
    pub retry_after: Duration,
}

/// What is known of a bucket.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BucketView {
    /// Its name, for [`super::Ledger::unlock`] and [`super::Ledger::drain`].
    pub id: String,
    /// What is known of its limit.
    pub knowledge: Knowledge,
    /// Its dimensions.
    pub dimensions: Vec<DimensionView>,
    /// Requests in flight.
    pub in_flight: u32,
    /// Requests that wait.
    pub queued: usize,
    /// How long a newcomer would wait.
    pub wait: Duration,
    /// What the upstream last said was left, less what was expected: negative if others take too.
    pub divergence: i64,
    /// Time until everything in it may go again, if it is blocked.
    pub blocked_for: Option<Duration>,
    /// Lanes that are blocked on their own, and for how long.
    pub blocked_lanes: Vec<(String, Duration)>,
    /// The last refusal.
    pub last_refusal: Option<LastRefusal>,
}

/// Some of the buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The buckets.
    pub buckets: Vec<BucketView>,
    /// Where to go on; none at the end.
    pub next: Option<u64>,
}
