//! What a refusal stops, and what it does not.

use std::sync::Arc;
use std::time::Duration;

use tollway_upstream::budget::{Claim, Granted, Reason};
use tollway_upstream::profile::Profile;

use super::desk::{Desk, MESSAGES, fields};

#[test]
fn a_sub_limit_blocks_its_lane_and_is_learned_from_the_first_refusal_on() {
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
    assert_eq!(desk.look(), [waiting], "one goes first");
    let more: Vec<_> = (0..3).map(|_| desk.wait_with(&rename)).collect();
    let ticket = desk.ticket_of(waiting);
    desk.answer(ticket, 200, &ok("4"));
    assert_eq!(desk.look(), [more[0]], "two in ten minutes: the third waits without being refused");
    let ticket = desk.ticket_of(more[0]);
    desk.answer(ticket, 200, &ok("3"));
    assert!(desk.look().is_empty(), "the lane knows its limit");
    desk.pass(600_000);
    assert_eq!(desk.look(), more[1..]);
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

/// Row 14 of what real clients found: one absurd answer shut a bucket for a day.
#[test]
fn after_a_reset_that_nobody_can_mean_one_request_sees_what_is_true() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    desk.answer(probe, 200, &fields("h", "5", "0", "253402300799"));
    let waiting: Vec<_> = (0..3).map(|_| desk.wait(MESSAGES)).collect();
    assert_eq!(desk.earliest_ms(), Some(300_001), "with the slack of the profile");
    desk.pass(300_001);
    assert_eq!(desk.look(), waiting[..1], "the others wait for its answer");
    let ticket = desk.ticket_of(waiting[0]);
    desk.answer(ticket, 200, &fields("h", "5", "4", "5.000"));
    assert_eq!(desk.look(), waiting[1..]);
    // A quota of a week is looked at once a day.
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    desk.answer(probe, 429, &[("retry-after", "604800"), ("x-ratelimit-scope", "user")]);
    desk.wait(MESSAGES);
    assert_eq!(desk.earliest_ms(), Some(86_400_000));
}

#[test]
fn after_a_wait_of_the_credential_one_request_goes_first_and_the_rest_follow_its_answer() {
    let mut desk = Desk::discord();
    let first = desk.go(MESSAGES);
    desk.answer(first, 200, &fields("h", "5", "4", "60.000"));
    let stopped = [("via", "x"), ("x-ratelimit-global", "true"), ("retry-after", "7")];
    let burst = [desk.go(MESSAGES), desk.go(MESSAGES)];
    desk.answer(burst[0], 429, &stopped);
    desk.answer(burst[1], 429, &stopped);
    let guilds = (2..5).map(|guild| desk.wait(&format!("/api/v10/guilds/{guild}")));
    let waiters: Vec<_> = guilds.collect();
    desk.pass(7_000);
    assert_eq!(desk.look(), waiters[..1], "one goes first");
    let probe = desk.ticket_of(waiters[0]);
    desk.answer(probe, 429, &stopped);
    desk.pass(6_999);
    assert!(desk.look().is_empty(), "it was refused: all wait again");
    desk.pass(1);
    assert_eq!(desk.look(), waiters[1..2]);
    let probe = desk.ticket_of(waiters[1]);
    desk.budgets.cancel(probe, desk.now);
    assert_eq!(desk.look(), waiters[2..], "it was never sent, so the next one goes first");
    let more = [desk.wait("/api/v10/guilds/8"), desk.wait("/api/v10/guilds/9")];
    let probe = desk.ticket_of(waiters[2]);
    desk.answer(probe, 200, &[("via", "x")]);
    assert_eq!(desk.look(), more, "it was served: the rest follow");
}

#[test]
fn a_wait_of_the_credential_that_is_not_told_doubles_once_for_a_burst() {
    let mut desk = Desk::of(Profile::builtin("stripe").expect("it is shipped"));
    let targets = ["/v1/charges", "/v1/customers", "/v1/payouts", "/v1/refunds"];
    let burst: Vec<_> = targets.iter().map(|target| desk.go(target)).collect();
    for ticket in burst {
        desk.pass(5);
        desk.answer(ticket, 429, &[("stripe-rate-limited-reason", "global-rate")]);
    }
    desk.wait("/v1/charges");
    assert_eq!(desk.earliest_ms(), Some(1_000));
}

#[test]
fn what_github_calls_content_has_a_lane_of_its_own_and_opens_up_step_by_step() {
    let mut desk = Desk::of(Profile::builtin("github").expect("it is shipped"));
    let told = [
        ("x-ratelimit-limit", "5000"),
        ("x-ratelimit-remaining", "4999"),
        ("x-ratelimit-reset", "1794762000"),
        ("x-ratelimit-resource", "core"),
    ];
    let issue = desk.claim("POST", "/repos/a/b/issues");
    let first = desk.go_with(&issue);
    let waiters: Vec<_> = (0..16).map(|_| desk.wait_with(&issue)).collect();
    desk.answer(first, 200, &told);
    assert_eq!(desk.look(), waiters[..2], "not sixteen at once");
    let read = desk.go("/repos/a/b/issues");
    desk.answer(read, 200, &told);
    let [second, third] = [waiters[0], waiters[1]].map(|waiter| desk.ticket_of(waiter));
    desk.answer(second, 200, &told);
    // Two in some seconds: the whole credential stands, and only content is limited afterwards.
    let mut stopped = told.to_vec();
    stopped.push(("retry-after", "3"));
    desk.answer(third, 403, &stopped);
    for waiter in desk.look() {
        let ticket = desk.ticket_of(waiter);
        desk.answer(ticket, 403, &stopped);
    }
    desk.pass(3_000);
    let reads: Vec<_> = (0..4).map(|_| desk.claim("GET", "/repos/a/b/issues")).collect();
    let reads: Vec<_> = reads.iter().map(|read| desk.wait_with(read)).collect();
    let probe = desk.look();
    assert_eq!(probe.len(), 1, "one goes first");
    let ticket = desk.ticket_of(probe[0]);
    desk.answer(ticket, 200, &told);
    let gone = desk.look();
    assert!(reads.iter().all(|read| gone.contains(read)), "{gone:?}");
    assert!(gone.len() <= reads.len() + 1, "{gone:?}");
}

#[test]
fn each_value_of_a_field_that_the_profile_names_has_a_limit_of_its_own() {
    let mut desk = Desk::of(Profile::builtin("slack").expect("it is shipped"));
    let post = |desk: &Desk, body: &str| {
        Claim::new(desk.profile.route_with_body("POST", "/api/chat.postMessage", body.as_bytes()))
    };
    let one = post(&desk, r#"{"channel": "C1", "text": "hello"}"#);
    let other = post(&desk, "token=x&channel=C2&text=hello");
    assert_eq!((one.route.major(), other.route.major()), ("C1", "C2"));
    assert!(desk.profile.body_lanes("POST", "/api/chat.postMessage"));
    for wait in [None, Some(("retry-after", "1"))] {
        let ticket = desk.go_with(&one);
        desk.answer(ticket, if wait.is_some() { 429 } else { 200 }, wait.as_slice());
    }
    let blocked = desk.wait_with(&one);
    let ticket = desk.go_with(&other);
    desk.answer(ticket, 200, &[]);
    desk.pass(1_000);
    assert_eq!(desk.look(), [blocked]);
}

#[test]
fn a_profile_says_how_many_may_go_before_the_first_answer() {
    let text = "name = 'burst'\nfirst_burst = 3\n[[dimensions]]\nname = 'requests'\n\
        limit = 'l'\nremaining = 'r'\n";
    let mut desk = Desk::of(Arc::new(Profile::parse(text).expect("a valid profile")));
    let burst: Vec<_> = (0..3).map(|_| desk.go("/a")).collect();
    let waiters: Vec<_> = (0..4).map(|_| desk.wait("/a")).collect();
    desk.answer(burst[0], 200, &[("l", "5"), ("r", "4")]);
    assert_eq!(desk.look(), waiters[..2], "two of the four that are left are under way");
    let error = Profile::parse("name = 'none'\nfirst_burst = 0\n").expect_err("none may go");
    assert!(error.to_string().contains("first_burst: 0 is not a number from 1"), "{error}");
}

#[test]
fn a_profile_says_how_many_may_be_refused_at_once_by_a_limit_that_nothing_tells() {
    let text = |opens_up_to: u32| format!("name = 'hidden'\nopens_up_to = {opens_up_to}\n");
    let mut desk = Desk::of(Arc::new(Profile::parse(&text(2)).expect("a valid profile")));
    let mut under_way = vec![desk.go("/a")];
    for _ in 0..20 {
        desk.wait("/a");
    }
    for served in 0..8 {
        desk.answer(under_way.remove(0), 200, &[]);
        under_way.extend(desk.look().iter().map(|waiter| desk.ticket_of(*waiter)));
        assert_eq!(under_way.len(), 2, "after {served}");
    }
    // And of a lane no more than two.
    let lane = "name = 'lane'\n[[rules]]\nmatch = 'GET /a'\nlane = { name = 'a' }\n";
    let mut desk = Desk::of(Arc::new(Profile::parse(lane).expect("a valid profile")));
    let first = desk.go("/a");
    for _ in 0..20 {
        desk.wait("/a");
    }
    desk.answer(first, 200, &[]);
    let gone = desk.look();
    assert_eq!(gone.len(), 2);
    for waiter in gone {
        let ticket = desk.ticket_of(waiter);
        desk.answer(ticket, 200, &[]);
    }
    assert_eq!(desk.look().len(), 2);
    let error = Profile::parse(&text(0)).expect_err("none may go");
    assert!(error.to_string().contains("opens_up_to: 0 is not a number from 1"), "{error}");
}

/// As many are refused together as are under way where a limit begins that nobody expects.
#[test]
fn where_nobody_expects_a_limit_a_quarter_of_what_was_accepted_is_under_way_or_two_roots() {
    let mut desk = Desk::of(Arc::new(Profile::parse("name = 'silent'\n").expect("a profile")));
    let mut under_way = std::collections::VecDeque::from([desk.go("/a")]);
    for _ in 0..500 {
        desk.wait("/a");
    }
    for accepted in 1..=400_usize {
        let ticket = under_way.pop_front().expect("somebody is under way");
        desk.answer(ticket, 200, &[]);
        under_way.extend(desk.look().iter().map(|waiter| desk.ticket_of(*waiter)));
        let part = (accepted / 4).min(2 * accepted.isqrt());
        assert_eq!(under_way.len(), part.max(2), "after {accepted}");
    }
}

/// However long a round trip takes, a limit that is documented is used.
#[test]
fn where_the_documentation_states_a_limit_requests_also_go_at_its_pace() {
    let text = "name = 'stated'\n[[dimensions]]\nname = 'requests'\nstated = '25/1s'\n";
    let mut desk = Desk::of(Arc::new(Profile::parse(text).expect("a profile")));
    let first = desk.go("/a");
    for _ in 0..20 {
        desk.wait("/a");
    }
    desk.answer(first, 200, &[]);
    assert_eq!(desk.look().len(), 2);
    for _ in 0..10 {
        desk.pass(39);
        assert_eq!(desk.look().len(), 0);
        desk.pass(1);
        assert_eq!(desk.look().len(), 1);
    }
}

#[test]
fn lies_and_nonsense_end_in_waits_with_a_bound() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    desk.answer(probe, 429, &[("retry-after", "99999999999"), ("x-ratelimit-scope", "user")]);
    desk.wait(MESSAGES);
    assert_eq!(desk.earliest_ms(), Some(300_000), "not for ever, nor for a day");
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
