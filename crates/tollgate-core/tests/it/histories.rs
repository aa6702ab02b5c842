//! Random histories on the core, charge for charge as the oracle answers them.

use tollgate_sim::conformance::{OnCore, Scenario, Subject, run, scenarios};
use tollgate_sim::oracle::{Kind, Mix, Oracle, history};

use crate::size::sized;

/// The first mismatch of the shortest beginning of a history that has one.
fn judge(subject: &mut dyn Subject, seed: u64, mix: &Mix) {
    let whole = history(seed, mix);
    let report = run(subject, std::slice::from_ref(&whole));
    if let Some(first) = report.mismatches.first() {
        let steps: Vec<String> =
            whole.steps[..=first.step].iter().map(|step| format!("{step}")).collect();
        panic!("{first}\npolicies {:#?}\nafter\n{}", whole.policies, steps.join("\n"));
    }
}

fn judge_many(mix: &Mix, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        judge(&mut OnCore::new(), seed, mix);
        judge(&mut OnCore::forgetful(), seed, mix);
    }
}

fn one_kind(kind: &'static [Kind]) {
    let mix = Mix { kinds: kind, keys: 1, repeats: false, ..Mix::default() };
    judge_many(&mix, 0..sized(40, 4_000));
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
fn requests_over_several_policies_and_keys_answer_as_the_oracle_does() {
    let mix = Mix { repeats: false, ..Mix::default() };
    judge_many(&mix, 1_000..1_000 + sized(60, 6_000));
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
