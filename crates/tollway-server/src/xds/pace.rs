//! How long to wait: before the server is connected to again, and between two of its responses.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

use tokio::time::Instant;

/// Of the time, reading takes at most one part in so many.
const READING_SHARE: u32 = 4;
const GAP_FIRST: Duration = Duration::from_millis(50);
const GAP_MAX: Duration = Duration::from_secs(1);

/// The pause after so many failures in a row: doubled with each, at most `longest`, and of that
/// between half and all, as `random` says. All nodes of a fleet lose their server at the same time,
/// and must not come back at the same time.
pub(super) fn pause(failures: u32, random: u64, first: Duration, longest: Duration) -> Duration {
    let doubled = 2_u32.saturating_pow(failures.saturating_sub(1).min(16));
    let whole = first.saturating_mul(doubled).min(longest);
    let half = whole / 2;
    let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
    half + Duration::from_nanos(random % nanos.saturating_add(1))
}

/// Any number.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Responses of one stream. One that comes after a quiet time is not kept waiting; a server that
/// sends without end gets one taken per second, and no more than a share of one processor.
#[derive(Debug, Default)]
pub(super) struct Pace {
    gap: Duration,
    rested_at: Option<Instant>,
}

impl Pace {
    /// How long to rest after a response that came at `began` and took so long to read.
    pub(super) fn rest(&mut self, began: Instant, took: Duration) -> Duration {
        let quiet = self.rested_at.map(|at| began.saturating_duration_since(at));
        self.gap = match quiet {
            Some(quiet) if quiet < GAP_MAX => (self.gap * 2).clamp(GAP_FIRST, GAP_MAX),
            _ => Duration::ZERO,
        };
        let rest = self.gap.max(took * (READING_SHARE - 1));
        self.rested_at = Some(began + took + rest);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_are_spread_over_half_of_it() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_secs(5));
        let spread = |failures| {
            let of = |random| pause(failures, random, first, longest).as_millis();
            // A random number below the half, at it, and far beyond it.
            (of(0), (0..1_000).map(|n| of(n * 7_919_123)).max().unwrap())
        };
        assert_eq!(spread(1).0, 50);
        assert_eq!(
            [2, 3, 6, 7, 40, u32::MAX].map(|n| spread(n).0),
            [100, 200, 1_600, 2_500, 2_500, 2_500]
        );
        for failures in [1, 2, 7, 40] {
            let whole = 2 * spread(failures).0;
            let most = spread(failures).1;
            assert!(most <= whole && most > whole * 9 / 10, "{failures}: {most} of {whole}");
        }
        assert_eq!(pause(1, 9, Duration::ZERO, longest), Duration::ZERO);
    }

    #[test]
    fn a_response_after_a_quiet_time_is_answered_at_once() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert_eq!(pace.rest(start, Duration::ZERO), Duration::ZERO);
        let later = start + Duration::from_secs(2);
        assert_eq!(pace.rest(later, Duration::from_millis(2)), Duration::from_millis(6));
    }

    #[test]
    fn a_storm_of_responses_is_slowed_to_one_a_second_and_a_share_of_a_processor() {
        let (mut pace, mut now) = (Pace::default(), Instant::now());
        let mut rests = Vec::new();
        for _ in 0..8 {
            let rest = pace.rest(now, Duration::ZERO);
            now += rest;
            rests.push(rest.as_millis());
        }
        assert_eq!(rests, [0, 50, 100, 200, 400, 800, 1_000, 1_000]);
        let long = Duration::from_secs(2);
        assert_eq!(pace.rest(now, long), Duration::from_secs(6), "of a large one");
    }
}
