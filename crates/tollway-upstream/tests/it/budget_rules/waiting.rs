//! Who goes first, who need not wait, and how many may.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tollway_upstream::budget::{Budgets, Priority, Reason, Settings};
use tollway_upstream::profile::Profile;

use super::desk::{Desk, MESSAGES, fields};

#[test]
fn clients_take_turns_by_weight_and_one_client_is_served_in_order() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    let mut whose = HashMap::new();
    for (client, weight) in [(1, 1), (2, 3)] {
        for _ in 0..8 {
            let claim = desk.claim("GET", MESSAGES).client(client).weight(weight);
            whose.insert(desk.wait_with(&claim), client);
        }
    }
    desk.answer(probe, 200, &fields("h", "9", "8", "5.000"));
    let gone = desk.look();
    let heavy = gone.iter().filter(|waiter| whose[*waiter] == 2).count();
    assert_eq!((gone.len(), heavy), (8, 6), "three to one");
    for client in [1, 2] {
        let own: Vec<_> = gone.iter().filter(|waiter| whose[*waiter] == client).collect();
        assert!(own.is_sorted());
    }
}

#[test]
fn a_higher_priority_goes_first_and_a_lower_one_is_not_starved() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    let low = desk.claim("GET", MESSAGES).priority(Priority::Low);
    let low = desk.wait_with(&low);
    let high = desk.claim("GET", MESSAGES).priority(Priority::High);
    let high: Vec<_> = (0..20).map(|_| desk.wait_with(&high)).collect();
    desk.answer(probe, 200, &fields("h", "50", "17", "5.000"));
    let gone = desk.look();
    assert_eq!(gone[..15], high[..15]);
    assert_eq!(gone[15], low, "fifteen may overtake it");
    assert_eq!(gone[16], high[15]);
}

#[test]
fn who_cannot_wait_long_enough_is_told_how_long_it_takes() {
    let mut desk = Desk::discord();
    let probe = desk.go(MESSAGES);
    desk.answer(probe, 200, &fields("h", "1", "0", "5.000"));
    for _ in 0..3 {
        desk.wait(MESSAGES);
    }
    let claim = desk.claim("GET", MESSAGES).patience(Duration::from_secs(10));
    let refusal = desk.ask(&claim).expect_err("three are ahead of it");
    assert_eq!(refusal.reason, Reason::Patience);
    let wait = refusal.wait.expect("a wait helps");
    assert!((19_900..20_200).contains(&wait.as_millis()), "{wait:?}");
    let patient = desk.claim("GET", MESSAGES).patience(Duration::from_secs(21));
    desk.wait_with(&patient);
    desk.pass(21_000);
    desk.look();
    let (_, refusal) = desk.budgets.expired(desk.now).expect("its time is over");
    assert_eq!(refusal.reason, Reason::Patience);
}

#[test]
fn queues_are_bounded_in_number_and_bytes_and_can_be_drained() {
    let profile = Profile::builtin("discord").expect("it is shipped");
    let settings = Settings { queue_max: 3, queue_bytes_max: 100, ..Settings::default() };
    let mut desk = Desk::of(Arc::clone(&profile));
    desk.budgets = Budgets::new(profile, settings);
    let _probe = desk.go(MESSAGES);
    let heavy = desk.claim("GET", MESSAGES).bytes(60);
    desk.wait_with(&heavy);
    assert_eq!(desk.ask(&heavy).expect_err("120 bytes").reason, Reason::BytesFull);
    desk.wait(MESSAGES);
    desk.wait(MESSAGES);
    let claim = desk.claim("GET", MESSAGES);
    assert_eq!(desk.ask(&claim).expect_err("a fourth").reason, Reason::QueueFull);
    let bucket = desk.budgets.buckets(0, 1, desk.now).buckets[0].id.clone();
    assert_eq!(desk.budgets.drain(&bucket, desk.now).len(), 3);
    assert_eq!(desk.budgets.queued(), 0);
    desk.wait_with(&heavy);
}

#[test]
fn who_waits_for_a_limit_of_the_credential_goes_when_it_has_room_whatever_the_bucket() {
    let mut desk = Desk::of(Profile::builtin("riot").expect("it is shipped"));
    let told = |used: &'static str| {
        [
            ("x-app-rate-limit", "3:10"),
            ("x-app-rate-limit-count", used),
            ("x-method-rate-limit", "2000:10"),
            ("x-method-rate-limit-count", "1:10"),
        ]
    };
    let targets =
        ["/lol/status/v4/platform-data", "/lol/league/v4/entries", "/lol/match/v5/matches/1"];
    // Each bucket has been seen once, and the three of the credential are taken.
    for (target, used) in targets.iter().zip(["1:10", "2:10", "3:10"]) {
        let ticket = desk.go(target);
        desk.answer(ticket, 200, &told(used));
    }
    let waiters: Vec<_> =
        [1, 0, 2, 0, 1, 2].into_iter().map(|index| desk.wait(targets[index])).collect();
    assert_eq!(desk.look(), [], "the credential has none left");
    desk.pass(9_000);
    assert_eq!(desk.look(), [], "nor a moment before its window ends");
    // All buckets have plenty: those go that came first, as many as there are, in their order.
    desk.pass(1_100);
    let first = desk.look();
    assert!(!first.is_empty() && waiters.starts_with(&first), "{first:?} of {waiters:?}");
    let mut gone = first.clone();
    for (number, waiter) in first.iter().enumerate() {
        let ticket = desk.ticket_of(*waiter);
        desk.answer(ticket, 200, &told(["1:10", "2:10", "3:10"][number]));
        gone.extend(desk.look());
    }
    assert_eq!(gone, waiters[..3], "three are the credential's, whoever waits for them");
}
