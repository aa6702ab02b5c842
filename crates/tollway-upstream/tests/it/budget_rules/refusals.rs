//! What a refusal stops, and what it does not.

use std::time::Duration;

use tollway_upstream::budget::{Claim, Granted, Reason};

use super::desk::{Desk, MESSAGES, fields};

#[test]
fn a_sub_limit_blocks_its_lane_and_is_learned_from_the_second_refusal_on() {
    let mut desk = Desk::discord();
    let rename = Claim::new(desk.profile.route_with_body(
        "PATCH",
        "/api/v10/channels/1",
        br#"{"name": "x"}"#,
    ));
    let other = Claim::new(desk.profile.route_with_body(
        "PATCH",
        "/api/v10/channels/1",
        br#"{"nsfw": true}"#,
    ));
    let ok = |left| fields("patch", "5", left, "5.000");
    let refused = [
        ("via", "1.1 google"),
        ("x-ratelimit-bucket", "patch"),
        ("x-ratelimit-limit", "5"),
        ("x-ratelimit-remaining", "2"),
        ("x-ratelimit-reset-after", "5.000"),
        ("x-ratelimit-scope", "user"),
        ("retry-after", "600"),
    ];
    for left in ["4", "3"] {
        let ticket = desk.go_with(&rename);
        desk.answer(ticket, 200, &ok(left));
    }
    let third = desk.go_with(&rename);
    desk.answer(third, 429, &refused);
    let waiting = desk.wait_with(&rename);
    let allowed = desk.go_with(&other);
    desk.answer(allowed, 200, &ok("1"));
    let mut impatient = rename.clone();
    impatient = impatient.patience(Duration::from_secs(5));
    let refusal = desk.ask(&impatient).expect_err("ten minutes are too long");
    assert_eq!(refusal.reason, Reason::Patience);
    assert!(refusal.wait.is_some_and(|wait| wait > Duration::from_secs(590)));
    desk.pass(600_000);
    assert_eq!(desk.look(), [waiting], "one at a time from now on");
    let more: Vec<_> = (0..3).map(|_| desk.wait_with(&rename)).collect();
    let ticket = desk.ticket_of(waiting);
    desk.answer(ticket, 200, &ok("4"));
    assert_eq!(desk.look(), [more[0]]);
    let ticket = desk.ticket_of(more[0]);
    desk.answer(ticket, 200, &ok("3"));
    assert_eq!(desk.look(), [more[1]]);
    let ticket = desk.ticket_of(more[1]);
    desk.answer(ticket, 429, &refused);
    desk.pass(600_000);
    // Two in ten minutes, it has now been told twice: the third waits without being refused.
    let fourth = desk.wait_with(&rename);
    let fifth = desk.wait_with(&rename);
    assert_eq!(desk.look(), [more[2]]);
    let ticket = desk.ticket_of(more[2]);
    desk.answer(ticket, 200, &ok("4"));
    assert_eq!(desk.look(), [fourth]);
    let ticket = desk.ticket_of(fourth);
    desk.answer(ticket, 200, &ok("3"));
    assert!(desk.look().is_empty(), "the lane knows its limit");
    desk.pass(600_000);
    assert_eq!(desk.look(), [fifth]);
}

#[test]
fn a_shared_refusal_blocks_its_own_route_only() {
    let mut desk = Desk::discord();
    let first = desk.go(MESSAGES);
    desk.answer(first, 200, &fields("h", "5", "4", "5.000"));
    let second = desk.go(MESSAGES);
    let shared = [
        ("via", "1.1 google"),
        ("x-ratelimit-bucket", "h"),
        ("x-ratelimit-scope", "shared"),
        ("retry-after", "30"),
    ];
    desk.answer(second, 429, &shared);
    let blocked = desk.wait(MESSAGES);
    let pins = desk.go("/api/v10/channels/1/pins");
    desk.answer(pins, 200, &fields("h", "5", "2", "4.000"));
    assert!(matches!(desk.get("/api/v10/channels/1/pins"), Granted::Now(_)));
    assert!(desk.look().is_empty());
    desk.pass(30_000);
    assert_eq!(desk.look(), [blocked]);
}

#[test]
fn a_global_refusal_stops_everything_but_what_is_exempt() {
    let mut desk = Desk::discord();
    let first = desk.go(MESSAGES);
    desk.answer(first, 429, &[("via", "x"), ("x-ratelimit-global", "true"), ("retry-after", "7")]);
    let waiter = desk.wait("/api/v10/guilds/2");
    let callback = desk.claim("POST", "/api/v10/interactions/1/token/callback");
    assert!(matches!(desk.ask(&callback), Ok(Granted::Now(_))));
    let followup = desk.claim("POST", "/api/v10/webhooks/9/aW50ZXJhY3Rpb246MTE4");
    assert!(matches!(desk.ask(&followup), Ok(Granted::Now(_))));
    assert_eq!(desk.earliest_ms(), Some(7_000));
    desk.pass(7_000);
    assert_eq!(desk.look(), [waiter]);
}

#[test]
fn lies_and_nonsense_end_in_waits_with_a_bound() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    desk.answer(probe, 429, &[("retry-after", "99999999999"), ("x-ratelimit-scope", "user")]);
    desk.wait(MESSAGES);
    assert_eq!(desk.earliest_ms(), Some(86_400_000));
    let mut desk = Desk::discord();
    let mut ticket = desk.go(MESSAGES);
    let mut waits = Vec::new();
    for _ in 0..12 {
        desk.answer(ticket, 429, &[("via", "x"), ("x-ratelimit-scope", "user")]);
        let waiter = desk.wait(MESSAGES);
        let wait = desk.earliest_ms().expect("it waits for time, not for ever");
        waits.push(wait);
        desk.pass(u64::try_from(wait).expect("short"));
        assert_eq!(desk.look(), [waiter]);
        ticket = desk.ticket_of(waiter);
    }
    assert!(waits.is_sorted() && waits[0] == 1_000 && waits[11] == 300_000, "{waits:?}");
}
