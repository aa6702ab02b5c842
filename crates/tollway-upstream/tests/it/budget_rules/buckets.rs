//! Which bucket counts a request, how it is learned, shown and forgotten.

use std::sync::Arc;
use std::time::Duration;

use tollway_upstream::budget::{Budgets, Granted, Knowledge, Reason, Settings};
use tollway_upstream::profile::Profile;

use super::desk::{Desk, MESSAGES, fields};

#[test]
fn one_probe_goes_and_its_header_fields_release_as_many_as_are_left() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    let waiters: Vec<_> = (0..6).map(|_| desk.wait(MESSAGES)).collect();
    assert!(desk.look().is_empty());
    desk.answer(probe, 200, &fields("h", "5", "4", "2.000"));
    assert_eq!(desk.look(), waiters[..4], "in order, as many as are left");
    assert_eq!(desk.earliest_ms(), Some(2_001), "the reset, and what may be rounded off");
    desk.pass(2_001);
    assert_eq!(desk.look(), [waiters[4]], "five fit, but the four in flight may arrive late");
    for waiter in &waiters[..4] {
        let ticket = desk.ticket_of(*waiter);
        desk.answer(ticket, 200, &fields("h", "5", "0", "0.001"));
    }
    desk.pass(2);
    assert_eq!(desk.look(), [waiters[5]]);
}

#[test]
fn a_route_without_fields_opens_up_step_by_step() {
    let mut desk = Desk::discord();
    let probe = desk.go("/api/v10/gateway");
    let waiters: Vec<_> = (0..7).map(|_| desk.wait("/api/v10/gateway")).collect();
    desk.answer(probe, 200, &[("via", "1.1 google")]);
    assert_eq!(desk.look().len(), 2, "one, and one more for the first success");
    for waiter in &waiters[..2] {
        let ticket = desk.ticket_of(*waiter);
        desk.answer(ticket, 200, &[("via", "1.1 google")]);
    }
    assert_eq!(desk.look().len(), 2, "as many as were answered");
}

#[test]
fn routes_of_one_hash_share_a_bucket_and_a_channel_has_its_own() {
    let mut desk = Desk::discord();
    let first = desk.go("/api/v10/channels/1/messages/5");
    desk.answer(first, 200, &fields("shared", "2", "1", "5.000"));
    let second = desk.go("/api/v10/channels/1/pins");
    let waiter = desk.wait("/api/v10/channels/1/pins");
    desk.answer(second, 200, &fields("shared", "2", "0", "4.000"));
    assert!(desk.look().is_empty(), "merged: nothing is left for either route");
    assert!(matches!(desk.get("/api/v10/channels/1/messages/6"), Granted::Later(_)));
    assert!(matches!(desk.get("/api/v10/channels/2/pins"), Granted::Now(_)), "another channel");
    desk.pass(4_001);
    assert_eq!(desk.look()[0], waiter);
    let names: Vec<_> =
        desk.budgets.buckets(0, 10, desk.now).buckets.into_iter().map(|bucket| bucket.id).collect();
    assert!(names.contains(&"shared 1".to_owned()), "{names:?}");
}

#[test]
fn a_hash_that_changes_takes_the_route_with_it() {
    let mut desk = Desk::discord();
    let first = desk.go(MESSAGES);
    desk.answer(first, 200, &fields("old", "5", "4", "1.000"));
    let tickets: Vec<_> = (0..4).map(|_| desk.go(MESSAGES)).collect();
    let waiter = desk.wait(MESSAGES);
    desk.answer(tickets[0], 200, &fields("new", "10", "6", "3.000"));
    assert_eq!(desk.look(), [waiter], "six are left in the new one, three of them in flight");
    let page = desk.budgets.buckets(0, 10, desk.now);
    let new = page.buckets.iter().find(|bucket| bucket.id == "new 1").expect("it is there");
    assert_eq!((new.in_flight, new.dimensions[0].remaining), (4, 2));
    for ticket in &tickets[1..] {
        desk.answer(*ticket, 200, &fields("new", "10", "2", "2.900"));
    }
}

#[test]
fn a_late_answer_under_the_old_name_does_not_bring_the_route_back() {
    let mut desk = Desk::discord();
    let first = desk.go(MESSAGES);
    desk.answer(first, 200, &fields("old", "5", "4", "0.100"));
    desk.pass(102);
    // The name changes while five are on their way: two are counted before it does.
    let flying: Vec<_> = (0..5).map(|_| desk.go(MESSAGES)).collect();
    let waiters: Vec<_> = (0..5).map(|_| desk.wait(MESSAGES)).collect();
    let answers =
        [("old", "4", 0), ("new", "2", 2), ("new", "1", 3), ("new", "0", 4), ("old", "3", 1)];
    for (name, left, index) in answers {
        desk.answer(flying[index], 200, &fields(name, "5", left, "1.000"));
        assert!(desk.look().is_empty(), "{name} {left}: all five are spent");
    }
    desk.pass(1_002);
    assert_eq!(desk.look(), waiters);
    // An answer to a request that left since is newer for certain.
    let again = desk.ticket_of(waiters[0]);
    desk.answer(again, 200, &fields("old", "9", "8", "1.000"));
    let view = desk.budgets.buckets(0, 10, desk.now);
    let old = view.buckets.iter().find(|bucket| bucket.id == "old 1").expect("it is there");
    assert_eq!(old.in_flight, 4, "the others have moved with the route");
}

#[test]
fn an_unlocked_bucket_sends_a_probe() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    desk.answer(probe, 200, &fields("h", "5", "0", "3600"));
    let waiter = desk.wait(MESSAGES);
    desk.wait(MESSAGES);
    assert!(!desk.budgets.unlock("nothing", desk.now));
    assert!(desk.budgets.unlock("h 1", desk.now));
    assert_eq!(desk.look(), [waiter], "one alone");
}

#[test]
fn a_bucket_shows_what_it_knows() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    desk.answer(probe, 200, &fields("h", "5", "4", "5.000"));
    let _flying = desk.go(MESSAGES);
    let other = desk.go(MESSAGES);
    // Somebody else took two.
    desk.answer(other, 200, &fields("h", "5", "0", "4.900"));
    desk.wait(MESSAGES);
    let page = desk.budgets.buckets(0, 10, desk.now);
    let bucket = &page.buckets[0];
    assert_eq!((bucket.id.as_str(), bucket.knowledge), ("h 1", Knowledge::Known));
    assert_eq!((bucket.in_flight, bucket.queued), (1, 1));
    assert_eq!((bucket.dimensions[0].limit, bucket.dimensions[0].remaining), (5, 0));
    assert_eq!(bucket.divergence, -2);
    assert!(bucket.wait > Duration::from_millis(4_800), "{:?}", bucket.wait);
    assert_eq!(page.next, None);
}

#[test]
fn a_table_that_is_full_forgets_what_says_nothing_and_forgives_nobody() {
    let profile = Profile::builtin("discord").expect("it is shipped");
    let mut desk = Desk::of(Arc::clone(&profile));
    desk.budgets = Budgets::new(profile, Settings { buckets_max: 4, ..Settings::default() });
    for channel in 0..3 {
        let ticket = desk.go(&format!("/api/v10/channels/{channel}/messages"));
        desk.answer(ticket, 200, &fields("h", "1", "0", "3600"));
        desk.pass(2_000);
    }
    for channel in 10..30 {
        let ticket = desk.go(&format!("/api/v10/channels/{channel}/messages"));
        desk.answer(ticket, 200, &fields("h", "5", "4", "1.000"));
        desk.pass(2_000);
    }
    assert!(desk.budgets.bucket_count() <= 4);
    for channel in 0..3 {
        let target = format!("/api/v10/channels/{channel}/messages");
        assert!(matches!(desk.get(&target), Granted::Later(_)), "{channel} is spent still");
    }
    let ticket = desk.go("/api/v10/channels/40/messages");
    let refusal = desk.ask(&desk.claim("GET", "/api/v10/channels/41/messages"));
    assert_eq!(refusal.expect_err("all four are in use").reason, Reason::BucketsFull);
    desk.answer(ticket, 200, &fields("h", "5", "4", "1.000"));
}

#[test]
fn idle_buckets_are_forgotten() {
    let mut desk = Desk::discord();
    for channel in 0..1_000 {
        let ticket = desk.go(&format!("/api/v10/channels/{channel}/messages"));
        desk.answer(ticket, 200, &fields("h", "5", "4", "1.000"));
        desk.pass(50);
    }
    assert_eq!(desk.budgets.bucket_count(), 1_000);
    desk.pass(3_600_000);
    for _ in 0..600 {
        let ticket = desk.go(MESSAGES);
        desk.answer(ticket, 200, &fields("h", "5", "4", "1.000"));
        desk.pass(2_000);
    }
    assert_eq!(desk.budgets.bucket_count(), 1);
}

#[test]
fn a_route_that_the_upstream_counts_in_another_class_than_the_profile_waits_for_that_one() {
    let mut desk = Desk::of(Profile::builtin("github").expect("it is shipped"));
    let spent = |resource: &'static str| {
        [
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", "1794758460"),
            ("x-ratelimit-resource", resource),
        ]
    };
    // The profile takes it for `core`; GitHub counts it apart.
    let sbom = "/repos/a/b/dependency-graph/sbom";
    let first = desk.go(sbom);
    desk.answer(first, 200, &spent("dependency_sbom"));
    desk.wait(sbom);
    let other = desk.go("/repos/a/b/issues");
    desk.answer(
        other,
        200,
        &[
            ("x-ratelimit-limit", "5000"),
            ("x-ratelimit-remaining", "4999"),
            ("x-ratelimit-reset", "1794758460"),
            ("x-ratelimit-resource", "core"),
        ],
    );
    let _more = [desk.go("/repos/a/b/issues"), desk.go("/repos/a/b/pulls")];
    desk.wait(sbom);
}
