//! Round-trip times.

use std::time::Duration;

use serde::Deserialize;
use tollway_upstream::pace::{Dice, portable};

use crate::scenario::{nanos, text};

/// How long a request and its answer take together. The server decides halfway.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Latency {
    /// Always the same.
    Constant {
        /// The time.
        #[serde(deserialize_with = "text::duration")]
        time: Duration,
    },
    /// Anything between two times, equally likely.
    Uniform {
        /// The shortest time.
        #[serde(deserialize_with = "text::duration")]
        least: Duration,
        /// The longest time.
        #[serde(deserialize_with = "text::duration")]
        most: Duration,
    },
    /// Log-normal: mostly near the median, now and then many times as long.
    LogNormal {
        /// The median.
        #[serde(deserialize_with = "text::duration")]
        median: Duration,
        /// The standard deviation of the logarithm.
        sigma: f64,
    },
}

impl Default for Latency {
    /// About 50 ms, a little different every time.
    fn default() -> Self {
        let (least, most) = (Duration::from_millis(40), Duration::from_millis(60));
        Self::Uniform { least, most }
    }
}

impl Latency {
    /// One round trip.
    pub fn draw(&self, dice: &mut Dice) -> u64 {
        match *self {
            Self::Constant { time } => nanos(time),
            Self::Uniform { least, most } => {
                let width = nanos(most).saturating_sub(nanos(least)) as f64;
                nanos(least).saturating_add((dice.unit() * width) as u64)
            }
            Self::LogNormal { median, sigma } => {
                (nanos(median) as f64 * portable::exp(sigma * normal(dice))) as u64
            }
        }
    }
}

/// A nearly normal deviate: the sum of twelve uniform ones, so within six deviations.
///
/// Exact methods need logarithms and cosines, whose last bits differ between machines.
pub(crate) fn normal(dice: &mut Dice) -> f64 {
    (0..12).map(|_| dice.unit()).sum::<f64>() - 6.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_normal_times_have_the_stated_median_and_spread() {
        let latency = Latency::LogNormal { median: Duration::from_secs(1), sigma: 0.7 };
        let mut dice = Dice::new(3);
        let mut drawn: Vec<u64> = (0..20_001).map(|_| latency.draw(&mut dice)).collect();
        drawn.sort_unstable();
        let quantile = |part: f64| drawn[(20_000.0 * part) as usize] as f64 / 1e9;
        assert!((quantile(0.5) - 1.0).abs() < 0.03, "median {}", quantile(0.5));
        assert!((quantile(0.8413) - 2.0138).abs() < 0.06, "one sigma {}", quantile(0.8413));
    }

    #[test]
    fn uniform_times_stay_between_their_ends() {
        let (least, most) = (Duration::from_millis(20), Duration::from_millis(100));
        let mut dice = Dice::new(4);
        for _ in 0..1_000 {
            let drawn = Latency::Uniform { least, most }.draw(&mut dice);
            assert!((20_000_000..100_000_000).contains(&drawn));
        }
    }
}
