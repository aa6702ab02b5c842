//! Units and durations as scripts take them: integers that a double holds exactly.
//!
//! GCRA counts in nanoseconds × units, up to 10^33. Here such a number becomes three limbs: whole
//! microseconds, nanoseconds, and the part of a nanosecond over the policy's scale. Each is below
//! 2^53, so Lua adds and compares them without rounding. Every other algorithm counts in units.

use std::time::Duration;

pub(crate) use tollway_core::gcra::gcd;
use tollway_core::{Algorithm, Quota, Timestamp};

/// Above every limit, and low enough that sums of two stay exact in a double.
pub(crate) const UNITS_MAX: u64 = 1 << 52;

/// The latest moment that a double holds exactly, in microseconds.
const MICROS_MAX: u64 = (1 << 53) - 1;

/// Units, in the limbs that a script adds: microseconds, nanoseconds and part for GCRA, units and
/// two zeros for the others.
pub(crate) type Amount = [u64; 3];

/// `units` under `algorithm`.
pub(crate) fn amount(algorithm: &Algorithm, units: u64) -> Amount {
    match algorithm {
        Algorithm::Gcra(gcra) => Scale::of(gcra.quota()).limbs(units),
        _ => [units.min(UNITS_MAX), 0, 0],
    }
}

/// The units that [`amount`] was made of.
pub(crate) fn units(algorithm: &Algorithm, amount: Amount) -> u64 {
    match algorithm {
        Algorithm::Gcra(gcra) => Scale::of(gcra.quota()).units(amount),
        _ => amount[0],
    }
}

/// How GCRA measures time under one quota.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    /// Ticks per nanosecond.
    pub(crate) ticks: u64,
    /// Ticks per unit.
    unit: u64,
}

impl Scale {
    pub(crate) fn of(quota: Quota) -> Self {
        let period_ns = nanos(quota.period());
        let common = gcd(quota.units(), period_ns);
        Self { ticks: quota.units() / common, unit: period_ns / common }
    }

    fn limbs(self, units: u64) -> Amount {
        self.split(u128::from(units) * u128::from(self.unit), UNITS_MAX)
    }

    /// A moment in limbs.
    pub(crate) fn limbs_of(self, ticks: u128) -> Amount {
        self.split(ticks, MICROS_MAX)
    }

    fn split(self, ticks: u128, micros_max: u64) -> Amount {
        let scale = u128::from(self.ticks);
        let micros = (ticks / (1_000 * scale)).min(u128::from(micros_max));
        let rest = ticks % (1_000 * scale);
        [micros as u64, (rest / scale) as u64, (rest % scale) as u64]
    }

    fn units(self, amount: Amount) -> u64 {
        let units = self.ticks_of(amount) / u128::from(self.unit);
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// A moment or a duration in ticks.
    pub(crate) fn ticks_of(self, [micros, nanos, part]: Amount) -> u128 {
        (u128::from(micros) * 1_000 + u128::from(nanos)) * u128::from(self.ticks) + u128::from(part)
    }
}

/// Whole microseconds and the nanoseconds beyond them.
pub(crate) const fn pair(nanos: u64) -> [u64; 2] {
    [nanos / 1_000, nanos % 1_000]
}

/// The moment that a pair names.
pub(crate) const fn moment(micros: u64, nanos: u64) -> Timestamp {
    Timestamp::from_nanos(micros.saturating_mul(1_000).saturating_add(nanos))
}

/// A duration in nanoseconds; those of policies fit.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limbs_hold_every_amount_exactly() {
        for quota in ["1000000/1s", "1/30d", "7/1s", "999999999999999/1s", "3/100ns"] {
            let algorithm = Algorithm::from(quota.parse::<Quota>().unwrap());
            for count in [1, 2, 3, 999, 1_000_000].map(|count: u64| count.min(algorithm.limit())) {
                let limbs = amount(&algorithm, count);
                assert_eq!(units(&algorithm, limbs), count, "{quota}");
                assert!(limbs.iter().all(|limb| *limb < 1 << 53), "{quota}");
            }
        }
    }

    #[test]
    fn a_moment_in_limbs_is_the_same_moment() {
        for quota in ["1000000/1s", "1/30d", "7/1s", "3/100ns"] {
            let scale = Scale::of(quota.parse().unwrap());
            let ticks = 1_700_000_000_123_456_789 * u128::from(scale.ticks) + 1;
            assert_eq!(scale.ticks_of(scale.limbs_of(ticks)), ticks, "{quota}");
        }
    }

    #[test]
    fn an_amount_past_everything_stays_past_everything() {
        let algorithm = Algorithm::from("1/30d".parse::<Quota>().unwrap());
        assert_eq!(amount(&algorithm, u64::MAX)[0], UNITS_MAX);
    }
}
