//! The production pacer as a strategy.

use tollway_core::{Cost, Timestamp};
use tollway_upstream::pace::{Feedback, Pacer, Sent, Settings};

use super::{NextSend, Setting, Strategy};

/// A process whose tasks stand in line for one [`Pacer`].
pub(super) struct Paced {
    pacer: Pacer,
    sent: Vec<Option<Sent>>,
    start_sleep_ns: u64,
    opens_ns: u64,
}

impl Paced {
    pub(super) fn ticket(setting: &Setting) -> Self {
        Self::new(setting, |settings| settings)
    }

    pub(super) fn aimd(setting: &Setting) -> Self {
        Self::new(setting, Settings::only_aimd)
    }

    fn new(setting: &Setting, adjust: impl FnOnce(Settings) -> Settings) -> Self {
        let seed = setting.dice.clone().next_u64();
        let mut settings = Settings::of(setting.quota).weight(setting.weight).seed(seed);
        if let Some(reserve) = setting.reserve {
            settings = settings.reserve(reserve);
        }
        Self {
            pacer: Pacer::new(adjust(settings)),
            sent: vec![None; setting.tasks],
            start_sleep_ns: setting.start_sleep_ns,
            opens_ns: 0,
        }
    }
}

impl Strategy for Paced {
    fn on_join(&mut self, now_ns: u64) {
        self.opens_ns = now_ns + self.start_sleep_ns;
    }

    fn next_send(&mut self, _task: usize, _retry: bool, _now_ns: u64) -> NextSend {
        NextSend::Queue
    }

    fn gate(&mut self, cost: Cost, now_ns: u64) -> u64 {
        if self.start_sleep_ns > 0 && now_ns < self.opens_ns {
            return self.opens_ns;
        }
        // Only the start is delayed: a clock that steps back later must not close the gate again.
        self.start_sleep_ns = 0;
        self.pacer.may_send_at(cost, Timestamp::from_nanos(now_ns)).as_nanos()
    }

    fn on_send(&mut self, task: usize, cost: Cost, now_ns: u64) {
        self.sent[task] = Some(self.pacer.on_send(cost, Timestamp::from_nanos(now_ns)));
    }

    fn on_response(&mut self, task: usize, answer: &Feedback, now_ns: u64) {
        if let Some(sent) = self.sent[task].take() {
            self.pacer.on_response(sent, answer, Timestamp::from_nanos(now_ns));
        }
    }

    fn on_lost(&mut self, task: usize, now_ns: u64) {
        if let Some(sent) = self.sent[task].take() {
            self.pacer.on_lost(sent, Timestamp::from_nanos(now_ns));
        }
    }

    fn pause_ns(&self) -> u64 {
        self.pacer.interval().as_nanos() as u64
    }
}
