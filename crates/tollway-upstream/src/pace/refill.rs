//! Telling fixed windows from buckets by the resets that a server announces.
//!
//! ```text
//!  announced end   window:  stays where it is, whatever is spent; then jumps by a whole period
//!                  bucket:  moves on by one unit of refill with every unit that anybody spends
//! ```
//!
//! Own requests alone move a bucket's end, so a few of them prove which one it is. Until then an
//! end that a bucket of this size and level could not have makes the pacer careful, nothing more.

use core::time::Duration;

use super::parameters::PaceParameters;

/// Announced ends are whole seconds and requests take time: this much movement is none.
const STILL_NS: u64 = 1_500_000_000;
/// Own spending that would have moved a bucket's end by this much proves a window.
const PROOF_NS: f64 = 4e9;
/// In shorter periods whole seconds prove nothing.
const PERIOD_NS_MIN: f64 = 10e9;

/// What the announced resets show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DetectedRefill {
    /// Nothing yet.
    #[default]
    Nothing,
    /// Fixed windows.
    Window,
    /// A bucket.
    Bucket,
}

/// Watches announced resets.
#[derive(Clone, Debug, Default)]
pub(super) struct RefillDetector {
    end_ns: Option<u64>,
    spent: f64,
    shown: DetectedRefill,
}

impl RefillDetector {
    /// What is proven so far.
    pub(super) const fn shown(&self) -> DetectedRefill {
        self.shown
    }

    /// A quota that ends or is whole `reset` after `now_ns`, with `spent` own units since the
    /// last look.
    pub(super) fn observe(
        &mut self,
        params: &PaceParameters,
        now_ns: u64,
        reset: Duration,
        spent: f64,
    ) {
        let settled = self.shown != DetectedRefill::Nothing || params.period_ns < PERIOD_NS_MIN;
        if settled || is_next_unit(params, reset) {
            return;
        }
        let end_ns = now_ns.saturating_add(reset.as_nanos().min(u128::from(u64::MAX)) as u64);
        let moved_ns = self.end_ns.map_or(u64::MAX, |before_ns| before_ns.abs_diff(end_ns));
        if moved_ns <= STILL_NS {
            self.spent += spent;
            if self.spent * params.unit_ns > PROOF_NS {
                self.shown = DetectedRefill::Window;
            }
            return;
        }
        if (moved_ns as f64) < 0.9 * params.period_ns {
            self.shown = DetectedRefill::Bucket;
        }
        self.end_ns = Some(end_ns);
        self.spent = 0.0;
    }

    /// Forgets the last end, not what is proven: the clock stepped.
    pub(super) fn restart(&mut self) {
        *self = Self { shown: self.shown, ..Self::default() };
    }
}

/// Whether a bucket at this level could not be whole after `reset`, nor one unit better.
pub(super) fn contradicts_bucket(params: &PaceParameters, remaining: f64, reset: Duration) -> bool {
    let reset_ns = reset.as_nanos() as f64;
    let whole_ns = (params.burst - remaining).max(0.0) * params.unit_ns;
    let slack_ns = 2e9 + 2.0 * params.unit_ns;
    params.period_ns >= PERIOD_NS_MIN
        && !is_next_unit(params, reset)
        && (reset_ns - whole_ns).abs() > slack_ns
}

/// Whether `reset` may be the time until one more unit, as draft 10 has it: in a burst that stays
/// put as a window's end does, and proves nothing.
fn is_next_unit(params: &PaceParameters, reset: Duration) -> bool {
    reset.as_nanos() as f64 <= params.unit_ns + 2e9
}

#[cfg(test)]
mod tests {
    use tollway_core::Quota;

    use super::*;

    fn hourly() -> PaceParameters {
        PaceParameters::new(Quota::new(4_500, Duration::from_secs(3_600)).unwrap(), None)
    }

    #[test]
    fn an_end_that_stays_put_while_we_spend_is_a_windows() {
        let mut detector = RefillDetector::default();
        for _ in 0..7 {
            detector.observe(&hourly(), 0, Duration::from_secs(3_600), 1.0);
        }
        assert_eq!(detector.shown(), DetectedRefill::Window);
    }

    #[test]
    fn an_end_that_moves_while_we_spend_is_a_buckets() {
        let mut detector = RefillDetector::default();
        for request in 0..7 {
            detector.observe(&hourly(), 0, Duration::from_millis(3_600_000 + request * 800), 1.0);
        }
        assert_eq!(detector.shown(), DetectedRefill::Bucket);
    }

    #[test]
    fn the_next_window_is_no_sign_of_a_bucket() {
        let mut detector = RefillDetector::default();
        detector.observe(&hourly(), 0, Duration::from_secs(3_600), 1.0);
        detector.observe(&hourly(), 3_600_000_000_000, Duration::from_secs(3_600), 1.0);
        assert_eq!(detector.shown(), DetectedRefill::Nothing);
    }

    #[test]
    fn the_time_to_the_next_unit_proves_nothing() {
        let mut detector = RefillDetector::default();
        for _ in 0..100 {
            detector.observe(&hourly(), 0, Duration::from_secs(1), 1.0);
        }
        assert_eq!(detector.shown(), DetectedRefill::Nothing);
    }

    #[test]
    fn a_full_quota_with_an_hour_to_go_is_no_bucket() {
        assert!(contradicts_bucket(&hourly(), 4_499.0, Duration::from_secs(3_600)));
        assert!(!contradicts_bucket(&hourly(), 4_400.0, Duration::from_secs(80)));
        assert!(!contradicts_bucket(&hourly(), 4_400.0, Duration::from_secs(1)));
    }
}
