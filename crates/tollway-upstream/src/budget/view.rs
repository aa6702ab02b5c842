//! What can be seen of a bucket from outside.

use std::time::Duration;

use super::encoding::encoded_names;
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

encoded_names!(Knowledge { Unknown = 0, Known = 1, Silent = 2 });

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

/// Why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitCause {
    /// The bucket's window is spent.
    Spent,
    /// Its limit is not known, or not any more: an answer that is awaited will tell.
    Probe,
    /// The upstream tells no limit, and as many are in flight as it is trusted with.
    InFlight,
    /// The bucket was refused.
    Blocked,
    /// A sub-limit of the bucket was refused.
    SubLimit,
    /// The limit over all routes of the credential is spent.
    Global,
    /// A limit of the credential, over all its buckets, is spent.
    CredentialSpent,
    /// What the credential has left is not known: an answer that is awaited will tell.
    CredentialProbe,
    /// The credential was refused.
    CredentialBlocked,
    /// The credential is paced, and its next slot is not yet there.
    Slot,
    /// As many requests of the credential are in flight as the upstream serves at once.
    Concurrency,
    /// The store is gone: this process keeps to its part of the limits.
    LocalShare,
    /// Nothing: it goes next.
    Turn,
}

impl WaitCause {
    /// A word for pages and programs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Spent => "spent",
            Self::Probe => "probe",
            Self::InFlight => "in-flight",
            Self::Blocked => "blocked",
            Self::SubLimit => "sub-limit",
            Self::Global => "global",
            Self::CredentialSpent => "credential-spent",
            Self::CredentialProbe => "credential-probe",
            Self::CredentialBlocked => "credential-blocked",
            Self::Slot => "slot",
            Self::Concurrency => "concurrency",
            Self::LocalShare => "local-share",
            Self::Turn => "turn",
        }
    }
}

/// Why requests of a bucket wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// The cause.
    pub cause: WaitCause,
    /// Which dimension or sub-limit, if it is one of several.
    pub what: Option<String>,
    /// Time until it is over, where that is known.
    pub left: Option<Duration>,
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
    /// Methods and templates by which it is known: at most eight.
    pub routes: Vec<String>,
    /// Why its requests wait, what matters first; empty if none do.
    pub why: Vec<Why>,
}

/// Some of the buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The buckets.
    pub buckets: Vec<BucketView>,
    /// Where to go on; none at the end.
    pub next: Option<u64>,
}
