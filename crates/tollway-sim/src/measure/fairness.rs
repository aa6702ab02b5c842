//! How equally units were shared.

use std::ops::Range;

/// Jain's index of `shares`: 1 if all are equal, 1/n if one has everything, 1 if there is nothing.
///
/// ```
/// use tollway_sim::measure::jain;
/// assert_eq!(jain([4, 4, 4, 4]), 1.0);
/// assert_eq!(jain([9, 0, 0]), 1.0 / 3.0);
/// ```
pub fn jain(shares: impl IntoIterator<Item = u64>) -> f64 {
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for share in shares {
        let share = share as f64;
        count += 1.0;
        sum += share;
        squares += share * share;
    }
    if squares == 0.0 { 1.0 } else { sum * sum / (count * squares) }
}

/// The sample standard deviation of `values`, zero of fewer than two.
pub(super) fn sample_deviation(values: &[u64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
    let squares: f64 = values.iter().map(|&value| (value as f64 - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}

/// Jain's index in consecutive windows, over those who were there for the whole window.
#[derive(Clone, Debug)]
pub struct Fairness {
    window_ns: u64,
    ends_ns: u64,
    present: Vec<Range<u64>>,
    shares: Vec<u64>,
    indices: Vec<f64>,
}

impl Fairness {
    /// Windows of `window_ns` over members that are present in the given times.
    pub fn new(window_ns: u64, present: Vec<Range<u64>>) -> Self {
        let shares = vec![0; present.len()];
        Self { window_ns, ends_ns: window_ns, present, shares, indices: Vec::new() }
    }

    /// `member` spent `units` at `at_ns`. Times must not go backwards.
    #[inline]
    pub fn spend(&mut self, member: usize, units: u64, at_ns: u64) {
        if at_ns >= self.ends_ns {
            self.advance(at_ns);
        }
        self.shares[member] += units;
    }

    /// The index of every window that is over at `end_ns`.
    pub fn finish(mut self, end_ns: u64) -> Vec<f64> {
        self.advance(end_ns);
        self.indices
    }

    fn advance(&mut self, now_ns: u64) {
        while self.ends_ns <= now_ns {
            let window = self.ends_ns - self.window_ns..self.ends_ns;
            let whole = |times: &Range<u64>| times.start <= window.start && times.end >= window.end;
            let shares = self.present.iter().zip(&self.shares);
            let index = jain(shares.filter(|(times, _)| whole(times)).map(|(_, &share)| share));
            self.indices.push(index);
            self.shares.fill(0);
            self.ends_ns += self.window_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newcomer_counts_from_its_first_whole_window() {
        let mut fairness = Fairness::new(10, vec![0..100, 15..100]);
        fairness.spend(0, 5, 3);
        fairness.spend(0, 5, 12);
        fairness.spend(1, 1, 17);
        fairness.spend(0, 4, 21);
        fairness.spend(1, 4, 29);
        assert_eq!(fairness.finish(30), [1.0, 1.0, 1.0]);
    }

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        // Request counts published with rate_throttle_client's proportional-remaining strategy.
        let counts = [196, 269, 386, 302, 239, 197, 265, 150, 187, 118];
        assert!((sample_deviation(&counts) - 78.44).abs() < 0.01);
    }
}
