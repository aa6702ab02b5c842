//! rate_throttle_client's three strategies that remember their sleep between requests.

use tollway_upstream::pace::{Dice, Feedback, Outcome};

use super::{NextSend, Setting, Strategy, jittered, to_ns};

/// What a success takes off the sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decrease {
    /// The time in which one unit comes back.
    Step,
    /// One part in the limit.
    Share,
    /// As many parts in the limit as units remain.
    ShareOfRemaining,
}

/// Sleeps before every request. The tasks share one sleep without a lock, as the threads of that
/// gem do: the last writer wins, and that the low value of one may replace the high one of another
/// is what keeps them together.
pub struct Remembering {
    shared_s: f64,
    own_s: Vec<f64>,
    least_s: f64,
    limit: f64,
    multiplier: f64,
    decrease: Decrease,
    dice: Option<Dice>,
}

impl Remembering {
    pub(super) fn new(setting: &Setting, decrease: Decrease) -> Self {
        let start_s = setting.start_sleep_ns as f64 / super::NANOS_PER_S;
        let limit = setting.quota.units() as f64;
        let exact = Self::exact(setting.tasks, start_s, setting.unit_s(), limit, decrease);
        Self { dice: Some(setting.dice.clone()), ..exact }
    }

    /// Without jitter, for the published vectors.
    pub fn exact(tasks: usize, start_s: f64, least_s: f64, limit: f64, decrease: Decrease) -> Self {
        Self {
            shared_s: start_s,
            own_s: vec![start_s; tasks],
            least_s,
            limit,
            multiplier: 1.2,
            decrease,
            dice: None,
        }
    }

    /// The sleep before the next attempt of `task`, in seconds.
    pub fn next_sleep_s(&mut self, task: usize, retry: bool) -> f64 {
        let own_s = &mut self.own_s[task];
        let sleep_s = if retry { *own_s + self.least_s } else { self.shared_s };
        *own_s = if retry { sleep_s * self.multiplier } else { sleep_s };
        self.dice.as_mut().map_or(sleep_s, |dice| jittered(sleep_s, dice))
    }

    /// The sleep that the tasks share, in seconds.
    pub const fn shared_s(&self) -> f64 {
        self.shared_s
    }

    /// Takes the reward for a success of `task` off its sleep and shares the rest.
    pub fn on_success(&mut self, task: usize, remaining: Option<f64>) {
        let own_s = self.own_s[task];
        let decrease_s = match self.decrease {
            Decrease::Step => self.least_s,
            Decrease::Share => own_s / self.limit,
            Decrease::ShareOfRemaining => own_s * remaining.unwrap_or(0.0) / self.limit,
        };
        self.shared_s = if own_s >= decrease_s { own_s - decrease_s } else { 0.0 };
    }
}

impl Strategy for Remembering {
    fn next_send(&mut self, task: usize, retry: bool, now_ns: u64) -> NextSend {
        NextSend::At(now_ns + to_ns(self.next_sleep_s(task, retry)))
    }

    fn on_response(&mut self, task: usize, answer: &Feedback, _now_ns: u64) {
        if answer.outcome == Outcome::Accepted {
            self.on_success(task, answer.remaining);
        }
    }

    fn pause_ns(&self) -> u64 {
        to_ns(self.shared_s)
    }
}
