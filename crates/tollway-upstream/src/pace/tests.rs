//! The pacer's rules, one by one; `bad_input` for servers and clocks that misbehave.

mod bad_input;

use std::time::Duration;

use proptest::prelude::*;
use tollway_core::gcra::{Gcra, State};
use tollway_core::{Cost, Quota, Timestamp};

use super::{Feedback, Law, Outcome, Pacer, Refill, Settings};

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

fn hourly() -> Quota {
    Quota::new(4_500, Duration::from_secs(3_600)).unwrap()
}

fn heroku() -> Pacer {
    Pacer::new(Settings::of(hourly()))
}

fn accepted(remaining: f64) -> Feedback {
    Feedback::bare(Outcome::Accepted).with_remaining(remaining)
}

/// Sends one request at `now` and hands it `answer` 50 ms later.
fn exchange(pacer: &mut Pacer, answer: &Feedback, now: u64) {
    let sent = pacer.on_send(Cost::ONE, at(now));
    pacer.on_response(sent, answer, at(now + 50 * MS));
}

/// When the next request may leave, asked right after an answer to one sent at `now`.
fn next_after(pacer: &mut Pacer, now: u64) -> u64 {
    pacer.may_send_at(Cost::ONE, at(now + 50 * MS)).as_nanos()
}

proptest! {
    /// The slot property. Requests of strangers arrive at any times while the bucket is not full;
    /// the slots they are given are consecutive, one unit of refill apart.
    #[test]
    fn consecutive_accepted_requests_get_slots_one_refill_apart(
        gaps_ms in prop::collection::vec(0u64..2_400, 2..200),
        start in 1u64..60,
        decimals in any::<bool>(),
    ) {
        let limit = Gcra::new(hourly());
        let unit_ns = 800 * MS;
        let spent = Cost::new(4_500 - start).unwrap();
        let mut state = limit.count(State::default(), spent, at(0)).1;
        let (mut now, mut due_ns) = (0, None);
        for gap_ms in gaps_ms {
            now += gap_ms * MS;
            let (decision, next) = limit.decide(state, Cost::ONE, at(now));
            state = next;
            if !decision.is_allowed() {
                continue;
            }
            // Whoever is accepted books one unit, whether or not its slot is looked at here.
            due_ns = due_ns.map(|before_ns: f64| before_ns + unit_ns as f64);
            let free_ns = 4_500 * unit_ns - decision.snapshot().reset_after().as_nanos() as u64;
            let level = free_ns as f64 / unit_ns as f64;
            // A level above the reserve has no slot: whoever finds one may go on at once.
            if level >= 64.0 {
                continue;
            }
            let told = if decimals { level } else { level.floor() };
            prop_assert_eq!(level.floor(), decision.snapshot().remaining() as f64);
            let mut stranger = heroku();
            exchange(&mut stranger, &accepted(told), now);
            // Not stretched: this is about the law below as many clients as slots.
            stranger.stretch = 0.0;
            let slot_ns = next_after(&mut stranger, now) as f64;
            let rounded_ns = (level - told) * unit_ns as f64;
            let due_ns = *due_ns.get_or_insert(slot_ns - rounded_ns);
            let late = (slot_ns - due_ns) / unit_ns as f64;
            // Rounded-down levels delay a slot by less than one, and that does not add up.
            let tolerance = if decimals { 1e-6 } else { 1.0 };
            prop_assert!((-1e-6..=tolerance).contains(&late), "late by {late} slots");
        }
    }
}

#[test]
fn before_the_first_answer_one_request_probes() {
    let mut pacer = heroku();
    assert_eq!(pacer.law(), Law::Probe);
    let first = pacer.on_send(Cost::ONE, at(S));
    assert!(pacer.may_send_at(Cost::ONE, at(S + 1)) > at(S + 1));
    pacer.on_response(first, &accepted(4_499.0), at(S + 50 * MS));
    assert_eq!(pacer.law(), Law::Ticket);
    assert!(pacer.may_send_at(Cost::ONE, at(S + 50 * MS)) <= at(S + 50 * MS));
}

#[test]
fn a_lost_probe_is_followed_by_another() {
    let mut pacer = heroku();
    let _lost = pacer.on_send(Cost::ONE, at(S));
    assert_eq!(pacer.may_send_at(Cost::ONE, at(2 * S)), at(11 * S));
}

#[test]
fn above_the_reserve_requests_go_at_once() {
    let mut pacer = heroku();
    exchange(&mut pacer, &accepted(2_000.0), S);
    assert!(next_after(&mut pacer, S) <= S + 50 * MS);
}

#[test]
fn an_idle_client_goes_at_once() {
    let mut pacer = heroku();
    exchange(&mut pacer, &accepted(30.0), S);
    let next_day = 86_400 * S;
    assert!(pacer.may_send_at(Cost::ONE, at(next_day)) <= at(next_day));
}

#[test]
fn a_double_weight_halves_the_interval() {
    let interval = |weight| {
        let mut pacer = Pacer::new(Settings::of(hourly()).weight(weight));
        exchange(&mut pacer, &accepted(40.0), S);
        next_after(&mut pacer, S) - S
    };
    assert_eq!(interval(1), 2 * interval(2));
}

#[test]
fn a_request_of_four_units_is_followed_by_four_intervals() {
    let interval = |cost| {
        let mut pacer = heroku();
        let sent = pacer.on_send(Cost::new(cost).unwrap(), at(S));
        let level = 41.0 - cost as f64;
        pacer.on_response(sent, &accepted(level), at(S));
        pacer.may_send_at(Cost::ONE, at(S)).as_nanos() - S
    };
    assert_eq!(interval(4), 4 * interval(1));
}

#[test]
fn what_the_bucket_cannot_hold_yet_is_not_sent() {
    let mut pacer = heroku();
    exchange(&mut pacer, &accepted(63.0), S);
    let hundred = Cost::new(100).unwrap();
    let due = pacer.may_send_at(hundred, at(S + 50 * MS)).as_nanos();
    assert_eq!(due, S + 37 * 800 * MS);
}

#[test]
fn a_late_answer_does_not_replace_a_newer_one() {
    let mut pacer = heroku();
    let old = pacer.on_send(Cost::ONE, at(S));
    exchange(&mut pacer, &accepted(10.0), 2 * S);
    let before = pacer.interval();
    pacer.on_response(old, &accepted(4_000.0), at(3 * S));
    assert_eq!(pacer.interval(), before);
}

#[test]
fn requests_under_way_count_against_a_burst() {
    let mut pacer = heroku();
    exchange(&mut pacer, &accepted(70.0), S);
    let mut burst = 0;
    while pacer.may_send_at(Cost::ONE, at(S + 51 * MS)) <= at(S + 51 * MS) {
        let _under_way = pacer.on_send(Cost::ONE, at(S + 51 * MS));
        burst += 1;
    }
    assert!((5..=8).contains(&burst), "{burst} requests for 6 units above the reserve");
}

#[test]
fn a_policy_in_the_answer_overrides_the_settings() {
    let mut pacer = heroku();
    let policy = accepted(0.0).with_policy(60, Duration::from_secs(60));
    exchange(&mut pacer, &policy, S);
    assert_eq!(pacer.params.unwrap().unit_ns, 1e9);
    assert_eq!(pacer.params.unwrap().reserve, 16.0);
}

#[test]
fn the_laws_are_tried_in_the_stated_order() {
    let told = |settings: Settings, answer: &Feedback| {
        let mut pacer = Pacer::new(settings);
        exchange(&mut pacer, answer, S);
        pacer.law()
    };
    let reset =
        |answer: Feedback| Feedback { reset_after: Some(Duration::from_secs(60)), ..answer };
    let known = Settings::of(hourly());
    let window = known.refill(Refill::Window);
    assert_eq!(told(window, &reset(accepted(9.0))), Law::Window);
    assert_eq!(told(known, &accepted(9.0)), Law::Ticket);
    let policy = accepted(9.0).with_policy(60, Duration::from_secs(60));
    assert_eq!(told(Settings::default(), &policy), Law::Ticket);
    assert_eq!(told(Settings::default(), &reset(accepted(9.0))), Law::Spread);
    assert_eq!(told(Settings::default(), &accepted(9.0)), Law::Aimd);
    assert_eq!(told(known, &Feedback::bare(Outcome::Accepted)), Law::Aimd);
    assert_eq!(told(known.only_aimd(), &accepted(9.0)), Law::Aimd);
}

#[test]
fn what_is_left_is_spread_over_the_time_left() {
    let mut pacer = Pacer::new(Settings::default());
    let answer = Feedback { reset_after: Some(Duration::from_secs(100)), ..accepted(9.0) };
    exchange(&mut pacer, &answer, S);
    let wait = next_after(&mut pacer, S) - S;
    assert!((9 * S..=11 * S).contains(&wait), "{wait} ns for a tenth of 100 s");
}

#[test]
fn a_window_is_spent_evenly_once_it_is_known_as_one() {
    let mut pacer = heroku();
    let (mut now, mut left) = (S, 4_500.0);
    let end = 3_600 * S;
    while now < end {
        left -= 1.0;
        let reset = Duration::from_nanos(end - now - 50 * MS);
        exchange(&mut pacer, &Feedback { reset_after: Some(reset), ..accepted(left) }, now);
        now = next_after(&mut pacer, now).max(now + 50 * MS);
    }
    assert_eq!(pacer.law(), Law::Window);
    assert!((0.0..45.0).contains(&left), "{left} units were left at the end of the window");
}

mod from_profile;
