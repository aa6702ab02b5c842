//! What stands in while the store is gone: this process's part of every limit, not an open door.
//!
//! The local ledger learns from scaled answers: of a limit of 50 that five processes share it is
//! told 10. Where there are more processes than requests, each goes once in several windows.

use std::time::Duration;

use super::ledger::Pending;
use crate::budget::{Fate, Permit, Settle};
use crate::profile::{Observation, Reading};

/// A permit of the local ledger, whose answer counts for one of so many processes.
pub(super) struct FallbackPermit {
    pub(super) permit: Permit,
    pub(super) processes: u32,
    /// What the store is told of it when it is back.
    pub(super) pending: Pending,
}

impl Settle for FallbackPermit {
    fn settle(self: Box<Self>, fate: Fate<'_>) {
        let Self { permit, processes, pending } = *self;
        pending.end(fate);
        match fate {
            Fate::Answered(observation) => {
                permit.complete(&scaled(observation, u64::from(processes.max(1))));
            }
            Fate::Abandoned => drop(permit),
            Fate::NeverSent => permit.cancel(),
        }
    }
}

/// What one of so many processes is told.
pub(super) fn scaled(observation: &Observation, processes: u64) -> Observation {
    let mut part = observation.clone();
    for reading in &mut part.readings {
        scale(reading, processes);
    }
    part
}

fn scale(reading: &mut Reading, processes: u64) {
    let Some(limit) = reading.limit else {
        reading.remaining = reading.remaining.map(|left| left / processes);
        return;
    };
    let share = (limit / processes).max(1);
    reading.limit = Some(share);
    reading.remaining = reading.remaining.map(|left| (left / processes).min(share));
    // One request in so many windows.
    let windows = u32::try_from(processes.div_ceil(limit.max(1))).unwrap_or(u32::MAX);
    if windows > 1 {
        let longer = |time: Duration| time.saturating_mul(windows);
        reading.reset_after = reading.reset_after.map(longer);
        reading.window = reading.window.map(longer);
        reading.resets_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(limit: u64, remaining: u64) -> Reading {
        Reading {
            limit: Some(limit),
            remaining: Some(remaining),
            reset_after: Some(Duration::from_secs(1)),
            ..Reading::default()
        }
    }

    #[test]
    fn parts_of_a_limit_add_up_to_at_most_the_limit() {
        for (limit, processes) in [(50, 5), (5, 3), (1, 1), (7, 7)] {
            let mut part = reading(limit, limit - 1);
            scale(&mut part, processes);
            assert!(part.limit.unwrap() * processes <= limit, "{limit} by {processes}");
            assert!(part.remaining.unwrap() * processes < limit);
        }
    }

    #[test]
    fn more_processes_than_requests_take_turns_of_several_windows() {
        let mut part = reading(2, 1);
        scale(&mut part, 5);
        assert_eq!(part.limit, Some(1));
        assert_eq!(part.reset_after, Some(Duration::from_secs(3)));
    }
}
