//! The conformance scenarios on the core, and proof that the runner can fail.

use std::sync::Arc;
use std::time::Duration;

use tollway_core::{Policy, Timestamp};
use tollway_testkit::conformance::{
    Failure, OnCore, Operation, Outcome, Report, Scenario, Subject, Wait, run, scenarios,
};

#[test]
fn the_core_answers_every_scenario() {
    let scenarios = scenarios().unwrap();
    for (mut core, declined) in
        [(OnCore::new(), "clock-steps-back"), (OnCore::by_server_clock(), "late-reading")]
    {
        let report = run(&mut core, &scenarios);
        assert!(report.passed(), "{report}");
        let declines = |scenario: &&Scenario| scenario.tags.iter().any(|tag| tag == declined);
        let expected = scenarios.len() - scenarios.iter().filter(declines).count();
        assert_eq!(report.ran.len(), expected);
        assert!(expected < scenarios.len(), "no scenario is about {declined}");
    }
}

#[test]
fn nobody_notices_that_a_state_is_forgotten_once_it_says_nothing() {
    let report = run(&mut OnCore::forgetful(), &scenarios().unwrap());
    assert!(report.passed(), "{report}");
}

/// The core with one fault.
struct Broken {
    core: OnCore,
    break_it: fn(&mut Outcome),
}

impl Subject for Broken {
    fn begin(&mut self, policies: &[Arc<Policy>], base: Timestamp) -> Result<(), Failure> {
        self.core.begin(policies, base)
    }

    fn apply(&mut self, at: Timestamp, operation: &Operation) -> Result<Outcome, Failure> {
        let mut outcome = self.core.apply(at, operation)?;
        (self.break_it)(&mut outcome);
        Ok(outcome)
    }
}

fn broken(break_it: fn(&mut Outcome)) -> Report {
    run(&mut Broken { core: OnCore::new(), break_it }, &scenarios().expect("the file reads"))
}

#[test]
fn a_subject_that_allows_everything_is_caught() {
    assert!(!broken(|outcome| outcome.allowed = outcome.allowed.map(|_| true)).passed());
}

#[test]
fn a_wait_that_is_off_by_a_nanosecond_is_caught_and_described() {
    let report = broken(|outcome| {
        for figures in &mut outcome.figures {
            if let Some(Wait::After(wait)) = &mut figures.retry {
                *wait -= Duration::from_nanos(1);
            }
        }
    });
    assert!(!report.passed());
    let text = report.to_string();
    assert!(text.contains("charge 0 retry: expected After(1s), got After(999.999999ms)"), "{text}");
}

#[test]
fn figures_that_are_off_by_one_or_left_out_are_caught() {
    let faults: [fn(&mut Outcome); 6] = [
        |outcome| outcome.figures.iter_mut().for_each(|f| f.limit = f.limit.map(|limit| limit + 1)),
        |outcome| outcome.figures.iter_mut().for_each(|f| f.remaining = f.remaining.map(|r| r + 1)),
        |outcome| outcome.figures.iter_mut().for_each(|f| f.reset_after = None),
        |outcome| outcome.figures.iter_mut().for_each(|f| f.next_after = Some(Duration::ZERO)),
        |outcome| outcome.denied_by = None,
        |outcome| outcome.figures.clear(),
    ];
    for break_it in faults {
        assert!(!broken(break_it).passed());
    }
}

/// Answers as the core does, but forgets everything at each step: reservations, denials, all.
struct Amnesiac(OnCore);

impl Subject for Amnesiac {
    fn begin(&mut self, policies: &[Arc<Policy>], base: Timestamp) -> Result<(), Failure> {
        self.0.begin(policies, base)
    }

    fn apply(&mut self, at: Timestamp, operation: &Operation) -> Result<Outcome, Failure> {
        self.0 = OnCore::new();
        self.0.apply(at, operation)
    }
}

#[test]
fn a_subject_without_memory_fails_most_scenarios() {
    let report = run(&mut Amnesiac(OnCore::new()), &scenarios().unwrap());
    let mut failed: Vec<_> = report.mismatches.iter().map(|m| m.scenario.clone()).collect();
    failed.dedup();
    assert!(failed.len() * 10 >= report.ran.len() * 9, "only {} failed", failed.len());
}

#[test]
fn a_run_of_nothing_is_no_pass() {
    assert!(!run(&mut OnCore::new(), &[]).passed());
}
