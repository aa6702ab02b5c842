//! What a shared ledger is told when it is made: times, names, the limit over all routes.

use std::time::Duration;

use tollway_core::Quota;

use crate::budget::BucketRoom;
use crate::profile::GlobalLimit;

/// Times, names and bounds of a shared ledger.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a request of a Spectacles client is waited for. A process of ours is believed to be
    /// alive for as long if it says nothing, but for 2.4 s at most. Requests of living processes
    /// may keep others waiting for [`crate::budget::Settings::lease`], as in one process.
    pub lease: Duration,
    /// How long one call to the store may take before it counts as lost.
    pub timeout: Duration,
    /// How buckets are named.
    pub naming: Naming,
    /// How "no limit" is written.
    pub spectacles_version: SpectaclesVersion,
    /// The limit over all routes; the profile's if there is none here.
    pub global: Option<GlobalRate>,
    /// Whether this process looks for buckets that nobody can leave. One process of a fleet at a
    /// time does, whichever comes first.
    pub mends: bool,
    /// Processes that share credentials on the store have the same name here, with which the key
    /// begins that says who they are. Each has its part of the limits while the store is gone,
    /// whether it has used a credential before or not.
    pub fleet: String,
    /// How many processes share the credential at least. What each may do while the store is gone
    /// is its part of the limits; more are counted while the store is there.
    pub processes_min: u32,
    /// The bounds on buckets and waiting requests.
    pub bounds: crate::budget::Settings,
    /// What the ledgers of all credentials may remember together, beside their own bounds.
    pub room: Option<BucketRoom>,
    /// How the store is reached; its prefix is not used.
    pub store: tollway_redis::Settings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            naming: Naming::default(),
            spectacles_version: SpectaclesVersion::default(),
            global: None,
            mends: true,
            fleet: "{tollway:fleet}".to_owned(),
            processes_min: 1,
            bounds: crate::budget::Settings::default(),
            room: None,
            store: tollway_redis::Settings::default(),
        }
    }
}

impl Settings {
    /// The lease as the scripts take it.
    pub(super) fn lease_ms(&self) -> u64 {
        (self.lease.as_millis() as u64).clamp(50, 600_000)
    }

    /// For how long a process that says nothing is believed to be alive.
    pub(super) fn alive_ms(&self) -> u64 {
        self.lease_ms().min(2_400)
    }

    /// How often a process says that it is alive.
    pub(super) fn beat(&self) -> Duration {
        Duration::from_millis(self.alive_ms()) / 4
    }
}

/// How buckets are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Naming {
    /// By the upstream's own name for it and the major parameter, once it is known; by method and
    /// path until then. Routes that share a limit share a bucket.
    #[default]
    Learned,
    /// By the path alone, as Spectacles clients do (they prefix the method to the deletion of
    /// messages only): for fleets in which they still run.
    Spectacles,
}

/// How "no limit" is written into the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SpectaclesVersion {
    /// As a large limit, which clients of every version understand.
    #[default]
    First,
    /// As a limit of 0, which clients of the first version take for a bucket that is always empty.
    Later,
}

impl SpectaclesVersion {
    pub(super) fn unlimited(self) -> u32 {
        match self {
            Self::First => 1_000_000,
            Self::Later => 0,
        }
    }
}

/// A limit over all routes of a credential, kept before the upstream has to say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRate {
    /// Requests per period.
    pub limit: u32,
    /// The period, with a margin: requests that leave one second apart may arrive closer together.
    pub period: Duration,
    /// How long a batch of tokens may be spent after it was taken.
    pub spend: Duration,
}

impl GlobalRate {
    /// How long a batch may be spent, unless told otherwise.
    pub(super) const SPEND: Duration = Duration::from_millis(50);

    /// What a profile says of it.
    pub(super) fn of(global: GlobalLimit) -> Self {
        Self::stated(global.quota, global.jitter)
    }

    /// A limit that a profile states, and what its period may be longer by.
    pub(super) fn stated(quota: Quota, slack: Duration) -> Self {
        let limit = u32::try_from(quota.units()).unwrap_or(u32::MAX);
        Self { limit, period: quota.period() + slack, spend: Self::SPEND }
    }

    /// So many requests in any second, with a tenth for what the network does to their distance.
    #[must_use]
    pub const fn per_second(limit: u32) -> Self {
        Self { limit, period: Duration::from_millis(1_100), spend: Self::SPEND }
    }
}
