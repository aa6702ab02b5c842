//! What `tollway proxy --pace` does with a credential, as a strategy: the production budgets, their
//! queue and their pacer.

use std::collections::VecDeque;

use tollway_core::{Cost, Timestamp};
use tollway_upstream::budget::{self, Budgets, Claim, Granted, Ticket};
use tollway_upstream::pace::{self, Feedback, Outcome};
use tollway_upstream::profile::{Observation, Profile, Reading, Route};

use super::{NextSend, Setting, Strategy};

/// A server that tells what is left of one bucket, and nothing else.
const PROFILE: &str = "name = 'simulated'\n[route]\nby = 'none'\n[[dimensions]]\n\
                       name = 'requests'\nremaining = 'ratelimit-remaining'\ncommon = true\n";
/// When to ask again if so many wait already that there is no room.
const AGAIN_NS: u64 = 1_000_000_000;

/// A process whose tasks send through one proxy.
pub(super) struct Proxied {
    budgets: Budgets,
    claim: Claim,
    /// Let go, but not on their way yet.
    granted: VecDeque<Ticket>,
    sent: Vec<Option<Ticket>>,
    opens_ns: u64,
    start_sleep_ns: u64,
}

impl Proxied {
    pub(super) fn new(setting: &Setting) -> Self {
        let seed = setting.dice.clone().next_u64();
        let mut pace = pace::Settings::of(setting.quota).weight(setting.weight).seed(seed);
        if let Some(reserve) = setting.reserve {
            pace = pace.reserve(reserve);
        }
        let profile = Profile::parse(PROFILE).expect("a profile that is one");
        let budgets = Budgets::paced(&profile, budget::Settings::default(), pace);
        let units = u32::try_from(setting.cost.get()).unwrap_or(u32::MAX);
        Self {
            budgets: budgets.expect("its dimension is common"),
            claim: Claim::new(Route::new("GET", "/", "")).cost(0, units),
            granted: VecDeque::new(),
            sent: vec![None; setting.tasks],
            opens_ns: 0,
            start_sleep_ns: setting.start_sleep_ns,
        }
    }
}

impl Strategy for Proxied {
    fn on_join(&mut self, now_ns: u64) {
        self.opens_ns = now_ns + self.start_sleep_ns;
    }

    fn next_send(&mut self, _task: usize, _retry: bool, now_ns: u64) -> NextSend {
        if now_ns < self.opens_ns {
            return NextSend::Later(self.opens_ns);
        }
        match self.budgets.claim(&self.claim, Timestamp::from_nanos(now_ns)) {
            Ok(Granted::Now(ticket)) => {
                self.granted.push_back(ticket);
                NextSend::At(now_ns)
            }
            Ok(Granted::Later(_)) => NextSend::Queue,
            Err(_) => NextSend::Later(now_ns + AGAIN_NS),
        }
    }

    fn gate(&mut self, _cost: Cost, now_ns: u64) -> u64 {
        let now = Timestamp::from_nanos(now_ns);
        if self.granted.is_empty() {
            self.granted.extend(self.budgets.next(now).map(|(_, ticket)| ticket));
        }
        if !self.granted.is_empty() {
            return now_ns;
        }
        self.budgets.earliest(now).map_or(u64::MAX, Timestamp::as_nanos)
    }

    fn on_send(&mut self, task: usize, _cost: Cost, _now_ns: u64) {
        self.sent[task] = self.granted.pop_front();
    }

    fn on_response(&mut self, task: usize, answer: &Feedback, now_ns: u64) {
        if let Some(ticket) = self.sent[task].take() {
            self.budgets.observe(ticket, &observed(answer), Timestamp::from_nanos(now_ns));
        }
    }

    fn on_lost(&mut self, task: usize, now_ns: u64) {
        if let Some(ticket) = self.sent[task].take() {
            self.budgets.abandon(ticket, Timestamp::from_nanos(now_ns));
        }
    }

    fn pause_ns(&self) -> u64 {
        self.budgets.paced_interval().map_or(0, |interval| interval.as_nanos() as u64)
    }
}

/// An answer as the profile above would read it.
fn observed(answer: &Feedback) -> Observation {
    let reading = answer.remaining.map(|remaining| Reading {
        limit: answer.limit,
        remaining: Some(remaining.max(0.0) as u64),
        reset_after: answer.reset_after,
        window: answer.period,
        ..Reading::default()
    });
    let status = match answer.outcome {
        Outcome::Accepted => 200,
        Outcome::Limited => 429,
        Outcome::Failed => 503,
    };
    Observation {
        status,
        outcome: answer.outcome,
        readings: reading.into_iter().collect(),
        retry_after: answer.retry_after,
        ..Observation::default()
    }
}
