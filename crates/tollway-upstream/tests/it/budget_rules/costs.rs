//! What a request takes: stated by name, corrected when its answer tells.

use std::sync::Arc;
use std::time::Duration;

use tollway_upstream::budget::{
    BucketRoom, Budgets, Claim, Correction, Granted, Reason, Settings, Ticket,
};
use tollway_upstream::profile::{Observation, Profile, Usage};

use super::desk::Desk;

/// A model server that tells nothing but what was used.
const MODEL: &str = "name = 'model'\n[[dimensions]]\nname = 'requests'\nstated = '100/1m'\n\
    [[dimensions]]\nname = 'tokens'\nstated = '1000/1m'\nusage = { body = 'usage.total' }\n";

fn model() -> Desk {
    Desk::of(Arc::new(Profile::parse(MODEL).expect("a valid profile")))
}

fn tokens(desk: &Desk, units: u32) -> Claim {
    let claim = desk.claim("POST", "/chat");
    claim.cost_named(&desk.profile, "tokens", units).expect("it has tokens")
}

/// The answer to a claim that left so long ago tells nothing in its head, and this in its body.
fn answer(desk: &mut Desk, claim: &Claim, ticket: Ticket, body: &[u8], ago: Duration) {
    let told = Observation::default();
    desk.observe(ticket, &told);
    let usage = desk.profile.usage_in_body(body);
    if let Some(correction) = Correction::of(claim, &told, &usage, ago) {
        desk.budgets.correct(&correction, desk.now);
    }
}

#[test]
fn a_cost_is_stated_by_the_name_of_its_dimension() {
    let mut desk = model();
    let large = tokens(&desk, 600);
    let first = desk.go_with(&large);
    desk.observe(first, &Observation::default());
    let _small = desk.go_with(&tokens(&desk, 400));
    assert!(matches!(desk.ask(&tokens(&desk, 1)), Ok(Granted::Later(_))), "a thousand are taken");
    let never = desk.ask(&tokens(&desk, 1_001)).expect_err("more than there ever are");
    assert_eq!(never.reason, Reason::TooCostly);
    let unknown = desk.claim("POST", "/chat").cost_named(&desk.profile, "words", 1);
    assert_eq!(unknown.expect_err("no such dimension").reason, Reason::NoSuchDimension);
}

#[test]
fn what_was_not_used_after_all_lets_the_next_go() {
    let mut desk = model();
    let claim = tokens(&desk, 900);
    let first = desk.go_with(&claim);
    let waiting = desk.wait_with(&tokens(&desk, 800));
    desk.pass(1_000);
    answer(&mut desk, &claim, first, br#"{"usage": {"total": 150}}"#, Duration::from_secs(1));
    assert_eq!(desk.look(), [waiting], "850 are left");
    assert!(matches!(desk.ask(&tokens(&desk, 51)), Ok(Granted::Later(_))), "50 are left");
}

#[test]
fn what_was_used_beyond_the_estimate_counts() {
    let mut desk = model();
    // A request that does not say counts as one.
    let claim = desk.claim("POST", "/chat");
    let first = desk.go_with(&claim);
    answer(&mut desk, &claim, first, br#"{"usage": {"total": 700}}"#, Duration::ZERO);
    let held = desk.wait_with(&tokens(&desk, 301));
    desk.pass(59_000);
    assert_eq!(desk.look(), []);
    desk.pass(1_001);
    assert_eq!(desk.look(), [held]);
}

/// What is given back must not forgive what others have used.
#[test]
fn what_is_given_back_is_never_more_than_the_estimate_that_still_counts() {
    let mut desk = model();
    let old = tokens(&desk, 500);
    let slow = desk.go_with(&old);
    desk.observe(slow, &Observation::default());
    desk.pass(61_000);
    // The window of the slow one is over; these are others'.
    let other = desk.go_with(&tokens(&desk, 900));
    desk.observe(other, &Observation::default());
    let usage: Usage = desk.profile.usage_in_body(br#"{"usage": {"total": 0}}"#);
    let told = Observation::default();
    let late = Correction::of(&old, &told, &usage, Duration::from_secs(61)).expect("it differs");
    desk.budgets.correct(&late, desk.now);
    assert!(matches!(desk.ask(&tokens(&desk, 101)), Ok(Granted::Later(_))));
}

/// Row 15 of what real clients found: the bounds of ledgers multiplied.
#[test]
fn ledgers_in_one_room_remember_no_more_together_than_it_has() {
    let profile = Profile::builtin("discord").expect("it is shipped");
    let room = BucketRoom::new(100);
    let fresh = || Budgets::new(Arc::clone(&profile), Settings::default()).within(&room);
    let (mut one, mut other) = (Desk::discord(), Desk::discord());
    (one.budgets, other.budgets) = (fresh(), fresh());
    let path = |number: u32| format!("/api/v10/channels/{number}/messages");
    let tickets: Vec<Ticket> = (0..60)
        .map(|number| {
            // The limit over all routes is not what is tested.
            one.pass(50);
            one.go(&path(number))
        })
        .collect();
    other.now = one.now;
    for number in 0..40 {
        other.pass(50);
        let _ = other.go(&path(number));
    }
    assert_eq!(room.taken(), 100);
    let claim = other.claim("GET", &path(99));
    let full = other.ask(&claim).expect_err("all are in use");
    assert_eq!(full.reason, Reason::BucketsFull);
    // The first ledger's are answered, and nobody asks anything of it any more.
    one.now = other.now;
    for ticket in tickets {
        one.observe(ticket, &Observation::default());
    }
    one.pass(10_001);
    for _ in 0..20 {
        one.budgets.tend(one.now);
    }
    assert!(room.taken() <= 87, "what is idle is forgotten: {}", room.taken());
    other.now = one.now;
    assert!(other.ask(&claim).is_ok());
    drop(one);
    assert_eq!(room.taken(), other.budgets.bucket_count());
}
