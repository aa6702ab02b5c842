//! Requests that charge several keys at once: decisions equal to the core's.
//!
//! The histories of the oracle seldom charge several keys under GCRA; these hardly do anything
//! else.

use std::sync::Arc;
use std::time::Duration;

use tollway_core::{Cost, Mode, Policy, Timestamp};
use tollway_testkit::conformance::{Ask, OnCore, Operation, Subject};
use tollway_testkit::servers::{Cluster, Engine, full};

use crate::conformance::OnServer;

const KEYS: u64 = 4;
const STEPS: usize = 60;

/// Numbers that a seed gives.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// Which requests a history has.
#[derive(Clone, Copy, Debug)]
enum Sort {
    /// Every key under one policy, all of whole microseconds.
    Whole,
    /// Every key under one policy, some of them with units of a broken number of nanoseconds.
    Fine,
    /// Every key under any policy, so that states of several policies are in one value.
    Shared,
}

struct History {
    sort: Sort,
    policies: Vec<Arc<Policy>>,
    draw: Draw,
    now: Timestamp,
}

impl History {
    fn new(sort: Sort, seed: u64) -> Self {
        let quotas = match sort {
            Sort::Whole => ["5/1s burst 7", "1/2s burst 3", "100/1s burst 2"],
            Sort::Fine | Sort::Shared => ["5/1s burst 7", "7/1s burst 3", "3/2s burst 2"],
        };
        let policy = |(n, quota): (usize, &&str)| Policy::parse(format!("p{n}"), quota).unwrap();
        let policies = quotas.iter().enumerate().map(policy).map(Arc::new).collect();
        let draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Self { sort, policies, draw, now: Timestamp::from_millis(1_700_000_000_000) }
    }

    /// The next request, on up to all of the keys; now and then on one.
    fn request(&mut self) -> Operation {
        let (first, charges) = (self.draw.below(KEYS), 1 + self.draw.below(KEYS));
        let ask = |n| {
            let key = (first + n) % KEYS;
            let policy = match self.sort {
                Sort::Shared => self.draw.below(3),
                Sort::Whole | Sort::Fine => key % 3,
            };
            let policy = Arc::clone(&self.policies[usize::try_from(policy).unwrap()]);
            let cost = [1, 1, 1, 2, 3][usize::try_from(self.draw.below(5)).unwrap()];
            let cost = Cost::new(cost).unwrap();
            Ask::new(policy, format!("key {key}"), cost, Mode::Enforce).unwrap()
        };
        Operation::Check((0..charges).map(ask).collect())
    }

    /// Often no time passes; sometimes so much that a state must get a longer time to live; now and
    /// then the clock is set back, but not where a state that says nothing may have been left out
    /// of the value that it shares.
    fn pass(&mut self) {
        let micros = match self.draw.below(16) {
            0..=6 => 0,
            7..=12 => self.draw.below(700_000),
            13..=14 => self.draw.below(20_000_000),
            _ => 1,
        };
        self.now = self.now.after(Duration::from_micros(micros));
        if !matches!(self.sort, Sort::Shared) && self.draw.below(24) == 0 {
            let back_ns = self.draw.below(3_000_000) * 1_000;
            self.now = Timestamp::from_nanos(self.now.as_nanos() - back_ns);
        }
    }
}

/// Runs a history on a store and on the core; how many of its requests were allowed and denied.
fn compare(subject: &mut OnServer, sort: Sort, seed: u64) -> [u32; 2] {
    let mut history = History::new(sort, seed);
    let mut core = OnCore::by_server_clock();
    core.begin(&history.policies, Timestamp::MIN).unwrap();
    subject.begin(&history.policies, Timestamp::MIN).unwrap();
    let mut answers = [0; 2];
    for step in 0..STEPS {
        let (at, request) = (history.now, history.request());
        let expected = core.apply(at, &request).unwrap();
        let answered = subject.apply(at, &request).unwrap();
        assert_eq!(answered, expected, "{sort:?}, history {seed}, step {step}: {request:?}");
        answers[usize::from(expected.allowed == Some(false))] += 1;
        history.pass();
    }
    answers
}

fn compare_all(mut subject: OnServer, histories: u64) {
    for sort in [Sort::Whole, Sort::Fine, Sort::Shared] {
        let mut answers = [0; 2];
        for seed in 0..histories {
            let more = compare(&mut subject, sort, seed);
            (0..2).for_each(|n| answers[n] += more[n]);
        }
        assert!(answers.iter().all(|count| *count > 0), "{sort:?}: one-sided, {answers:?}");
    }
}

#[test]
fn charges_on_different_keys_are_answered_as_the_core_answers_them() {
    let histories = if full() { 2_000 } else { 30 };
    for engine in Engine::available() {
        compare_all(OnServer::new(&engine.shared().url()), histories);
        let cluster = Cluster::shared(engine);
        compare_all(OnServer::new(&cluster.url()).with_one_tag(), histories / 10);
    }
}

#[test]
fn charges_on_different_keys_are_answered_alike_by_the_oldest_redis() {
    let Some(engine) = Engine::oldest() else { return };
    compare_all(OnServer::new(&engine.shared().url()), if full() { 500 } else { 10 });
}
