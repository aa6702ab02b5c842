//! rate_throttle_client's exponential backoff: every request starts from scratch.

use tollway_upstream::pace::{Dice, Feedback, Outcome};

use super::{NextSend, Setting, Strategy, jittered, to_ns};

/// Sends at once; after a 429 sleeps, after each further one a fifth longer, and forgets all that
/// with the first success.
pub struct Backoff {
    sleeps_s: Vec<f64>,
    least_s: f64,
    multiplier: f64,
    longest_s: f64,
    dice: Option<Dice>,
}

impl Backoff {
    pub(super) fn new(setting: &Setting) -> Self {
        Self { dice: Some(setting.dice.clone()), ..Self::exact(setting.tasks, setting.unit_s()) }
    }

    /// Without jitter, for the published vectors.
    pub fn exact(tasks: usize, least_s: f64) -> Self {
        let sleeps_s = vec![least_s; tasks];
        Self { sleeps_s, least_s, multiplier: 1.2, longest_s: 0.0, dice: None }
    }

    /// The sleep after a refusal of `task`, in seconds.
    pub fn next_sleep_s(&mut self, task: usize) -> f64 {
        let sleep_s = self.sleeps_s[task];
        self.sleeps_s[task] = sleep_s * self.multiplier;
        self.longest_s = sleep_s;
        self.dice.as_mut().map_or(sleep_s, |dice| jittered(sleep_s, dice))
    }
}

impl Strategy for Backoff {
    fn next_send(&mut self, task: usize, retry: bool, now_ns: u64) -> NextSend {
        if !retry {
            return NextSend::At(now_ns);
        }
        NextSend::At(now_ns + to_ns(self.next_sleep_s(task)))
    }

    fn on_response(&mut self, task: usize, answer: &Feedback, _now_ns: u64) {
        if answer.outcome != Outcome::Limited {
            self.sleeps_s[task] = self.least_s;
        }
    }

    fn pause_ns(&self) -> u64 {
        to_ns(self.longest_s)
    }
}
