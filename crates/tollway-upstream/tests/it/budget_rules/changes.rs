//! What budgets tell of: that a limit is known, another, refused or free again, and why somebody
//! waits.

use std::time::Duration;

use tollway_upstream::budget::{BucketView, Change, ChangeKind, WaitCause};
use tollway_upstream::profile::Scope;

use super::desk::{Desk, MESSAGES, fields};

const ROUTE: &str = "GET /channels/:major/messages";

impl Desk {
    fn changes(&mut self) -> Vec<Change> {
        self.budgets.take_changes(self.now)
    }

    fn view(&self, name: &str) -> BucketView {
        let page = self.budgets.buckets(0, 100, self.now);
        let found = page.buckets.iter().find(|bucket| bucket.id == name);
        found.unwrap_or_else(|| panic!("{name} in {page:?}")).clone()
    }

    fn causes(&self, name: &str) -> Vec<WaitCause> {
        self.view(name).why.iter().map(|why| why.cause).collect()
    }
}

/// The window as it was told, and the slack of the profile.
fn learned(limit: u64) -> ChangeKind {
    let window = Duration::from_millis(5_001);
    ChangeKind::Learned { dimension: "requests".to_owned(), limit, window }
}

#[test]
fn a_limit_is_told_once_when_it_is_learned_and_once_when_it_changes() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    assert_eq!(desk.changes(), []);
    desk.answer(probe, 200, &fields("abc", "5", "4", "5.000"));
    let told = desk.changes();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((&*told[0].bucket, &*told[0].route, told[0].count), ("abc 1", ROUTE, 1));
    assert_eq!((&told[0].what, told[0].at), (&learned(5), desk.now));
    let again = desk.go(MESSAGES);
    desk.answer(again, 200, &fields("abc", "5", "3", "4.500"));
    assert_eq!(desk.changes(), [], "nothing is new");
    // It rests while it is idle, and is no news when it wakes.
    desk.pass(60_000);
    let later = desk.go(MESSAGES);
    desk.answer(later, 200, &fields("abc", "5", "4", "5.000"));
    assert_eq!(desk.changes(), []);
    let changed = desk.go(MESSAGES);
    desk.answer(changed, 200, &fields("abc", "2", "1", "5.000"));
    let what = desk.changes().remove(0).what;
    let dimension = "requests".to_owned();
    assert_eq!(what, ChangeKind::LimitChanged { dimension, before: 5, limit: 2 });
}

#[test]
fn an_upstream_that_tells_no_limit_is_told_of_once() {
    let mut desk = Desk::discord();
    for expected in [Some(ChangeKind::Silent), None] {
        let ticket = desk.go(MESSAGES);
        desk.answer(ticket, 200, &[("via", "1.1 google")]);
        let told = desk.changes();
        assert_eq!(told.first().map(|change| change.what.clone()), expected, "{told:?}");
    }
}

#[test]
fn refusals_of_a_bucket_are_one_change_until_it_is_taken() {
    let mut desk = Desk::discord();
    let refused = [("via", "1.1 google"), ("x-ratelimit-scope", "user"), ("retry-after", "2")];
    for count in 1..=3 {
        let ticket = desk.go(MESSAGES);
        desk.answer(ticket, 429, &refused);
        desk.pass(2_000 * count);
    }
    let told = desk.changes();
    assert_eq!(told.len(), 1, "{told:?}");
    let wait = Duration::from_secs(2);
    assert_eq!(told[0].what, ChangeKind::Refused { scope: Some(Scope::User), wait });
    assert_eq!((&*told[0].route, told[0].count), (ROUTE, 3));
}

#[test]
fn a_blocked_credential_is_told_of_once_and_freed_by_the_first_that_is_served() {
    let mut desk = Desk::discord();
    let early = desk.go("/api/v10/channels/2/messages");
    let refused = [("via", "1.1 google"), ("x-ratelimit-scope", "global"), ("retry-after", "3")];
    let first = desk.go(MESSAGES);
    desk.answer(first, 429, &refused);
    let kinds: Vec<ChangeKind> = desk.changes().into_iter().map(|change| change.what).collect();
    let wait = Duration::from_secs(3);
    let refusal = ChangeKind::Refused { scope: Some(Scope::Global), wait };
    assert_eq!(kinds, [refusal, ChangeKind::Blocked { wait }]);
    let waiter = desk.wait(MESSAGES);
    let bucket = format!("{ROUTE} 1");
    assert_eq!(desk.causes(&bucket), [WaitCause::CredentialBlocked]);
    assert_eq!(desk.view(&bucket).why[0].left, Some(wait));
    // Sent before the refusal, served after it: that says nothing about the block.
    desk.answer(early, 200, &fields("abc", "5", "4", "5.000"));
    assert!(desk.changes().iter().all(|change| matches!(change.what, ChangeKind::Learned { .. })));
    desk.pass(3_000);
    assert_eq!(desk.look(), [waiter]);
    let ticket = desk.ticket_of(waiter);
    desk.pass(250);
    desk.answer(ticket, 200, &fields("abc", "5", "4", "5.000"));
    let freed = ChangeKind::Freed { after: Duration::from_millis(3_250) };
    let told = desk.changes();
    assert!(told.iter().any(|change| change.what == freed && &*change.bucket == "*"), "{told:?}");
}

#[test]
fn what_nobody_takes_is_bounded_and_the_rest_is_counted() {
    let mut desk = Desk::discord();
    for channel in 0..100 {
        let ticket = desk.go(&format!("/api/v10/channels/{channel}/messages"));
        desk.answer(ticket, 200, &fields("abc", "5", "4", "5.000"));
        desk.pass(100);
    }
    let told = desk.changes();
    let (last, rest) = told.split_last().expect("there are some");
    assert_eq!((&last.what, last.count as usize + rest.len()), (&ChangeKind::Dropped, 100));
    assert!(rest.len() < 100);
    assert_eq!(desk.changes(), []);
}

#[test]
fn a_bucket_says_why_its_requests_wait_and_by_which_routes_it_is_known() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    let second = desk.wait(MESSAGES);
    let unnamed = format!("{ROUTE} 1");
    assert_eq!(desk.causes(&unnamed), [WaitCause::Probe]);
    assert_eq!(desk.view(&unnamed).routes, [ROUTE]);
    desk.answer(probe, 200, &fields("abc", "2", "1", "5.000"));
    assert_eq!(desk.look(), [second]);
    let third = desk.wait(MESSAGES);
    let post = desk.claim("POST", MESSAGES);
    let posted = desk.go_with(&post);
    desk.answer(posted, 200, &fields("abc", "2", "0", "4.000"));
    let view = desk.view("abc 1");
    assert_eq!(view.routes, [ROUTE, "POST /channels/:major/messages"], "by both");
    assert_eq!(view.why.len(), 1, "{view:?}");
    assert_eq!(
        (view.why[0].cause, view.why[0].what.as_deref()),
        (WaitCause::Spent, Some("requests"))
    );
    assert!(view.why[0].left.is_some_and(|left| left >= Duration::from_secs(4)), "{view:?}");
    desk.budgets.leave(third, desk.now);
    assert_eq!(desk.causes("abc 1"), [], "nobody waits");
}

#[test]
fn the_limit_over_all_routes_is_a_reason_of_its_own() {
    let mut desk = Desk::discord();
    for channel in 0..50 {
        let _sent = desk.go(&format!("/api/v10/channels/{channel}/messages"));
    }
    let _waiter = desk.wait("/api/v10/channels/99/messages");
    let view = desk.view(&format!("{ROUTE} 99"));
    assert_eq!(view.why[0].cause, WaitCause::Global);
    assert_eq!(view.why[0].left, Some(Duration::from_millis(1_100)));
}

#[test]
fn a_refused_sub_limit_is_named_beside_what_else_waits() {
    let mut desk = Desk::discord();
    let target = "/api/v10/channels/1";
    let rename = desk.claim("PATCH", target);
    let ticket = desk.go_with(&rename);
    let refused = [
        ("via", "1.1 google"),
        ("x-ratelimit-bucket", "patch"),
        ("x-ratelimit-limit", "5"),
        ("x-ratelimit-remaining", "4"),
        ("x-ratelimit-reset-after", "5.000"),
        ("retry-after", "600"),
    ];
    desk.answer(ticket, 429, &refused);
    let _waiter = desk.wait_with(&rename);
    let view = desk.view("patch 1");
    assert_eq!((view.why[0].cause, view.why.len()), (WaitCause::SubLimit, 1));
    assert!(view.why[0].what.as_deref().is_some_and(|what| what.contains("rename")), "{view:?}");
    assert_eq!(view.why[0].left, Some(Duration::from_secs(600)));
}
