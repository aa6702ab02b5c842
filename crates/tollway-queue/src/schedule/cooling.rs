//! When the units of a call are free again: a window after its answer, or at an edge of a grid.
//!
//! ```text
//!   after:    answer |<------ window ------>| free
//!   at edges: answer |      early ~~ late           an edge of the upstream lies between the two
//!                    |            ^ free
//! ```
//!
//! An upstream with fixed windows counts a call at some moment before its answer. What was answered
//! before an edge is counted before it, and free at it. Where the edge lies is known as well as a
//! refused call could tell: its wait ends at the edge, and began between dispatch and answer. So
//! what was answered before `early` is free at `late`, and what was answered in between, or later,
//! counts in the next window too. Waits that contradict each other come from no fixed windows:
//! units are free a window after their answer then, which is safe for all that count so many per
//! window.

use std::time::Duration;

use tollway_core::Timestamp;

/// How long an edge that was told counts: clocks drift apart, and idle groups are to be forgotten.
pub(crate) const EDGE_KEPT: Duration = Duration::from_secs(86_400);

/// When the units of a call are free again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cooling {
    /// So long after the answer.
    After(Duration),
    /// At the next edge of windows of this length.
    AtEdge(Duration, Edge),
}

impl Cooling {
    /// When what was answered at `at` is free.
    pub(crate) fn frees(self, at: Timestamp) -> Timestamp {
        match self {
            Self::After(window) => at.after(window),
            Self::AtEdge(window, edge) => edge.next(at, window),
        }
    }

    pub(crate) const fn window(self) -> Duration {
        match self {
            Self::After(window) | Self::AtEdge(window, _) => window,
        }
    }
}

/// Between which moments an edge of the upstream's windows lies; the others lie whole windows
/// apart. The epoch, until an upstream has told one. If `early` is after `late`, what was told fits
/// no such windows: the upstream counts in another way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) early: Timestamp,
    pub(crate) late: Timestamp,
}

impl Edge {
    /// The edge that the end of a `wait` is, of which a call was told that was made at `made` and
    /// answered at `now`.
    pub(crate) fn told(made: Timestamp, wait: Duration, now: Timestamp, window: Duration) -> Self {
        // A wait may have been rounded up: to whole milliseconds, or seconds.
        let is_whole = wait.subsec_nanos() == 0;
        let rounded = if is_whole { Duration::from_secs(1) } else { Duration::from_millis(1) };
        let late = now.after(wait);
        let early = made.after(wait).before(rounded).min(late);
        Self { early: early.max(late.before(window)), late }
    }

    /// What both this and the one that was told `before` allow.
    pub(crate) fn narrowed_by(self, before: Option<Self>, window: Duration) -> Self {
        match before {
            None => self,
            Some(before) if !before.is_there() => before,
            Some(before) => {
                let early = before.early_after(self.late.before(window), window);
                let late = early.after(before.late.since(before.early));
                Self { early: self.early.max(early), late: self.late.min(late) }
            }
        }
    }

    /// Whether what was told fits fixed windows.
    pub(crate) fn is_there(self) -> bool {
        self.early <= self.late
    }

    /// The first edge of which it is sure that what was answered at `at` was counted before it.
    fn next(self, at: Timestamp, window: Duration) -> Timestamp {
        self.early_after(at, window).after(self.late.since(self.early))
    }

    /// The first moment after `at` that lies whole windows from `early`.
    fn early_after(self, at: Timestamp, window: Duration) -> Timestamp {
        let window_ns = (window.as_nanos() as u64).max(1);
        let phase_ns = self.early.as_nanos() % window_ns;
        let Some(past_ns) = at.as_nanos().checked_sub(phase_ns) else {
            return Timestamp::from_nanos(phase_ns);
        };
        let windows = past_ns / window_ns + 1;
        Timestamp::from_nanos(windows.saturating_mul(window_ns).saturating_add(phase_ns))
    }

    /// The clock was set back by `by`.
    pub(crate) fn set_back(self, by: Duration) -> Self {
        Self { early: self.early.before(by), late: self.late.before(by) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn what_is_answered_is_free_at_the_next_edge_that_is_surely_behind_it() {
        let epoch = Cooling::AtEdge(WINDOW, Edge::default());
        assert_eq!(
            [0, 9_999, 10_000].map(|ms| epoch.frees(at(ms))),
            [at(10_000), at(10_000), at(20_000)]
        );
        let told = Edge::told(at(4_000), Duration::from_millis(1_500), at(4_200), WINDOW);
        assert_eq!(told, Edge { early: at(5_499), late: at(5_700) });
        let told = Cooling::AtEdge(WINDOW, told);
        assert_eq!(
            [0, 5_498, 5_499, 5_650].map(|ms| told.frees(at(ms))),
            [at(5_700), at(5_700), at(15_700), at(15_700)]
        );
    }

    #[test]
    fn a_second_wait_tells_the_edge_better() {
        let first = Edge { early: at(5_000), late: at(6_000) };
        let second = Edge { early: at(25_400), late: at(26_800) };
        let both = second.narrowed_by(Some(first), WINDOW);
        assert_eq!(both, Edge { early: at(25_400), late: at(26_000) });
        let elsewhere = Edge { early: at(38_000), late: at(38_100) };
        let none = elsewhere.narrowed_by(Some(both), WINDOW);
        assert!(!none.is_there() && none.narrowed_by(Some(none), WINDOW) == none, "{none:?}");
    }

    #[test]
    fn a_wait_in_whole_seconds_may_have_been_rounded_up() {
        let told = Edge::told(at(4_000), Duration::from_secs(2), at(4_200), WINDOW);
        assert_eq!(told, Edge { early: at(5_000), late: at(6_200) });
    }
}
