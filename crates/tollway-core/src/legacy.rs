//! Limits in the older `{max, duration, minInterval}` form, translated into leaky buckets.
//!
//! | given | translated into |
//! |---|---|
//! | `max` per `duration` | a bucket of `max`, one unit dripping every `duration / max` |
//! | `minInterval` alone | a bucket of one unit, dripping every `minInterval` |
//! | all three | both: the bucket drips in steps of about `minInterval`, and a second bucket of one unit holds the spacing |
//! | neither, or a zero `duration` | no limit |
//!
//! Steps and intervals are rounded to the nearest whole millisecond, as the older service rounded
//! them and users of it expect: the one place where a rounding may favour the requester, by less
//! than half a millisecond per interval.

use core::time::Duration;

use crate::leaky_bucket::{LeakyBucket, LeakyBucketError};

/// A limit in the older form. Times are whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Legacy {
    /// Calls per duration.
    pub max: Option<u64>,
    /// The duration, in milliseconds.
    pub duration_ms: Option<u64>,
    /// The shortest time between two calls, in milliseconds.
    pub min_interval_ms: Option<u64>,
}

/// What a [`Legacy`] limit becomes: charge every bucket that is there, all or nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translation {
    /// Holds `max` per `duration`.
    pub bucket: Option<LeakyBucket>,
    /// Holds the minimum interval between two calls.
    pub spacing: Option<LeakyBucket>,
}

impl Legacy {
    /// The leaky buckets that enforce this limit; none at all means unlimited.
    ///
    /// # Errors
    ///
    /// If `max` is zero, or a bucket would be out of bounds.
    pub fn translate(self) -> Result<Translation, LeakyBucketError> {
        let spacing_ms = self.min_interval_ms.filter(|&interval| interval > 0);
        let spacing = match spacing_ms {
            Some(interval_ms) => Some(bucket(1, 1, interval_ms)?),
            None => None,
        };
        let Some((max, duration_ms)) = self.max.zip(self.duration_ms) else {
            return Ok(Translation { bucket: None, spacing });
        };
        if max == 0 {
            return Err(LeakyBucketError::Size);
        }
        if duration_ms == 0 {
            return Ok(Translation { bucket: None, spacing });
        }
        let step_ms = spacing_ms.unwrap_or(round(duration_ms.into(), max.into())).max(1);
        // max / (duration / step) and duration / (max / drip), without the inner fractions.
        let drip = round(u128::from(max) * u128::from(step_ms), duration_ms.into()).max(1);
        let interval_ms = round(u128::from(duration_ms) * u128::from(drip), max.into()).max(1);
        Ok(Translation { bucket: Some(bucket(max, drip, interval_ms)?), spacing })
    }
}

fn bucket(size: u64, drip_size: u64, interval_ms: u64) -> Result<LeakyBucket, LeakyBucketError> {
    LeakyBucket::new(size, drip_size, Duration::from_millis(interval_ms))
}

/// `dividend / divisor` to the nearest integer, halves up, at most [`u64::MAX`].
fn round(dividend: u128, divisor: u128) -> u64 {
    u64::try_from((dividend * 2 + divisor) / (divisor * 2)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cost, Timestamp};

    fn translated(max: u64, duration_ms: u64, min_interval_ms: Option<u64>) -> Translation {
        let legacy = Legacy { max: Some(max), duration_ms: Some(duration_ms), min_interval_ms };
        legacy.translate().unwrap()
    }

    #[test]
    fn the_six_worked_translations_hold() {
        for (max, duration_ms, min_interval_ms, size, interval_ms, drip_size) in [
            (10, 10_000, None, 10, 1_000, 1),
            (10, 5_000, Some(1_000), 10, 1_000, 2),
            (4_096, 2_000, None, 4_096, 1, 2),
            (300, 3_600_000, None, 300, 12_000, 1),
            (60, 3_600_000, Some(1_000), 60, 60_000, 1),
            (1, 1_000, None, 1, 1_000, 1),
        ] {
            let expected = bucket(size, drip_size, interval_ms).unwrap();
            let translation = translated(max, duration_ms, min_interval_ms);
            assert_eq!(translation.bucket, Some(expected), "{max}/{duration_ms}");
            assert_eq!(translation.spacing.is_some(), min_interval_ms.is_some());
        }
    }

    #[test]
    fn a_minimum_interval_alone_is_a_bucket_of_one() {
        let legacy = Legacy { min_interval_ms: Some(1_000), ..Legacy::default() };
        let translation = legacy.translate().unwrap();
        assert_eq!(translation.spacing, Some(bucket(1, 1, 1_000).unwrap()));
        assert_eq!(translation.bucket, None);
    }

    #[test]
    fn nothing_given_or_a_zero_time_is_no_limit() {
        for (max, duration_ms, min_interval_ms) in [
            (None, None, None),
            (Some(5), None, None),
            (Some(5), Some(0), None),
            (None, None, Some(0)),
        ] {
            let legacy = Legacy { max, duration_ms, min_interval_ms };
            assert_eq!(legacy.translate(), Ok(Translation::default()));
        }
    }

    #[test]
    fn a_maximum_of_zero_is_refused() {
        let legacy = Legacy { max: Some(0), duration_ms: Some(1), min_interval_ms: None };
        assert_eq!(legacy.translate(), Err(LeakyBucketError::Size));
    }

    #[test]
    fn with_maximum_and_minimum_interval_the_spacing_is_enforced() {
        let spacing = translated(10, 5_000, Some(1_000)).spacing.unwrap();
        let (first, state) =
            spacing.decide(Default::default(), Cost::ONE, Timestamp::from_millis(5_000));
        assert!(first.is_allowed());
        let (early, _) = spacing.decide(state, Cost::ONE, Timestamp::from_millis(5_999));
        assert!(!early.is_allowed());
        let (due, _) = spacing.decide(state, Cost::ONE, Timestamp::from_millis(6_000));
        assert!(due.is_allowed());
    }
}
