use std::time::Duration;

use tollway_core::{Cost, Quota, Timestamp};

use super::super::{Feedback, Law, Outcome, Pacer, Refill, Settings};
use crate::profile::Profile;

fn heroku() -> Settings {
    Settings::default().or_profile(&Profile::builtin("heroku").expect("it is shipped"))
}

fn told(pacer: &mut Pacer, answer: Feedback) {
    let now = Timestamp::from_millis(1_000);
    let sent = pacer.on_send(Cost::ONE, now);
    pacer.on_response(sent, &answer, now);
}

fn left(units: f64) -> Feedback {
    Feedback::bare(Outcome::Accepted).with_remaining(units)
}

#[test]
fn what_was_set_by_hand_comes_before_the_profile() {
    let by_hand = Quota::new(100, Duration::from_secs(60)).expect("a valid quota");
    let profile = Profile::builtin("heroku").expect("it is shipped");
    let both = Settings::of(by_hand).refill(Refill::Window).or_profile(&profile);
    assert_eq!((both.quota(), both.refill), (Some(by_hand), Refill::Window));
    assert_eq!(heroku().quota().map(Quota::units), Some(4_500));
    assert_eq!(heroku().refill, Refill::Continuous);
}

#[test]
fn a_policy_in_an_answer_comes_before_both() {
    let mut pacer = Pacer::new(heroku());
    told(&mut pacer, left(10.0).with_policy(10, Duration::from_secs(3_600)));
    // Ten an hour, not 4,500: near the reserve of so small a quota the next one is minutes away.
    told(&mut pacer, left(1.0).with_policy(10, Duration::from_secs(3_600)));
    let now = Timestamp::from_millis(1_000);
    let wait = pacer.may_send_at(Cost::ONE, now).since(now);
    assert!(wait > Duration::from_secs(60), "{wait:?}");
}

#[test]
fn with_a_stated_quota_the_first_answer_brings_tickets_without_it_only_what_is_told() {
    let mut pacer = Pacer::new(heroku());
    told(&mut pacer, left(4_000.0));
    assert_eq!(pacer.law(), Law::Ticket);
    let mut pacer = Pacer::new(Settings::default());
    told(&mut pacer, left(4_000.0));
    assert_eq!(pacer.law(), Law::Aimd);
}

#[test]
fn a_profile_that_states_fixed_windows_is_believed_and_one_that_states_nothing_changes_nothing() {
    let of = |name| Settings::default().or_profile(&Profile::builtin(name).expect("it is shipped"));
    assert_eq!((of("github").quota(), of("github").refill), (None, Refill::Window));
    assert_eq!((of("generic").quota(), of("generic").refill), (None, Refill::Detect));
    assert_eq!(of("stripe").quota().map(Quota::units), Some(100), "stated, though never told");
}
