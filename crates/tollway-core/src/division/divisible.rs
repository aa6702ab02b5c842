//! What is divided, and for how long a portion is good.

use core::fmt;
use core::time::Duration;

use super::Portion;
use crate::Quota;

/// A finer rate than this many parts is divided no better.
const PARTS: u128 = 1_000_000;
const INTERVAL_SECS_MAX: u64 = 30 * 86_400;
/// What clocks, timers and a network may differ by: this, and a thousandth of the lifetime.
const MARGIN: Duration = Duration::from_secs(1);

/// A quota to divide.
///
/// The interval in which buckets refill is the same for all portions and for ever: Envoy ignores it
/// if only that changes. It is long enough to divide the rate into a million parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Divisible {
    burst: u32,
    fill: u32,
    interval_secs: u64,
    lifetime_secs: u64,
}

/// Why a quota cannot be divided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DivisibleError(&'static str);

impl fmt::Display for DivisibleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for DivisibleError {}

impl Divisible {
    /// Portions of `quota`, each good for `lifetime` unless it is renewed.
    ///
    /// # Errors
    ///
    /// If the burst or the rate does not fit into 32 bits, if the rate is less than one in 30 days,
    /// or if the lifetime is not 3 to 3600 whole seconds.
    pub fn new(quota: Quota, lifetime: Duration) -> Result<Self, DivisibleError> {
        let burst = u32::try_from(quota.burst())
            .map_err(|_| DivisibleError("the burst must be at most 4294967295"))?;
        let lifetime_secs = lifetime.as_secs();
        if lifetime.subsec_nanos() != 0 || !(3..=3_600).contains(&lifetime_secs) {
            return Err(DivisibleError("the lifetime must be 3 to 3600 whole seconds"));
        }
        let (units, period) = (u128::from(quota.units()), quota.period().as_nanos());
        let fill = |secs: u64| units * u128::from(secs) * 1_000_000_000 / period;
        // A power of ten tells a person the rate at a glance.
        let mut interval_secs = 1;
        while fill(interval_secs) < PARTS && interval_secs * 10 <= INTERVAL_SECS_MAX {
            interval_secs *= 10;
        }
        if fill(interval_secs) == 0 {
            interval_secs = INTERVAL_SECS_MAX;
        }
        let fill = u32::try_from(fill(interval_secs))
            .map_err(|_| DivisibleError("the rate must be at most 4294967295 in a second"))?;
        if fill == 0 {
            return Err(DivisibleError("the rate must be at least one in 30 days"));
        }
        Ok(Self { burst, fill, interval_secs, lifetime_secs })
    }

    /// The interval to which [`Portion::tokens_per_fill`] refers.
    pub const fn fill_interval(&self) -> Duration {
        Duration::from_secs(self.interval_secs)
    }

    /// How long a portion is good after it is received.
    pub const fn lifetime(&self) -> Duration {
        Duration::from_secs(self.lifetime_secs)
    }

    /// The whole quota as one portion.
    pub const fn whole(&self) -> Portion {
        Portion { max_tokens: self.burst, tokens_per_fill: self.fill }
    }

    /// How long after it was received, at the latest, a portion has surely expired.
    pub fn gone_after(&self) -> Duration {
        self.lifetime() + MARGIN + self.lifetime() / 1_000
    }

    pub(super) const fn interval_nanos(&self) -> u64 {
        self.interval_secs * 1_000_000_000
    }

    pub(super) fn renewed_after(&self) -> Duration {
        self.lifetime() / 3
    }

    /// How long an order may be without acknowledgement.
    pub(super) fn patience(&self) -> Duration {
        self.lifetime() / 3
    }

    /// What stays in the pool for newcomers.
    pub(super) const fn reserve(&self) -> Portion {
        Portion { max_tokens: self.burst / 16, tokens_per_fill: self.fill / 64 }
    }
}
