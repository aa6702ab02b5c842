//! The sliding window, with every admission kept for ever.

use num_bigint::BigInt;
use num_rational::BigRational;
use tollway_core::sliding_window::SlidingWindow;

use super::Model;
use super::change::Remains;

pub(super) struct Log {
    limit: BigInt,
    buckets: BigInt,
    bucket_ns: BigRational,
    admissions: Vec<Admission>,
    /// The bucket of the last change.
    as_of: BigInt,
}

struct Admission {
    bucket: BigInt,
    units: BigInt,
}

impl Log {
    pub(super) fn new(window: &SlidingWindow) -> Self {
        let period_ns = BigInt::from(window.period().as_nanos());
        Self {
            limit: window.limit().into(),
            buckets: window.buckets().into(),
            bucket_ns: BigRational::new(period_ns, window.buckets().into()),
            admissions: Vec::new(),
            as_of: BigInt::ZERO,
        }
    }

    /// The bucket as of which somebody with the reading `at` is answered.
    fn current(&self, at: &BigInt) -> BigInt {
        self.bucket(at).max(self.as_of.clone())
    }

    /// The bucket that a moment falls into, counted from the epoch.
    fn bucket(&self, at: &BigInt) -> BigInt {
        (BigRational::from_integer(at.clone()) / &self.bucket_ns).floor().to_integer()
    }

    /// What was admitted in the current bucket and those before it that belong to the window.
    fn counted(&self, at: &BigInt) -> BigInt {
        let oldest = self.current(at) - &self.buckets + 1;
        let counts = |admission: &&Admission| admission.bucket >= oldest;
        self.admissions.iter().filter(counts).map(|admission| &admission.units).sum()
    }
}

impl Log {
    /// The window in which these were admitted, each at a time and in their order.
    pub(super) fn having_admitted(
        window: &SlidingWindow,
        admitted: Vec<(BigInt, BigInt)>,
        keeps_all: bool,
        at: &BigInt,
    ) -> Self {
        let mut log = Self::new(window);
        log.as_of = log.bucket(at);
        let oldest: BigInt = &log.as_of - &log.buckets + 1;
        for (taken_at, units) in admitted {
            let bucket = log.bucket(&taken_at).min(log.as_of.clone());
            let bucket = if keeps_all { bucket.max(oldest.clone()) } else { bucket };
            log.admissions.push(Admission { bucket, units });
        }
        log
    }
}

impl Model for Log {
    /// Each counts as taken at the last moment of its bucket.
    fn remains(&self, at: &BigInt) -> Remains {
        let oldest = self.current(at) - &self.buckets + 1;
        let live = self.admissions.iter().filter(|admission| admission.bucket >= oldest);
        let last = |bucket: &BigInt| {
            (BigRational::from_integer(bucket + 1) * &self.bucket_ns).ceil().to_integer() - 1
        };
        Remains::Admitted(live.map(|it| (last(&it.bucket), it.units.clone())).collect())
    }

    fn free(&self, at: &BigInt) -> BigInt {
        (&self.limit - self.counted(at)).max(BigInt::ZERO)
    }

    fn is_new(&self, at: &BigInt) -> bool {
        self.counted(at) == BigInt::ZERO
    }

    fn take(&mut self, units: &BigInt, _hold: u64, at: &BigInt) -> BigInt {
        self.as_of = self.current(at);
        self.admissions.push(Admission { bucket: self.as_of.clone(), units: units.clone() });
        units.clone()
    }

    /// From the bucket in which they were taken, or else the oldest that still count.
    fn give_back(&mut self, units: &BigInt, taken_at: Option<&BigInt>, at: &BigInt) {
        let current = self.current(at);
        let oldest = &current - &self.buckets + 1;
        let wanted = taken_at.map(|taken_at| self.bucket(taken_at));
        let mut left = units.clone();
        let live = self.admissions.iter_mut().filter(|admission| admission.bucket >= oldest);
        for admission in live {
            if wanted.as_ref().is_none_or(|wanted| *wanted == admission.bucket) {
                let back = left.clone().min(admission.units.clone());
                admission.units -= &back;
                left -= back;
            }
        }
        if left < *units {
            self.as_of = current;
        }
    }

    fn clear(&mut self, at: &BigInt) {
        let oldest = &self.as_of - &self.buckets + 1;
        let something =
            |admission: &Admission| admission.bucket >= oldest && admission.units > BigInt::ZERO;
        if self.admissions.iter().any(something) {
            self.as_of = self.current(at);
            self.admissions.clear();
        }
    }

    fn moment(&self, at: &BigInt) -> BigInt {
        if self.bucket(at) >= self.as_of {
            return at.clone();
        }
        (BigRational::from_integer(self.as_of.clone()) * &self.bucket_ns).ceil().to_integer()
    }
}
