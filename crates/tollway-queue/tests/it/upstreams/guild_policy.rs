//! The policy of guild queues, as its chart draws it: a counter per aligned window, a counter of
//! who waits, a monitor that looks once a second.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tollway_core::Timestamp;

use super::enforcer::Enforcer;
use super::run::{Burst, Report, jittered};
use crate::world::{Random, START};

struct Limiter {
    window: Duration,
    reservoir: u64,
    calls: BTreeMap<u64, u64>,
    enqueued: i64,
}

impl Limiter {
    /// `None` if the job may run, or when it is to be tried again.
    fn attempt(&mut self, delayed: bool, now: Timestamp) -> Option<Timestamp> {
        let number = now.as_nanos() / self.window.as_nanos() as u64;
        let calls = self.calls.entry(number).or_default();
        *calls += 1;
        if *calls <= self.reservoir {
            self.enqueued -= i64::from(delayed);
            return None;
        }
        let waiting = self.enqueued;
        self.enqueued += 1;
        let windows = number as i64 + 1 + waiting.div_euclid(self.reservoir as i64);
        Some(Timestamp::from_nanos(windows as u64 * self.window.as_nanos() as u64))
    }
}

/// The burst through that policy, with as many workers as it needs.
pub(crate) fn run(burst: &Burst, mut upstream: Enforcer, seed: u64) -> Report {
    let mut random = Random::new(seed);
    let reservoir = u64::from(burst.units);
    let mut limiter =
        Limiter { window: burst.window, reservoir, calls: BTreeMap::new(), enqueued: 0 };
    // The burst comes at any time of a window of the clock.
    let start = START.after(burst.window.mul_f64(random.unit()));
    let mut waiting: VecDeque<(usize, bool)> = (0..burst.jobs).map(|job| (job, false)).collect();
    let mut delayed: Vec<(Timestamp, usize)> = Vec::new();
    let mut answers: BTreeMap<(Timestamp, usize), Duration> = BTreeMap::new();
    let (mut report, mut now, mut served, mut last) = (Report::default(), start, 0, start);
    while served < burst.jobs {
        let mut calls = Vec::new();
        while let Some((job, was_delayed)) = waiting.pop_front() {
            report.lease_calls += 1;
            if let Some(ready) = limiter.attempt(was_delayed, now) {
                delayed.push((ready, job));
                continue;
            }
            let took = Duration::from_secs_f64(jittered(&mut random));
            calls.push((now.after(took.mul_f64(random.unit())), job, now.after(took)));
            last = now;
        }
        // The upstream decides in the order in which calls arrive.
        calls.sort_unstable();
        for (arrives, job, answered) in calls {
            report.calls += 1;
            match upstream.call(arrives) {
                None => served += 1,
                Some(wait) => {
                    report.refused += 1;
                    // Its answer says until when to wait.
                    answers.insert((answered, job), arrives.after(wait).since(answered));
                }
            }
        }
        // The monitor looks once a second; a refused call's answer comes in between.
        now = now.after(Duration::from_secs(1));
        while let Some(entry) = answers.first_entry()
            && entry.key().0 <= now
        {
            let (at, job) = *entry.key();
            let wait = entry.remove();
            delayed.push((at.after(wait), job));
        }
        delayed.sort_unstable();
        let due = delayed.partition_point(|(ready, _)| *ready <= now);
        waiting.extend(delayed.drain(..due).map(|(_, job)| (job, true)));
    }
    report.makespan_s = last.since(start).as_secs_f64();
    report.makespan_ratio = report.makespan_s / burst.bound_s();
    report
}
