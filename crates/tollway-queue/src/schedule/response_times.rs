//! How long responses take, as far as the queue has seen.

use std::time::Duration;

use crate::QueueSettings;

/// How long responses take: the mean of late ones, and the slowest, which fades.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResponseTimes {
    mean_ns: u64,
    slowest_ns: u64,
    /// How many were seen, up to [`ResponseTimes::SEEN_MAX`].
    seen: u8,
}

impl ResponseTimes {
    /// How many of the last responses the mean is of, in effect.
    const SEEN_MAX: u8 = 64;

    pub(crate) fn observe(&mut self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.seen = (self.seen + 1).min(Self::SEEN_MAX);
        let step = (i128::from(took_ns) - i128::from(self.mean_ns)) / i128::from(self.seen);
        self.mean_ns = (i128::from(self.mean_ns) + step) as u64;
        self.slowest_ns = took_ns.max(self.slowest_ns - self.slowest_ns / 256);
    }

    /// What a response takes on average; a guess, as long as none was seen.
    pub(crate) fn mean(&self, told: Duration) -> Duration {
        if self.seen == 0 {
            return told.min(QueueSettings::RESPONSE_UNSEEN);
        }
        Duration::from_nanos(self.mean_ns)
    }

    pub(crate) fn slowest(&self, told: Duration) -> Duration {
        told.max(Duration::from_nanos(self.slowest_ns))
    }
}
