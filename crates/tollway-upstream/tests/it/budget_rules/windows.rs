//! How much is left and until when, whatever answers come late, lost or askew.

use tollway_upstream::budget::{Granted, Settings};
use tollway_upstream::profile::Profile;

use super::desk::{Desk, EPOCH, MESSAGES, fields};

#[test]
fn the_global_limit_is_taken_when_a_request_leaves_not_when_it_asks() {
    let mut desk = Desk::discord();
    let first = desk.go(MESSAGES);
    desk.answer(first, 200, &fields("h", "1", "0", "3.000"));
    for channel in 0..49 {
        let _ = desk.go(&format!("/api/v10/channels/{}/messages", channel + 100));
    }
    let held = desk.wait(MESSAGES);
    let other = desk.wait("/api/v10/channels/999/messages");
    desk.pass(1_100);
    assert_eq!(desk.look(), [other], "the fifty have left the window, the bucket is spent still");
    desk.pass(1_901);
    assert_eq!(desk.look(), [held]);
}

#[test]
fn a_late_answer_of_an_old_window_neither_refills_nor_shortens_the_new_one() {
    let mut desk = Desk::discord();
    let first = desk.go(MESSAGES);
    desk.answer(first, 200, &fields("h", "3", "2", "1.000"));
    let late = desk.go(MESSAGES);
    desk.pass(1_001);
    let new = desk.go(MESSAGES);
    desk.answer(new, 200, &fields("h", "3", "2", "1.000"));
    // It was counted at the end of the old window, and 40 ms were left then.
    desk.answer(late, 200, &fields("h", "3", "0", "0.040"));
    assert!(matches!(desk.get(MESSAGES), Granted::Later(_)));
    desk.pass(41);
    assert_eq!(desk.look().len(), 1);
    let _ = desk.go(MESSAGES);
    assert!(matches!(desk.get(MESSAGES), Granted::Later(_)), "two were left, not three");
    assert_eq!(desk.earliest_ms(), Some(960));
}

#[test]
fn a_reset_that_moves_is_a_sliding_window_and_gives_back_unit_by_unit() {
    let mut desk = Desk::discord();
    for (left, after) in [("4", "1.000"), ("3", "1.990"), ("2", "2.980")] {
        let ticket = desk.go(MESSAGES);
        desk.pass(10);
        desk.answer(ticket, 200, &fields("h", "5", left, after));
    }
    let view = &desk.budgets.buckets(0, 10, desk.now).buckets[0];
    assert_eq!(view.dimensions[0].sliding, Some(true));
    let ticket = desk.go(MESSAGES);
    desk.answer(ticket, 200, &fields("h", "5", "1", "3.970"));
    let ticket = desk.go(MESSAGES);
    desk.answer(ticket, 200, &fields("h", "5", "0", "4.960"));
    let waiter = desk.wait(MESSAGES);
    assert_eq!(desk.earliest_ms(), Some(992), "a fifth of the time until all are back");
    desk.pass(993);
    assert_eq!(desk.look(), [waiter]);
}

#[test]
fn a_dropped_probe_makes_room_for_the_next() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    let waiter = desk.wait(MESSAGES);
    desk.budgets.abandon(probe, desk.now);
    assert_eq!(desk.look(), [waiter]);
}

#[test]
fn a_probe_that_hangs_keeps_the_others_for_one_lease_only() {
    let mut desk = Desk::discord();
    let _hangs = desk.go(MESSAGES);
    let waiter = desk.wait(MESSAGES);
    assert_eq!(desk.earliest_ms(), Some(Settings::default().lease.as_millis()));
    desk.pass(10_000);
    assert_eq!(desk.look(), [waiter]);
}

#[test]
fn a_request_that_was_never_sent_gives_its_unit_back() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    desk.answer(probe, 200, &fields("h", "2", "1", "5.000"));
    let unsent = desk.go(MESSAGES);
    let waiter = desk.wait(MESSAGES);
    desk.budgets.cancel(unsent, desk.now);
    assert_eq!(desk.look(), [waiter]);
}

#[test]
fn clocks_that_differ_do_not_spoil_an_absolute_reset() {
    let mut desk = Desk::of(Profile::builtin("x").expect("it is shipped"));
    let claim = desk.claim("GET", "/2/users/1/tweets");
    let ticket = desk.go_with(&claim);
    // The upstream's clock is an hour ahead of the reader's, and its window ends in 100 s.
    let ahead = EPOCH.as_secs() + 3_600;
    let reset = (ahead + 100).to_string();
    let answer = [
        ("date", "Sun, 15 Nov 2026 17:00:00 GMT"),
        ("x-rate-limit-limit", "15"),
        ("x-rate-limit-remaining", "0"),
        ("x-rate-limit-reset", reset.as_str()),
    ];
    desk.answer(ticket, 200, &answer);
    desk.wait_with(&claim);
    assert_eq!(desk.earliest_ms(), Some(101_000), "and the second that may be rounded off");
}

#[test]
fn a_refill_that_nobody_tells_is_modelled() {
    let mut desk = Desk::of(Profile::builtin("heroku").expect("it is shipped"));
    let claim = desk.claim("GET", "/apps");
    let ticket = desk.go_with(&claim);
    desk.answer(ticket, 200, &[("ratelimit-remaining", "0")]);
    desk.wait_with(&claim);
    assert_eq!(desk.earliest_ms(), Some(800), "4,500 an hour are one in 0.8 s");
    let mut desk = Desk::of(Profile::builtin("shopify").expect("it is shipped"));
    let claim = desk.claim("GET", "/admin/products.json");
    let ticket = desk.go_with(&claim);
    desk.answer(ticket, 200, &[("x-shopify-shop-api-call-limit", "40/40")]);
    desk.wait_with(&claim);
    assert_eq!(desk.earliest_ms(), Some(500));
}

#[test]
fn a_limit_that_nobody_tells_is_counted_here() {
    let mut desk = Desk::of(Profile::builtin("stripe").expect("it is shipped"));
    let claim = desk.claim("GET", "/v1/charges");
    let mut open = desk.go_with(&claim);
    for sent in 1..25 {
        desk.answer(open, 200, &[]);
        open = match desk.ask(&claim) {
            Ok(Granted::Now(ticket)) => ticket,
            other => panic!("{sent}: {other:?}"),
        };
    }
    desk.answer(open, 200, &[]);
    desk.wait_with(&claim);
    assert_eq!(desk.earliest_ms(), Some(1_100), "25 a second, and 100 ms for the way");
}
