//! Processes whose store is gone: each keeps to its part of the limits, and the upstream that
//! judges one process judges all of them together.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tollway_core::Timestamp;
use tollway_upstream::budget::Claim;
use tollway_upstream::profile::{Observation, Profile, Reading, Route};

use crate::budgets::{ONE, plan, profile, shape};
use crate::world::{Alone, Desk, Limit, Plan, Shape, World};

/// Processes that cannot tell each other what they take.
struct Apart {
    processes: Vec<Alone>,
}

impl Apart {
    fn new(profile: &Arc<Profile>, count: u32) -> Self {
        let process = |rank| Alone::apart(Arc::clone(profile), count, rank);
        Self { processes: (0..count).map(process).collect() }
    }

    fn home(&self, index: usize) -> usize {
        index % self.processes.len()
    }
}

impl Desk for Apart {
    fn claim(&mut self, index: usize, claim: &Claim, now: Timestamp) {
        let home = self.home(index);
        self.processes[home].claim(index, claim, now);
    }

    fn answer(&mut self, index: usize, observation: Option<&Observation>, now: Timestamp) {
        let home = self.home(index);
        self.processes[home].answer(index, observation, now);
    }

    fn next(&mut self, now: Timestamp) -> Option<usize> {
        self.processes.iter_mut().find_map(|process| process.next(now))
    }

    fn earliest(&mut self, now: Timestamp) -> Option<Timestamp> {
        self.processes.iter_mut().filter_map(|process| process.earliest(now)).min()
    }
}

/// The profile says which limits come back bit by bit.
fn profile_of(shape: Shape) -> Arc<Profile> {
    match shape {
        Shape::Sliding => profile(&format!("{ONE}window = 'sliding'\n")),
        _ => profile(ONE),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    /// However the requests are spread over the processes and whichever answers are slow.
    #[test]
    fn parts_of_a_limit_are_no_more_than_the_limit(
        shape in shape(),
        processes in 1_u32..5,
        units in 5_u64..40,
        window_ms in 100_u64..5_000,
        plans in prop::collection::vec(plan(1), 1..120),
    ) {
        let limit = Limit { shape, units, window: Duration::from_millis(window_ms) };
        let apart = Apart::new(&profile_of(shape), processes);
        let outcomes = World::new(apart, vec![vec![limit]]).run(&plans, 200_000);
        prop_assert_eq!(outcomes.refused, 0);
        prop_assert_eq!(outcomes.unanswered, 0);
    }
}

/// What a proxy does that has more requests than the others: it sees what is left of the others'
/// parts in every answer.
#[test]
fn whoever_is_answered_sooner_takes_nothing_of_the_others_parts() {
    let plan = |index: u64| {
        // The first process is answered at once, and the others take a second to be counted.
        let there_ms = if index.is_multiple_of(3) { 0 } else { 1_000 };
        Plan { at_ms: 0, route: 0, there_ms, back_ms: 1, lost: false, cost: 1 }
    };
    let plans: Vec<Plan> = (0..120).map(plan).collect();
    for shape in [Shape::Sliding, Shape::Anchored] {
        let limit = Limit { shape, units: 18, window: Duration::from_secs(4) };
        let apart = Apart::new(&profile_of(shape), 3);
        let outcomes = World::new(apart, vec![vec![limit]]).run(&plans, 100_000);
        assert_eq!((outcomes.refused, outcomes.unanswered), (0, 0), "{shape:?}");
        // A second is lost with the first answers, and some of a unit with each of the rest.
        let least = Duration::from_secs(4 * 120 / 18);
        let took = outcomes.ended.since(Timestamp::from_millis(1_000));
        assert!(took <= least.mul_f64(1.25), "{shape:?}: {took:?} instead of {least:?}");
    }
}

/// A process that has taken nothing for a while does not know what the others took since.
#[test]
fn of_what_was_heard_before_an_outage_one_goes_first() {
    let limit = Limit { shape: Shape::Anchored, units: 30, window: Duration::from_secs(4) };
    let reading = Reading {
        limit: Some(30),
        remaining: Some(30),
        reset_after: Some(Duration::from_secs(4)),
        told_after: true,
        ..Reading::default()
    };
    let told = Observation { readings: vec![reading], ..Observation::default() };
    let mut process = Alone::apart(profile_of(limit.shape), 3, 0);
    let claim = Claim::new(Route::new("GET", "/0", "")).cost(0, 1).cost(1, 1);
    let at = Timestamp::from_millis(1_000);
    process.hear(&claim, &told, at);
    (0..20).for_each(|index| process.claim(index, &claim, at));
    assert!(process.next(at).is_some());
    assert_eq!(process.next(at), None, "it was told of 30, but by others");
    let mut first = told.clone();
    first.readings[0].remaining = Some(18);
    process.answer(0, Some(&first), at.after(Duration::from_millis(50)));
    let now = at.after(Duration::from_millis(50));
    assert_eq!(std::iter::from_fn(|| process.next(now)).count(), 6, "a third of what is left");
}

fn cases() -> u32 {
    if std::env::var_os("TOLLWAY_FULL").is_some() { 5_000 } else { 500 }
}
