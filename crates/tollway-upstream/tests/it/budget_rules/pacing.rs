use std::time::Duration;

use tollway_core::Timestamp;
use tollway_upstream::budget::{Budgets, Claim, Priority, Reason, Settings, Ticket, WaitCause};
use tollway_upstream::pace;
use tollway_upstream::profile::Profile;

use super::desk::Desk;

/// Four slots of 0.8 s below the reserve of 64.
const SPACING_MS: u64 = 3_200;

fn paced() -> Desk {
    let profile = Profile::builtin("heroku").expect("it is shipped");
    let budgets = Budgets::paced(&profile, Settings::default(), pace::Settings::default());
    let budgets = budgets.expect("its dimension is common");
    Desk { profile, budgets, now: Timestamp::from_millis(10_000), gone: Vec::new() }
}

/// A desk that has just learned that 60 are left.
fn told() -> Desk {
    let mut desk = paced();
    let first = desk.go("/apps");
    left(&mut desk, first, "60");
    desk
}

fn left(desk: &mut Desk, ticket: Ticket, remaining: &str) {
    desk.answer(ticket, 200, &[("ratelimit-remaining", remaining)]);
}

#[test]
fn requests_leave_one_slot_apart_in_the_order_of_the_queue() {
    let mut desk = told();
    let low = desk.claim("GET", "/apps").priority(Priority::Low);
    let [last, first] = [low, desk.claim("GET", "/dynos")].map(|claim| desk.wait_with(&claim));
    assert_eq!(desk.earliest_ms(), Some(u128::from(SPACING_MS)));
    desk.pass(SPACING_MS - 1);
    assert!(desk.look().is_empty());
    desk.pass(1);
    assert_eq!(desk.look(), [first]);
    let ticket = desk.ticket_of(first);
    left(&mut desk, ticket, "60");
    desk.pass(SPACING_MS);
    assert_eq!(desk.look(), [last]);
}

#[test]
fn who_cannot_wait_for_its_slot_is_told_when_it_comes() {
    let mut desk = told();
    desk.wait("/apps");
    let hasty = desk.claim("GET", "/apps").patience(Duration::from_secs(5));
    let refusal = desk.ask(&hasty).unwrap_err();
    let wait = Some(Duration::from_millis(2 * SPACING_MS));
    assert_eq!((refusal.reason, refusal.wait), (Reason::Patience, wait));
    let page = desk.budgets.buckets(0, 10, desk.now);
    let why = &page.buckets[0].why[0];
    assert_eq!((why.cause, why.left), (WaitCause::Slot, Some(Duration::from_millis(SPACING_MS))));
}

#[test]
fn what_was_never_sent_gives_its_slot_back() {
    let mut desk = told();
    let (first, second) = (desk.wait("/apps"), desk.wait("/apps"));
    desk.pass(SPACING_MS);
    assert_eq!(desk.look(), [first]);
    desk.budgets.cancel(desk.ticket_of(first), desk.now);
    assert_eq!(desk.look(), [second]);
}

#[test]
fn a_request_of_three_units_takes_three_slots() {
    let mut desk = told();
    let dear = Claim::new(desk.profile.route("GET", "/apps")).cost(0, 3);
    let (first, second) = (desk.wait_with(&dear), desk.wait("/apps"));
    desk.pass(SPACING_MS);
    assert_eq!(desk.look(), [first]);
    let ticket = desk.ticket_of(first);
    // The level of its first unit: the next client's slot is three units later.
    left(&mut desk, ticket, "58");
    assert_eq!(desk.earliest_ms(), Some(u128::from(3 * SPACING_MS)));
    desk.pass(3 * SPACING_MS);
    assert_eq!(desk.look(), [second]);
}

#[test]
fn what_the_dimension_does_not_count_needs_no_slot() {
    let mut desk = told();
    let free = Claim::new(desk.profile.route("GET", "/apps")).cost(0, 0);
    let _ = desk.go_with(&free);
}

#[test]
fn a_refusal_holds_all_and_a_lost_answer_costs_no_more_than_a_pause() {
    let mut desk = told();
    desk.pass(SPACING_MS);
    let ticket = desk.go("/apps");
    let waiting = desk.wait("/dynos");
    desk.answer(ticket, 429, &[("ratelimit-remaining", "0"), ("retry-after", "30")]);
    desk.pass(30_000);
    assert!(desk.look().is_empty(), "those refused together come back apart");
    desk.pass(200_000);
    assert_eq!(desk.look(), [waiting]);
    desk.budgets.abandon(desk.ticket_of(waiting), desk.now);
    let next = desk.wait("/apps");
    desk.pass(200_000);
    assert_eq!(desk.look(), [next]);
}

#[test]
fn only_a_profile_with_a_common_dimension_can_be_paced_by() {
    let slack = Profile::builtin("slack").expect("it is shipped");
    assert!(Budgets::paced(&slack, Settings::default(), pace::Settings::default()).is_none());
    let text = "name = 'x'\n[[dimensions]]\nname = 'r'\nremaining = 'left'\ncommon = true\n";
    let error = Profile::parse(text).unwrap_err().to_string();
    assert!(error.starts_with("line 5: dimensions[0].common: it is counted by route"), "{error}");
    let text = "name = 'x'\n[route]\nby = 'none'\n[[dimensions]]\nname = 'r'\n\
                stated = '5/1s'\ncommon = true\n";
    let error = Profile::parse(text).unwrap_err().to_string();
    assert!(error.contains("no field tells what is left of it"), "{error}");
}
