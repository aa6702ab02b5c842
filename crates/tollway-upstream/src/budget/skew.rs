//! How far the upstream's clock is from ours, from the `Date` of its answers.
//!
//! `Date` is truncated to a second and was written between the request's leaving and its answer's
//! arrival, so each answer bounds the offset from both sides, and the bounds of several answers
//! together are far narrower than a second:
//!
//! ```text
//!  date - arrived  <=  offset  <  date + 1 s - sent
//! ```
//!
//! Only the lower bound is used: a wait until an instant on the upstream's clock must not end
//! early.

use std::time::Duration;

use tollway_core::Timestamp;

use super::encoding::encoded;

const SECOND_NS: i128 = 1_000_000_000;

/// Bounds on the upstream's time less ours, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Skew {
    bounds: Option<(i128, i128)>,
}

encoded!(Skew { bounds });

impl Skew {
    pub(super) fn observe(&mut self, date: Duration, sent: Timestamp, arrived: Timestamp) {
        let date_ns = date.as_nanos() as i128;
        let least = date_ns - i128::from(arrived.as_nanos());
        let most = date_ns + SECOND_NS - i128::from(sent.as_nanos());
        self.bounds = Some(match self.bounds {
            Some((low, high)) if low.max(least) < high.min(most) => {
                (low.max(least), high.min(most))
            }
            // They contradict each other: a clock was set, or drifted. Begin again.
            _ => (least, most),
        });
    }

    /// Time until an instant on the upstream's clock, at the most; none before the first `Date`.
    pub(super) fn until(&self, instant: Duration, now: Timestamp) -> Option<Duration> {
        let (least, _) = self.bounds?;
        let left = instant.as_nanos() as i128 - (i128::from(now.as_nanos()) + least);
        Some(Duration::from_nanos(u64::try_from(left.max(0)).unwrap_or(u64::MAX)))
    }
}
