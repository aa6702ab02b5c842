//! How much a call will use, by what calls of the same key to the same model used before.
//!
//! Each key and model has two histograms: tokens of output, and by how much the input was more than
//! its estimate. A call is expected to use no more than [`QUANTILE`] of those before it did. Old
//! calls count less and less, and what was used least lately makes room.

use std::collections::HashMap;

/// The share of calls that use no more than is expected of them, in percent.
pub(crate) const QUANTILE: u32 = 90;
/// Keys and models that are remembered.
const KNOWN_MAX: usize = 10_000;
/// At so many calls, all count half.
const CALLS_MAX: u32 = 256;
/// Steps of a histogram: two for each doubling.
const STEPS: usize = 48;
/// The estimate of the input is corrected in sixteenths.
const EVEN: u64 = 16;

/// What is known of all keys and models.
#[derive(Debug, Default)]
pub(crate) struct Estimates {
    known: HashMap<u64, Known>,
    /// Counts up with every call, to tell what was used lately.
    clock: u64,
}

/// What is known of one key and model.
#[derive(Clone, Debug)]
struct Known {
    output: Histogram,
    /// Sixteenths of the estimate that the input was.
    input: Histogram,
    used_at: u64,
}

/// What a call is expected to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) input: u64,
    /// None if no call was seen yet.
    pub(crate) output: Option<u64>,
}

impl Estimates {
    /// What a call whose input is estimated at `input` is expected to use.
    pub(crate) fn expect(&mut self, id: u64, input: u64) -> Expected {
        self.clock += 1;
        let Some(known) = self.known.get_mut(&id) else { return Expected { input, output: None } };
        known.used_at = self.clock;
        let sixteenths = known.input.quantile().max(1);
        let input = input.saturating_mul(sixteenths).div_ceil(EVEN).max(1);
        Expected { input, output: Some(known.output.quantile()) }
    }

    /// What a call used whose input was estimated at `estimate`.
    pub(crate) fn learn(&mut self, id: u64, estimate: u64, input: u64, output: u64) {
        self.clock += 1;
        if !self.known.contains_key(&id) {
            self.make_room();
        }
        let new = Known { output: Histogram::new(), input: Histogram::new(), used_at: 0 };
        let known = self.known.entry(id).or_insert(new);
        known.used_at = self.clock;
        known.output.add(output);
        known.input.add(input.saturating_mul(EVEN).div_ceil(estimate.max(1)));
    }

    /// Forgets the half that was used least lately, once in so many thousand newcomers.
    fn make_room(&mut self) {
        if self.known.len() < KNOWN_MAX {
            return;
        }
        let mut times: Vec<u64> = self.known.values().map(|known| known.used_at).collect();
        let (_, median, _) = times.select_nth_unstable(KNOWN_MAX / 2);
        let median = *median;
        self.known.retain(|_, known| known.used_at > median);
    }
}

/// How often what was used, in steps of half a doubling.
#[derive(Clone, Debug)]
struct Histogram {
    counts: [u16; STEPS],
    calls: u32,
}

impl Histogram {
    const fn new() -> Self {
        Self { counts: [0; STEPS], calls: 0 }
    }

    fn add(&mut self, value: u64) {
        if self.calls >= CALLS_MAX {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.calls = self.counts.iter().map(|count| u32::from(*count)).sum();
        }
        self.counts[step(value)] += 1;
        self.calls += 1;
    }

    /// The end of the step in which [`QUANTILE`] of all calls is reached.
    fn quantile(&self) -> u64 {
        let wanted = (self.calls * QUANTILE).div_ceil(100);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u32::from(*count);
            if seen >= wanted {
                return end_of(index);
            }
        }
        end_of(STEPS - 1)
    }
}

/// The step of a value: 0 and 1, 2, 3, 4 to 5, 6 to 7, 8 to 11 and so on.
fn step(value: u64) -> usize {
    if value < 2 {
        return value as usize;
    }
    let doubling = value.ilog2() as usize;
    let half = (value >> (doubling - 1) & 1) as usize;
    (2 * doubling + half).min(STEPS - 1)
}

/// The largest value of a step.
fn end_of(step: usize) -> u64 {
    if step < 2 {
        return step as u64;
    }
    let (doubling, half) = (step / 2, step % 2);
    let width = 1 << (doubling - 1);
    (1 << doubling) + width * (half as u64 + 1) - 1
}

#[cfg(test)]
mod tests {
    use tollway_core::dice::Dice;

    use super::*;

    #[test]
    fn every_value_lies_in_its_step_and_no_step_is_wider_than_half_its_beginning() {
        for value in (0..10_000).chain([1 << 22, (1 << 23) - 1]) {
            let index = step(value);
            assert!(value <= end_of(index), "{value}");
            assert!(index == 0 || value > end_of(index - 1), "{value}");
            assert!(end_of(index) <= value + value / 2, "{value}: {}", end_of(index));
        }
        assert_eq!(step(u64::MAX), STEPS - 1);
    }

    #[test]
    fn a_call_is_expected_to_use_what_nine_of_ten_did() {
        let mut estimates = Estimates::default();
        assert_eq!(estimates.expect(1, 10), Expected { input: 10, output: None });
        let mut dice = Dice::new(7);
        let mut short = 0;
        for _ in 0..5_000 {
            // Heavy tails: a long answer is a hundred times as long as a short one.
            let output = 50
                * (1 << (dice.next_u64() % 4))
                * (1 + 10 * u64::from(dice.next_u64().is_multiple_of(20)));
            let expected = estimates.expect(1, 100);
            short += u64::from(expected.output.is_some_and(|expected| expected < output));
            estimates.learn(1, 100, 200, output);
        }
        assert!(short <= 5_000 / 8, "{short} of 5,000 used more than expected");
        assert!(short >= 50, "{short} of 5,000: too much is reserved");
        let input = estimates.expect(1, 100).input;
        assert!((200..=300).contains(&input), "{input}");
    }

    #[test]
    fn what_is_known_is_bounded_and_who_is_used_is_kept() {
        let mut estimates = Estimates::default();
        for id in 0..50_000 {
            estimates.learn(id, 1, 1, id);
            let _ = estimates.expect(3, 1);
        }
        assert!(estimates.known.len() <= KNOWN_MAX);
        assert!(estimates.known.contains_key(&3));
    }
}
