//! Adaptive throttling as in Google's SRE book: reject locally what the server would reject.

use tollgate_upstream::pace::{Answer, Dice, Outcome};

use super::{Setting, Strategy, Turn};

/// Requests per accepted one that are let through: 2 as in the book.
const ALLOWANCE: f64 = 2.0;
/// How often a task would send if nobody stopped it.
const ATTEMPT_NS: u64 = 1_000_000_000;
/// The two minutes of memory, in slices of ten seconds.
const SLICE_NS: u64 = 10_000_000_000;
const SLICES: usize = 12;

/// One throttle shared by the tasks of a process.
pub(super) struct Adaptive {
    slices: [(f64, f64); SLICES],
    slice: u64,
    attempted_ns: Vec<u64>,
    dice: Dice,
}

impl Adaptive {
    pub(super) fn new(setting: &Setting) -> Self {
        Self {
            slices: [(0.0, 0.0); SLICES],
            slice: 0,
            attempted_ns: vec![0; setting.tasks],
            dice: setting.dice.clone(),
        }
    }

    fn current(&mut self, now_ns: u64) -> &mut (f64, f64) {
        let slice = now_ns / SLICE_NS;
        for passed in self.slice + 1..=slice.min(self.slice + SLICES as u64) {
            self.slices[(passed % SLICES as u64) as usize] = (0.0, 0.0);
        }
        self.slice = self.slice.max(slice);
        &mut self.slices[(self.slice % SLICES as u64) as usize]
    }

    fn rejects(&mut self) -> bool {
        let (requests, accepts) =
            self.slices.iter().fold((0.0, 0.0), |sum, slice| (sum.0 + slice.0, sum.1 + slice.1));
        let chance = (requests - ALLOWANCE * accepts) / (requests + 1.0);
        self.dice.unit() < chance
    }
}

impl Strategy for Adaptive {
    fn turn(&mut self, task: usize, _retry: bool, now_ns: u64) -> Turn {
        let due_ns = self.attempted_ns[task] + ATTEMPT_NS;
        if due_ns > now_ns {
            return Turn::Later(due_ns);
        }
        self.attempted_ns[task] = now_ns;
        self.current(now_ns).0 += 1.0;
        if self.rejects() { Turn::Later(now_ns + ATTEMPT_NS) } else { Turn::At(now_ns) }
    }

    fn on_response(&mut self, _task: usize, answer: &Answer, now_ns: u64) {
        if answer.outcome == Outcome::Accepted {
            self.current(now_ns).1 += 1.0;
        }
    }

    fn pause_ns(&self) -> u64 {
        ATTEMPT_NS
    }
}
