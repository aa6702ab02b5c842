//! A client process and its tasks.

use std::collections::VecDeque;
use std::ops::Range;

use tollway_core::Cost;
use tollway_upstream::pace::{Dice, Feedback, Outcome};

use crate::latency::Latency;
use crate::scenario::{Client, Duty, Scenario, nanos};
use crate::strategy::{Setting, Strategy, StrategyChoice};

/// Where clients' clocks stand at the start: far enough from zero to be set back.
const CLOCK_START_NS: u64 = 1_000_000_000_000_000;

/// One process: one strategy, one clock, some tasks.
pub(super) struct Process {
    pub(super) strategy: Box<dyn Strategy>,
    pub(super) tasks: Range<usize>,
    pub(super) queue: VecDeque<usize>,
    pub(super) gate_ns: Option<u64>,
    pub(super) gate_turn: u32,
    pub(super) present: bool,
    pub(super) joins_ns: u64,
    pub(super) leaves_ns: Option<u64>,
    pub(super) latency: Latency,
    pub(super) think_ns: u64,
    pub(super) cost: Cost,
    pub(super) owner: String,
    pub(super) dice: Dice,
    duty: Option<Duty>,
    skew_ppm: i64,
    step: Option<(u64, i64)>,
}

/// One task of a process, with at most one request under way.
pub(super) struct Task {
    pub(super) process: usize,
    /// Counts requests; events of earlier ones are stale.
    pub(super) turn: u32,
    pub(super) retry: bool,
    /// Since when it wants to send, until it does.
    pub(super) wanted_ns: Option<u64>,
    pub(super) waited_ns: u64,
    pub(super) sent_ns: u64,
    pub(super) answered_ns: u64,
    pub(super) answer: Feedback,
}

impl Task {
    pub(super) fn new(process: usize) -> Self {
        Self {
            process,
            turn: 0,
            retry: false,
            wanted_ns: None,
            waited_ns: 0,
            sent_ns: 0,
            answered_ns: 0,
            answer: Feedback::bare(Outcome::Failed),
        }
    }
}

impl Process {
    pub(super) fn new(
        scenario: &Scenario,
        client: &Client,
        strategy: &StrategyChoice,
        dice: Dice,
        first_task: usize,
    ) -> Self {
        let setting = Setting {
            quota: client.believed(&scenario.server),
            tasks: client.threads as usize,
            start_sleep_ns: nanos(client.start_sleep),
            cost: client.cost(),
            weight: client.weight,
            reserve: scenario.reserve,
            dice: dice.child(1),
        };
        let within_ns = nanos(client.joins_within) as f64;
        let delay_ns = (dice.child(2).unit() * within_ns) as u64;
        Self {
            strategy: match client.strategy {
                Some(kind) => kind.build(&setting),
                None => strategy.build(&setting),
            },
            tasks: first_task..first_task,
            queue: VecDeque::new(),
            gate_ns: None,
            gate_turn: 0,
            present: false,
            joins_ns: nanos(client.joins).saturating_add(delay_ns),
            leaves_ns: client.leaves.map(nanos),
            latency: client.latency,
            think_ns: nanos(client.think),
            cost: client.cost(),
            owner: client.owner.clone().unwrap_or_default(),
            dice: dice.child(0),
            duty: client.duty,
            skew_ppm: client.clock_skew_ppm,
            step: client.clock_step.map(|step| (nanos(step.at), step.by_ns())),
        }
    }

    pub(super) fn join(&mut self, now_ns: u64) {
        let local = self.local(now_ns);
        self.strategy.on_join(local);
    }

    /// What this process's clock shows.
    pub(super) fn local(&self, now_ns: u64) -> u64 {
        if self.skew_ppm == 0 && self.step.is_none() {
            return CLOCK_START_NS + now_ns;
        }
        let skewed = i128::from(now_ns) * i128::from(self.skew_ppm) / 1_000_000;
        let stepped = match self.step {
            Some((at_ns, by_ns)) if now_ns >= at_ns => i128::from(by_ns),
            _ => 0,
        };
        let shown = i128::from(CLOCK_START_NS) + i128::from(now_ns) + skewed + stepped;
        u64::try_from(shown.max(0)).unwrap_or(u64::MAX)
    }

    /// When this process is on duty again, if it is off duty now.
    pub(super) fn wakes_ns(&self, now_ns: u64) -> Option<u64> {
        self.duty
            .and_then(|duty| duty.wakes_ns(now_ns - self.joins_ns))
            .map(|after_ns| now_ns.saturating_add(after_ns))
    }
}
