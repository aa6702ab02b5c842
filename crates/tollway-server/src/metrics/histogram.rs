//! A histogram of durations with fixed buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Exposition, STRIPES, stripe};

/// Upper bounds in nanoseconds: from what a decision in memory takes to what a lost store takes.
const BOUNDS_NS: [u64; 10] = [
    1_000,
    5_000,
    25_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    25_000_000,
    100_000_000,
    1_000_000_000,
];

/// Durations counted by bucket, by each of a few threads for itself.
#[derive(Debug, Default)]
pub(crate) struct Histogram([Share; STRIPES]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Share {
    buckets: [AtomicU64; Histogram::BUCKETS],
    sum_ns: AtomicU64,
}

impl Histogram {
    /// How many buckets there are; the last has no upper bound.
    pub(crate) const BUCKETS: usize = BOUNDS_NS.len() + 1;

    /// The upper bound of a bucket, in nanoseconds.
    pub(crate) fn bound_ns(bucket: usize) -> Option<u64> {
        BOUNDS_NS.get(bucket).copied()
    }

    /// How many durations fell into each bucket.
    pub(crate) fn counts(&self) -> [u64; Self::BUCKETS] {
        let count = |bucket: usize| {
            self.0.iter().map(|share| share.buckets[bucket].load(Ordering::Relaxed)).sum()
        };
        std::array::from_fn(count)
    }

    /// Counts one duration.
    pub(crate) fn observe(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_NS.partition_point(|&bound| bound < nanos);
        let share = &self.0[stripe()];
        share.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        share.sum_ns.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Writes the samples of the family that was begun in `text`.
    pub(crate) fn write(&self, labels: &[(&str, &str)], text: &mut Exposition) {
        let mut count = 0;
        for (index, bucket) in self.counts().into_iter().enumerate() {
            count += bucket;
            let bound = match BOUNDS_NS.get(index) {
                Some(&nanos) => (nanos as f64 / 1e9).to_string(),
                None => "+Inf".to_owned(),
            };
            let mut labels = labels.to_vec();
            labels.push(("le", &bound));
            text.sample_of("_bucket", &labels, count as f64);
        }
        let sum_ns: u64 = self.0.iter().map(|share| share.sum_ns.load(Ordering::Relaxed)).sum();
        text.sample_of("_sum", labels, sum_ns as f64 / 1e9);
        text.sample_of("_count", labels, count as f64);
    }
}
