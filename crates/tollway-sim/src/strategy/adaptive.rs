//! Adaptive throttling as in Google's SRE book: reject locally what the server would reject.

use tollway_upstream::pace::{Dice, Feedback, Outcome};

use super::{NextSend, Setting, Strategy};

/// Requests per accepted one that are let through: 2 as in the book.
const ALLOWANCE: f64 = 2.0;
/// How often a task would send if nobody stopped it.
const ATTEMPT_NS: u64 = 1_000_000_000;
/// The two minutes of memory, in slices of ten seconds.
const SLICE_NS: u64 = 10_000_000_000;
const SLICES: usize = 12;

/// One throttle shared by the tasks of a process.
pub(super) struct Adaptive {
    /// Requests and accepted ones in each slice, and their sums.
    slices: [(u32, u32); SLICES],
    sums: (u32, u32),
    slice: u64,
    attempted_ns: Vec<u64>,
    dice: Dice,
}

impl Adaptive {
    pub(super) fn new(setting: &Setting) -> Self {
        Self {
            slices: [(0, 0); SLICES],
            sums: (0, 0),
            slice: 0,
            attempted_ns: vec![0; setting.tasks],
            dice: setting.dice.clone(),
        }
    }

    /// Counts attempts and successes of now, forgetting those of two minutes ago.
    fn count(&mut self, requests: u32, accepts: u32, now_ns: u64) {
        let slice = now_ns / SLICE_NS;
        for passed in self.slice + 1..=slice.min(self.slice + SLICES as u64) {
            let old = std::mem::take(&mut self.slices[(passed % SLICES as u64) as usize]);
            self.sums = (self.sums.0 - old.0, self.sums.1 - old.1);
        }
        self.slice = self.slice.max(slice);
        let current = &mut self.slices[(self.slice % SLICES as u64) as usize];
        *current = (current.0 + requests, current.1 + accepts);
        self.sums = (self.sums.0 + requests, self.sums.1 + accepts);
    }

    fn rejects(&mut self) -> bool {
        let (requests, accepts) = (f64::from(self.sums.0), f64::from(self.sums.1));
        self.dice.unit() < (requests - ALLOWANCE * accepts) / (requests + 1.0)
    }
}

impl Strategy for Adaptive {
    fn next_send(&mut self, task: usize, _retry: bool, now_ns: u64) -> NextSend {
        let due_ns = self.attempted_ns[task] + ATTEMPT_NS;
        if due_ns > now_ns {
            return NextSend::Later(due_ns);
        }
        self.attempted_ns[task] = now_ns;
        self.count(1, 0, now_ns);
        if self.rejects() { NextSend::Later(now_ns + ATTEMPT_NS) } else { NextSend::At(now_ns) }
    }

    fn on_response(&mut self, _task: usize, answer: &Feedback, now_ns: u64) {
        if answer.outcome == Outcome::Accepted {
            self.count(0, 1, now_ns);
        }
    }

    fn pause_ns(&self) -> u64 {
        ATTEMPT_NS
    }
}
