//! The leaky bucket, drip after drip.

use num_bigint::BigInt;
use tollway_core::leaky_bucket::LeakyBucket;

use super::Model;
use super::change::Remains;

#[derive(Clone)]
pub(super) struct Bucket {
    size: BigInt,
    drip_size: BigInt,
    interval: BigInt,
    level: BigInt,
    /// Only a bucket with something in it drips. In an empty one it is an interval after the moment
    /// up to which the bucket was brought.
    next_drip: BigInt,
    is_used: bool,
}

impl Bucket {
    pub(super) fn new(bucket: &LeakyBucket) -> Self {
        Self {
            size: bucket.size().into(),
            drip_size: bucket.drip_size().into(),
            interval: bucket.interval().as_nanos().into(),
            level: BigInt::ZERO,
            next_drip: bucket.interval().as_nanos().into(),
            is_used: false,
        }
    }

    /// The bucket as it will be.
    fn at(&self, at: &BigInt) -> Self {
        let mut bucket = self.clone();
        if bucket.level > BigInt::ZERO && bucket.next_drip <= *at {
            // All at once: a level that was carried from a larger limit may be astronomic.
            let due: BigInt = (at - &bucket.next_drip) / &bucket.interval + 1;
            let drips = due.min((&bucket.level + &bucket.drip_size - 1) / &bucket.drip_size);
            bucket.level = (bucket.level - &drips * &bucket.drip_size).max(BigInt::ZERO);
            bucket.next_drip += drips * &bucket.interval;
        }
        bucket
    }
}

impl Bucket {
    /// The bucket with this level as of `at`, and with the next drip of a bucket that drips as
    /// often.
    pub(super) fn having_used(
        bucket: &LeakyBucket,
        level: BigInt,
        phase: Option<(BigInt, BigInt)>,
        at: &BigInt,
    ) -> Self {
        let bucket = Self::new(bucket);
        let phase = phase.filter(|(interval, _)| *interval == bucket.interval);
        let next_drip = phase.map_or_else(|| at + &bucket.interval, |(_, next_drip)| next_drip);
        Self { level, next_drip, is_used: true, ..bucket }
    }
}

impl Model for Bucket {
    fn remains(&self, at: &BigInt) -> Remains {
        let Self { level, interval, next_drip, .. } = self.at(at);
        Remains::Drips { level, interval, next_drip }
    }

    fn free(&self, at: &BigInt) -> BigInt {
        (&self.size - self.at(at).level).max(BigInt::ZERO)
    }

    fn is_new(&self, at: &BigInt) -> bool {
        self.at(at).level == BigInt::ZERO
    }

    fn take(&mut self, units: &BigInt, _hold: u64, at: &BigInt) -> BigInt {
        *self = self.at(at);
        self.is_used = true;
        if self.level == BigInt::ZERO {
            self.next_drip = self.moment(at) + &self.interval;
        }
        let taken = units.clone().min((&self.size - &self.level).max(BigInt::ZERO));
        self.level += &taken;
        taken
    }

    fn give_back(&mut self, units: &BigInt, _taken_at: Option<&BigInt>, at: &BigInt) {
        let bucket = self.at(at);
        if bucket.level == BigInt::ZERO {
            return;
        }
        *self = bucket;
        self.level = (&self.level - units).max(BigInt::ZERO);
        if self.level == BigInt::ZERO {
            self.next_drip = self.moment(at) + &self.interval;
        }
    }

    fn clear(&mut self, at: &BigInt) {
        if self.is_used {
            self.level = BigInt::ZERO;
            self.next_drip = self.moment(at) + &self.interval;
        }
    }

    fn moment(&self, at: &BigInt) -> BigInt {
        (&self.next_drip - &self.interval).max(at.clone())
    }
}
