//! The numbers that follow from a quota, the same for every client of a token.

use tollway_core::Quota;

use super::portable::{exp, ln};

const NANOS_PER_S: f64 = 1e9;
/// Round trips up to about this long do not upset the law at high rates.
const ROUND_TRIP_S: f64 = 0.25;
/// A reserve of at least this many units takes as many clients, less the margin.
const CLIENTS: f64 = 64.0;

/// What follows from a quota.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PaceParameters {
    /// Units a full bucket holds.
    pub(super) burst: f64,
    /// Units per period.
    pub(super) units: f64,
    /// The period.
    pub(super) period_ns: f64,
    /// Time in which one unit comes back.
    pub(super) unit_ns: f64,
    /// Units to leave unspent.
    pub(super) reserve: f64,
    /// The part of the reserve below which there are more clients than slots.
    pub(super) margin: f64,
    /// Where the interval bends from exponential to straight; at most 1 means straight throughout.
    knee: f64,
    /// Units below the reserve at which it bends.
    knee_depth: f64,
}

impl PaceParameters {
    /// The parameters for `quota`, with `reserve` units instead of the usual number if given.
    pub(super) fn new(quota: Quota, reserve: Option<u64>) -> Self {
        let burst = quota.burst() as f64;
        let period_ns = quota.period().as_nanos() as f64;
        let unit_ns = period_ns / quota.units() as f64;
        let wanted_knee = ROUND_TRIP_S * NANOS_PER_S / unit_ns;
        let reserve = reserve_units(burst, wanted_knee, reserve);
        let knee = knee_within(wanted_knee, reserve);
        let knee_depth = if knee > 1.0 { knee * ln(knee) } else { 0.0 };
        Self {
            burst,
            units: quota.units() as f64,
            period_ns,
            unit_ns,
            reserve,
            margin: reserve / 4.0,
            knee,
            knee_depth,
        }
    }

    /// Units of refill to wait between two requests at `depth` units below the reserve.
    ///
    /// Straight with slope 1 where a unit takes longer than a round trip: that is the ticket law.
    /// At higher rates many requests are under way before the first answer is back, and slope 1
    /// would overshoot; the exponential's slope is a fraction of its value, which stays stable for
    /// round trips up to [`ROUND_TRIP_S`] whatever the number of clients.
    pub(super) fn spacing(&self, depth: f64) -> f64 {
        if self.knee <= 1.0 {
            depth.max(0.0)
        } else if depth < self.knee_depth {
            exp(depth / self.knee)
        } else {
            self.knee + depth - self.knee_depth
        }
    }
}

fn reserve_units(burst: f64, knee: f64, wanted: Option<u64>) -> f64 {
    let usual = (burst / 70.0).clamp(16.0, 128.0).floor();
    let reserve = match wanted {
        Some(units) => units as f64,
        None if knee > 1.0 => usual.max(CLIENTS) + (knee * ln(knee)).floor(),
        None => usual,
    };
    // More than a part of the bucket would forbid bursts that the quota allows. Where the bucket
    // is small for the rate, bursts are short anyway and steadiness is worth more.
    let part = if knee > 1.0 { 0.8 } else { 0.4 };
    reserve.clamp(0.0, part * burst)
}

/// The largest knee that leaves some of the reserve to the straight part.
fn knee_within(wanted: f64, reserve: f64) -> f64 {
    let mut knee = wanted;
    while knee > 1.0 && knee * ln(knee) > reserve * 0.85 {
        knee *= 0.9;
    }
    knee
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn params(units: u64, period_s: u64) -> PaceParameters {
        PaceParameters::new(Quota::new(units, Duration::from_secs(period_s)).unwrap(), None)
    }

    #[test]
    fn the_reserve_is_a_fixed_function_of_the_quota() {
        assert_eq!(params(4_500, 3_600).reserve, 64.0);
        assert_eq!(params(60, 60).reserve, 16.0);
        assert_eq!(params(20, 60).reserve, 8.0);
        assert_eq!(params(100_000, 86_400).reserve, 128.0);
        assert_eq!(params(1, 86_400).reserve, 0.4);
    }

    #[test]
    fn at_low_rates_one_unit_of_level_is_one_slot() {
        let params = params(4_500, 3_600);
        assert_eq!(
            (params.spacing(5.0), params.spacing(0.0), params.spacing(-9.0)),
            (5.0, 0.0, 0.0)
        );
    }

    #[test]
    fn at_high_rates_the_curve_is_continuous_and_rises() {
        let params = params(100_000, 1_000);
        assert!(params.knee > 24.0 && params.reserve > params.knee_depth);
        let mut last = params.spacing(-200.0);
        for step in -1_999..3_000 {
            let next = params.spacing(f64::from(step) / 10.0);
            assert!(next > last && next - last < 0.11, "step {step}: {last} to {next}");
            last = next;
        }
    }

    #[test]
    fn a_burst_smaller_than_the_usual_reserve_is_still_usable() {
        let quota = Quota::with_burst(1_000, Duration::from_secs(1), 10).unwrap();
        let params = PaceParameters::new(quota, None);
        assert_eq!(params.reserve, 8.0);
        assert!(params.knee >= 1.0 && params.knee_depth < params.reserve);
    }
}
