//! Random histories on the core, charge for charge as the oracle answers them.

use tollway_core::Settlement;
use tollway_testkit::conformance::{OnCore, Scenario, Step, Verb, Wait, run, scenarios};
use tollway_testkit::oracle::{Kind, Mix, Oracle, history, judge};

use crate::size::sized;

fn judge_many(mix: &Mix, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let history = history(seed, mix);
        for mut core in [OnCore::new(), OnCore::forgetful()] {
            judge(&mut core, &history).unwrap_or_else(|difference| panic!("{difference}"));
        }
    }
}

/// One kind alone; with everybody in time, and with some who come late.
fn one_kind(kind: &'static [Kind]) {
    let mix = Mix { kinds: kind, keys: 1, ..Mix::default() };
    judge_many(&mix, 0..sized(60, 2_000));
    let late = Mix { late: true, ..mix };
    for seed in 0..sized(120, 4_000) {
        let verdict = judge(&mut OnCore::new(), &history(seed, &late));
        verdict.unwrap_or_else(|difference| panic!("{difference}"));
    }
}

#[test]
fn gcra_answers_as_the_oracle_does() {
    one_kind(&[Kind::Gcra]);
}

#[test]
fn leaky_buckets_answer_as_the_oracle_does() {
    one_kind(&[Kind::LeakyBucket]);
}

#[test]
fn sliding_windows_answer_as_the_oracle_does() {
    one_kind(&[Kind::SlidingWindow]);
}

#[test]
fn fixed_windows_answer_as_the_oracle_does() {
    one_kind(&[Kind::FixedWindow]);
}

#[test]
fn concurrency_answers_as_the_oracle_does() {
    one_kind(&[Kind::Concurrency]);
}

#[test]
fn calendar_windows_answer_as_the_oracle_does() {
    one_kind(&[Kind::CalendarWindow]);
}

#[test]
fn shares_answer_as_the_oracle_does() {
    let mix = Mix { kinds: &[Kind::Shares], keys: 5, ..Mix::default() };
    judge_many(&mix, 0..sized(25, 4_000));
    let late = Mix { late: true, ..mix };
    for seed in 0..sized(25, 4_000) {
        let verdict = judge(&mut OnCore::new(), &history(seed, &late));
        verdict.unwrap_or_else(|difference| panic!("{difference}"));
    }
}

#[test]
fn requests_over_several_trees_and_plain_policies_answer_as_the_oracle_does() {
    let kinds = &[Kind::Shares, Kind::Gcra, Kind::Concurrency, Kind::FixedWindow];
    let mix = Mix { kinds, keys: 3, ..Mix::default() };
    judge_many(&mix, 0..sized(25, 4_000));
}

#[test]
fn requests_over_several_policies_and_keys_answer_as_the_oracle_does() {
    let mix = Mix::default();
    judge_many(&mix, 1_000..1_000 + sized(60, 3_000));
}

/// The data file is written by hand; the oracle must find it right.
#[test]
fn the_oracle_answers_every_scenario_in_which_time_runs_forwards() {
    let report = run(&mut Oracle::new(), &scenarios().unwrap());
    assert!(report.passed(), "{report}");
}

#[test]
fn a_shorter_history_is_the_beginning_of_a_longer_one() {
    let shown = |scenario: Scenario| {
        scenario.steps.iter().map(|step| format!("{step} {:?}", step.expect)).collect::<Vec<_>>()
    };
    let long = shown(history(7, &Mix::default()));
    let short = shown(history(7, &Mix { steps: 20, ..Mix::default() }));
    assert_eq!(long[..20], short);
    assert_ne!(long, shown(history(8, &Mix::default())));
}

/// A history that never denies, or never lets a reservation expire, would prove little.
#[test]
fn histories_try_everything() {
    let steps: Vec<Step> = (0..60).flat_map(|seed| history(seed, &Mix::default()).steps).collect();
    let count = |is: &dyn Fn(&Step) -> bool| steps.iter().filter(|step| is(step)).count();
    for verb in Verb::ALL {
        assert!(count(&|step| step.operation.verb() == verb) > 50, "{verb:?} is rare");
    }
    assert!(count(&|step| step.expect.allowed == Some(true)) > 1_500);
    assert!(count(&|step| step.expect.allowed == Some(false)) > 500);
    assert!(count(&|step| step.expect.settlement == Some(Settlement::Settled)) > 100);
    assert!(count(&|step| step.expect.settlement == Some(Settlement::Unknown)) > 100);
    let waits = |step: &Step, wait: fn(&Wait) -> bool| {
        step.expect.figures.iter().filter_map(|figures| figures.retry).any(|retry| wait(&retry))
    };
    assert!(count(&|step| waits(step, |wait| *wait == Wait::Never)) > 100);
    assert!(count(&|step| waits(step, |wait| matches!(wait, Wait::After(_)))) > 300);
    assert!(count(&|step| step.expect.figures.len() > 1) > 300);
}

/// Late steps that are all allowed, or all denied, would prove little too.
#[test]
fn late_histories_come_late_and_are_answered_either_way() {
    for kind in [
        [Kind::Gcra],
        [Kind::LeakyBucket],
        [Kind::SlidingWindow],
        [Kind::FixedWindow],
        [Kind::CalendarWindow],
    ] {
        let (mut newest, mut late, mut answers) = (0, 0, [0, 0]);
        let mix = Mix { kinds: Box::leak(Box::new(kind)), keys: 1, late: true, ..Mix::default() };
        for step in (0..60).flat_map(|seed| history(seed, &mix).steps) {
            if step.offset_ns < newest {
                late += 1;
                if let Some(allowed) = step.expect.allowed {
                    answers[usize::from(allowed)] += 1;
                }
            }
            newest = newest.max(step.offset_ns);
        }
        assert!(
            late > 1_000 && answers[0] > 100 && answers[1] > 100,
            "{kind:?}: {late} {answers:?}"
        );
    }
}
