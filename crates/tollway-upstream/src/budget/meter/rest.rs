//! A meter whose bucket is idle: as few bytes as possible.

use tollway_core::Timestamp;

use super::{Kind, Meter, Witness};
use crate::budget::encoding::encoded;
use crate::profile::Dimension;

/// What is kept of a meter while its bucket is idle.
#[derive(Clone, Copy, Debug)]
pub(in crate::budget) struct Rest {
    pub(in crate::budget) dimension: u8,
    pub(in crate::budget) part: u8,
    kind: Kind,
    doubts: bool,
    limit: u32,
    remaining: u32,
    window_ms: u32,
    early_ms: u32,
    at_ns: u64,
    resets_ns: u64,
}

encoded!(Rest {
    dimension,
    part,
    kind,
    doubts,
    limit,
    remaining,
    window_ms,
    early_ms,
    at_ns,
    resets_ns,
});

impl Meter {
    /// Whether there is nothing to remember that [`Rest`] does not hold.
    pub(in crate::budget) fn can_rest(&self, now: Timestamp) -> bool {
        self.in_flight == 0
            && self.unseen_units(now) == 0
            // Two that overlapped cannot be kept as one without loss; one of them is over soon.
            && self.live(now).count() <= 1
            && !self.is_part_taken(now)
            && self.model.as_ref().is_none_or(|model| model.is_empty(now))
    }

    pub(in crate::budget) fn rest(&self, now: Timestamp) -> Rest {
        let narrow = |wide: u64| u32::try_from(wide).unwrap_or(u32::MAX);
        let least = self.live(now).map(|witness| witness.remaining).min();
        Rest {
            dimension: self.dimension,
            part: self.part,
            kind: self.kind,
            doubts: self.doubts,
            limit: narrow(self.limit),
            remaining: narrow(least.unwrap_or(self.limit)),
            window_ms: narrow(self.window_ns.div_ceil(1_000_000)),
            early_ms: self
                .live(now)
                .map(|witness| narrow(witness.early_ns.div_ceil(1_000_000)))
                .max()
                .unwrap_or(0),
            at_ns: self.live(now).map(|witness| witness.at_ns).max().unwrap_or(0),
            resets_ns: self.live(now).map(|witness| witness.resets_ns).max().unwrap_or(0),
        }
    }

    /// The meter that `rest` was made of, where its witnesses were one.
    pub(in crate::budget) fn wake(rest: &Rest, of: &Dimension) -> Self {
        let mut meter = Self::new(rest.dimension, rest.part, of);
        (meter.kind, meter.doubts) = (rest.kind, rest.doubts);
        meter.limit = u64::from(rest.limit);
        meter.noted_limit = meter.limit;
        meter.window_ns = u64::from(rest.window_ms) * 1_000_000;
        if rest.resets_ns > 0 {
            meter.witnesses.push(Witness {
                event: 0,
                remaining: u64::from(rest.remaining),
                at_ns: rest.at_ns,
                resets_ns: rest.resets_ns,
                early_ns: u64::from(rest.early_ms) * 1_000_000,
                resets_at: None,
                anchored: false,
            });
        }
        meter
    }
}

impl Rest {
    #[cfg(feature = "redis")]
    pub(in crate::budget) fn resets_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.resets_ns)
    }

    /// Whether it says anything that a new meter would not, except the limit.
    pub(in crate::budget) fn says_something(&self, now: Timestamp) -> bool {
        self.resets_ns > now.as_nanos() && self.remaining < self.limit
    }

    /// Whether forgetting it would forgive something.
    pub(in crate::budget) fn is_spent(&self, now: Timestamp) -> bool {
        self.resets_ns > now.as_nanos() && self.remaining == 0
    }
}
