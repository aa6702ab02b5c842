//! CUBIC on the measured rate, as the adaptive retry mode of the AWS SDKs.
//!
//! A token bucket per process, off until the first throttling answer. A refusal cuts its rate to
//! a part of what was measured; successes let it grow along a cubic through the old rate.

use tollway_core::Cost;
use tollway_upstream::pace::{Dice, Feedback, Outcome};

use super::{NANOS_PER_S, NextSend, Setting, Strategy, to_ns};

const BETA: f64 = 0.7;
const SCALE: f64 = 0.4;
const RATE_MIN: f64 = 0.5;
const SMOOTHING: f64 = 0.8;
const BIN_S: f64 = 0.5;
const BACKOFF_S_MAX: f64 = 20.0;

/// One SDK client shared by the tasks of a process.
pub(super) struct Cubic {
    enabled: bool,
    /// Tokens per second.
    rate: f64,
    /// When the bucket's next whole token is due.
    next_s: f64,
    rate_max: f64,
    inflection_s: f64,
    throttled_s: f64,
    measured: f64,
    bin_s: f64,
    sent_in_bin: f64,
    refusals: Vec<i32>,
    dice: Dice,
}

impl Cubic {
    pub(super) fn new(setting: &Setting) -> Self {
        Self {
            enabled: false,
            rate: 0.0,
            next_s: 0.0,
            rate_max: 0.0,
            inflection_s: 0.0,
            throttled_s: 0.0,
            measured: 0.0,
            bin_s: 0.0,
            sent_in_bin: 0.0,
            refusals: vec![0; setting.tasks],
            dice: setting.dice.clone(),
        }
    }

    fn measure(&mut self, now_s: f64) {
        self.sent_in_bin += 1.0;
        let bin_s = (now_s / BIN_S).floor() * BIN_S;
        if bin_s > self.bin_s {
            let current = self.sent_in_bin / (bin_s - self.bin_s);
            self.measured = current * SMOOTHING + self.measured * (1.0 - SMOOTHING);
            self.sent_in_bin = 0.0;
            self.bin_s = bin_s;
        }
    }

    fn on_throttled(&mut self, now_s: f64) {
        let used = if self.enabled { self.measured.min(self.rate) } else { self.measured };
        self.rate_max = used;
        self.inflection_s = cube_root(self.rate_max * (1.0 - BETA) / SCALE);
        self.throttled_s = now_s;
        self.enabled = true;
        self.set_rate(used * BETA);
    }

    fn on_success(&mut self, now_s: f64) {
        let away = now_s - self.throttled_s - self.inflection_s;
        self.set_rate(SCALE * away * away * away + self.rate_max);
    }

    fn set_rate(&mut self, wanted: f64) {
        self.rate = wanted.min(2.0 * self.measured).max(RATE_MIN);
    }
}

impl Strategy for Cubic {
    fn next_send(&mut self, task: usize, retry: bool, now_ns: u64) -> NextSend {
        let mut at_s = now_ns as f64 / NANOS_PER_S;
        if retry {
            let ceiling = f64::from(1u32 << self.refusals[task].clamp(0, 10)).min(BACKOFF_S_MAX);
            at_s += self.dice.unit() * ceiling;
        }
        if !self.enabled {
            return NextSend::At(to_ns(at_s).max(now_ns));
        }
        let at_s = at_s.max(self.next_s);
        self.next_s = at_s + 1.0 / self.rate;
        NextSend::At(to_ns(at_s).max(now_ns))
    }

    fn on_send(&mut self, _task: usize, _cost: Cost, now_ns: u64) {
        self.measure(now_ns as f64 / NANOS_PER_S);
    }

    fn on_response(&mut self, task: usize, answer: &Feedback, now_ns: u64) {
        let now_s = now_ns as f64 / NANOS_PER_S;
        match answer.outcome {
            Outcome::Limited => {
                self.refusals[task] += 1;
                self.on_throttled(now_s);
            }
            Outcome::Accepted => {
                self.refusals[task] = 0;
                self.on_success(now_s);
            }
            Outcome::Failed => {}
        }
    }

    fn pause_ns(&self) -> u64 {
        if self.enabled { to_ns(1.0 / self.rate) } else { 0 }
    }
}

/// The cube root by Newton's iteration: the platform's may differ in its last bit.
fn cube_root(x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    // A third of the bits of a number is roughly a third of its logarithm.
    let mut root = f64::from_bits(x.to_bits() / 3 + 0x2A9F_7893_0000_0000);
    for _ in 0..5 {
        root -= (root * root * root - x) / (3.0 * root * root);
    }
    root
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cube_roots_are_right() {
        for x in [1e-6, 0.3, 1.0, 8.0, 1e6] {
            assert!((cube_root(x) / x.cbrt() - 1.0).abs() < 1e-12, "{x}");
        }
    }
}
