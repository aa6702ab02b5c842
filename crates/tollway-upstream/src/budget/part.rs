//! One process's part of every limit, while those who share a credential cannot tell each other.
//!
//! ```text
//!   left of 20, by three processes      part of the first: 7 of 20
//!   20 ──╲                               7 ──╲
//!         ╲__   all take                      ╲__  what it sends itself
//!    3 ──────╲  together                 0 ─────
//! ```
//!
//! **A part is taken once.** Of what the first answer says is left, each process takes its part.
//! Then its part is less by each request that it sends, and more by time alone: if it took a part
//! of what later answers say is left, it would take of the parts of those that were slower, again
//! and again. Parts of what is left at different times add up to at most what is left, because all
//! that was taken meanwhile is missing in the later answers.
//!
//! **What was heard** from others is no answer: it may be old. One request goes first, whose answer
//! tells what there is a part of.

use std::num::NonZeroU64;
use std::time::Duration;

use super::meter::nanos;

/// Which part of every limit a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OwnPart {
    processes: NonZeroU64,
    rank: u64,
}

impl OwnPart {
    /// The part of one of so many processes; `rank` is its place among them, from 0, and decides
    /// who has what cannot be divided. None if there is but one.
    pub(crate) fn new(processes: u32, rank: u32) -> Option<Self> {
        let processes = NonZeroU64::new(u64::from(processes)).filter(|count| count.get() > 1)?;
        Some(Self { processes, rank: u64::from(rank) })
    }

    /// Its units of a limit.
    pub(super) fn of_limit(self, limit: u64) -> u64 {
        (limit / self.processes + u64::from(self.rank < limit % self.processes)).max(1)
    }

    /// Its units of what is left of a limit.
    pub(super) fn of_left(self, left: u64, limit: u64) -> u64 {
        let units = u128::from(left) * u128::from(self.of_limit(limit)) / u128::from(limit.max(1));
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// Windows in which it may take its units once: more than one where there are more processes
    /// than units.
    pub(super) fn windows(self, limit: u64) -> u32 {
        let windows = self.processes.get().div_ceil(limit.max(1));
        u32::try_from(windows).unwrap_or(u32::MAX)
    }

    /// How long one of its units takes to come back if each of the limit's takes `unit_ns`.
    pub(super) fn unit_ns(self, unit_ns: u64, limit: u64) -> u64 {
        let slower = match self.windows(limit) {
            1 => (u128::from(limit), u128::from(self.of_limit(limit))),
            _ => (u128::from(self.processes.get()), 1),
        };
        let part_ns = (u128::from(unit_ns) * slower.0).div_ceil(slower.1);
        u64::try_from(part_ns).unwrap_or(u64::MAX)
    }

    /// When its units are back if those of the limit are in `reset`, and all take `window_ns`.
    pub(super) fn reset(self, reset: Duration, window_ns: u64, limit: u64) -> Duration {
        let more = u64::from(self.windows(limit) - 1);
        let window_ns = window_ns.max(nanos(reset));
        reset.saturating_add(Duration::from_nanos(window_ns.saturating_mul(more)))
    }

    /// Its units of what is left of a limit that nobody tells.
    pub(super) fn of_unknown(self, left: u64) -> u64 {
        left / self.processes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(processes: u32) -> impl Iterator<Item = OwnPart> {
        (0..processes).filter_map(move |rank| OwnPart::new(processes, rank))
    }

    #[test]
    fn parts_of_a_limit_add_up_to_the_limit() {
        for (limit, processes) in [(50, 5), (5, 3), (7, 7), (20, 3), (1_000, 7)] {
            let sum = |left| parts(processes).map(|part| part.of_left(left, limit)).sum::<u64>();
            assert_eq!(parts(processes).map(|part| part.of_limit(limit)).sum::<u64>(), limit);
            assert!((0..=limit).all(|left| sum(left) <= left), "{limit} by {processes}");
        }
    }

    #[test]
    fn parts_come_back_as_fast_as_the_limit() {
        for (limit, processes) in [(50_u64, 5), (5, 3), (20, 3), (2, 5)] {
            let rate = |part: OwnPart| 1e9 / part.unit_ns(1_000_000_000, limit) as f64;
            let sum: f64 = parts(processes).map(rate).sum();
            assert!(sum <= 1.0 + 1e-9 && sum > 0.999, "{limit} by {processes}: {sum}");
        }
    }

    #[test]
    fn more_processes_than_requests_take_turns_of_several_windows() {
        let part = OwnPart::new(5, 4).expect("there are several");
        assert_eq!(part.of_limit(2), 1);
        let second = Duration::from_secs(1);
        assert_eq!(part.reset(second / 4, nanos(second), 2), second * 9 / 4);
        assert_eq!(OwnPart::new(1, 0), None);
    }
}
