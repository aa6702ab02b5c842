//! Whatever a server says and however a clock steps: slower, never a hot loop, never for ever.

use super::*;

const YEAR: u64 = 365 * 86_400 * S;

fn refused() -> Feedback {
    Feedback::bare(Outcome::Limited)
}

/// Sends whenever it may from `now` until `until`; answers take 10 ms. How many were sent.
fn drive(
    pacer: &mut Pacer,
    mut now: u64,
    until: u64,
    mut answer: impl FnMut(u64) -> Feedback,
) -> u64 {
    let mut sent = 0;
    loop {
        // A wait may be cut short by news or turn out longer; it must not turn into a poll.
        for _asks in 0..8 {
            now = now.max(pacer.may_send_at(Cost::ONE, at(now)).as_nanos());
            if now > until {
                return sent;
            }
        }
        let ticket = pacer.on_send(Cost::ONE, at(now));
        now += 10 * MS;
        pacer.on_response(ticket, &answer(sent), at(now));
        sent += 1;
    }
}

fn any_seconds() -> impl Strategy<Value = Option<Duration>> {
    prop_oneof![
        Just(None),
        Just(Some(Duration::ZERO)),
        (0u64..5_000_000).prop_map(|ms| Some(Duration::from_millis(ms))),
        Just(Some(Duration::from_secs(365 * 86_400))),
        Just(Some(Duration::MAX)),
    ]
}

fn any_answer() -> impl Strategy<Value = Feedback> {
    let outcome =
        prop_oneof![Just(Outcome::Accepted), Just(Outcome::Limited), Just(Outcome::Failed)];
    let remaining = prop_oneof![
        Just(None),
        (-10.0..5_000.0).prop_map(Some),
        prop_oneof![Just(-1e300), Just(1e300), Just(f64::NAN), Just(f64::INFINITY)].prop_map(Some),
    ];
    let limit = prop_oneof![Just(None), (0u64..10_000).prop_map(Some), Just(Some(u64::MAX))];
    (outcome, limit, any_seconds(), remaining, any_seconds(), any_seconds()).prop_map(
        |(outcome, limit, period, remaining, reset_after, retry_after)| Feedback {
            outcome,
            limit,
            period,
            remaining,
            reset_after,
            retry_after,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// A clock that steps by up to a year either way, and answers without any sense.
    #[test]
    fn nonsense_neither_stops_the_pacer_nor_lets_it_hammer(
        turns in prop::collection::vec((any_answer(), prop_oneof![
            8 => Just(0i64),
            1 => -(YEAR as i64)..0,
            1 => 0..YEAR as i64,
        ]), 1..200),
        known in any::<bool>(),
        pause_s in 1u64..10_000,
    ) {
        let settings = if known { Settings::of(hourly()) } else { Settings::default() };
        let pause_max = Duration::from_secs(pause_s);
        let mut pacer = Pacer::new(settings.pause_max(pause_max));
        let mut now = 10 * YEAR;
        for (answer, step) in turns {
            now = now.saturating_add_signed(step);
            let asked = now;
            for _asks in 0..8 {
                let due = pacer.may_send_at(Cost::ONE, at(now)).as_nanos();
                prop_assert!(due <= now + pause_max.as_nanos() as u64, "paused beyond the bound");
                now = now.max(due);
            }
            prop_assert!(pacer.may_send_at(Cost::ONE, at(now)) <= at(now), "polls for ever");
            prop_assert!(now - asked <= 8 * pause_max.as_nanos() as u64);
            let sent = pacer.on_send(Cost::ONE, at(now));
            now += 10 * MS;
            pacer.on_response(sent, &answer, at(now));
            let due = pacer.may_send_at(Cost::ONE, at(now));
            if answer.outcome != Outcome::Accepted {
                prop_assert!(due >= at(now + 50 * MS), "came back at once after {answer:?}");
            }
        }
    }

    /// A server that refuses everything, whatever else it claims.
    #[test]
    fn a_server_that_refuses_everything_sees_ever_fewer_requests(
        answer in any_answer(),
        known in any::<bool>(),
    ) {
        let settings = if known { Settings::of(hourly()) } else { Settings::default() };
        let mut pacer = Pacer::new(settings);
        let answer = Feedback { outcome: Outcome::Limited, ..answer };
        let sent = drive(&mut pacer, S, 3_600 * S, |_| answer);
        prop_assert!(sent <= 3_600, "{sent} requests in an hour of refusals");
        let sent = drive(&mut pacer, 3_600 * S, YEAR, |_| answer);
        prop_assert!(sent >= 10, "{sent} requests in a year");
    }
}

#[test]
fn without_remaining_the_429s_set_the_pace() {
    let mut pacer = Pacer::new(Settings::of(hourly()));
    let sent = drive(&mut pacer, S, 3_600 * S, |request| {
        Feedback::bare(if request % 3 == 2 { Outcome::Limited } else { Outcome::Accepted })
    });
    assert_eq!(pacer.law(), Law::Aimd);
    assert!((5..1_200).contains(&sent), "{sent} requests");
}

#[test]
fn a_remaining_that_disappears_is_forgotten_after_a_while() {
    let mut pacer = heroku();
    exchange(&mut pacer, &accepted(4_000.0), S);
    for request in 2..10 {
        exchange(&mut pacer, &Feedback::bare(Outcome::Accepted), request * S);
    }
    assert_eq!(pacer.law(), Law::Aimd);
}

#[test]
fn a_negative_remaining_counts_as_nothing_left() {
    let interval = |remaining| {
        let mut pacer = heroku();
        exchange(&mut pacer, &accepted(remaining), S);
        pacer.interval()
    };
    assert_eq!(interval(-7.0), interval(0.0));
}

#[test]
fn a_server_that_refuses_while_it_claims_plenty_is_not_believed() {
    let mut pacer = heroku();
    let lie = refused().with_remaining(1e18);
    exchange(&mut pacer, &accepted(1e18), S);
    exchange(&mut pacer, &lie, 2 * S);
    assert_eq!(pacer.law(), Law::Aimd);
    let sent =
        drive(
            &mut pacer,
            3 * S,
            3_600 * S,
            |request| {
                if request % 2 == 0 { accepted(1e18) } else { lie }
            },
        );
    assert!(sent < 700, "{sent} requests in an hour");
}

#[test]
fn a_limit_that_changes_changes_the_plan_at_once() {
    let mut pacer = heroku();
    let told = |limit| accepted(0.0).with_policy(limit, Duration::from_secs(3_600));
    exchange(&mut pacer, &told(4_500), S);
    let before = pacer.interval();
    exchange(&mut pacer, &told(450), 2 * S);
    assert!(pacer.interval() > before);
    exchange(&mut pacer, &told(0), 3 * S);
    assert_eq!(pacer.params.unwrap().units, 450.0);
}

#[test]
fn a_retry_after_in_the_past_still_means_a_pause() {
    let mut pacer = Pacer::new(Settings::default());
    let now = S + 50 * MS;
    exchange(&mut pacer, &Feedback { retry_after: Some(Duration::ZERO), ..refused() }, S);
    assert!(pacer.may_send_at(Cost::ONE, at(now)) >= at(now + 50 * MS));
}

#[test]
fn a_retry_after_of_a_year_means_the_longest_pause() {
    let mut pacer = heroku();
    let year = Some(Duration::from_nanos(YEAR));
    exchange(&mut pacer, &Feedback { retry_after: year, ..refused() }, S);
    let hours = (next_after(&mut pacer, S) - S) / (3_600 * S);
    assert_eq!(hours, 2, "twice the period");
}

#[test]
fn refusals_without_fields_double_the_pause() {
    let mut pacer = Pacer::new(Settings::default());
    let sent = drive(&mut pacer, S, 3_600 * S, |_| refused());
    assert!((8..=20).contains(&sent), "{sent} requests in an hour");
}

#[test]
fn the_refusals_of_one_burst_are_one_piece_of_news() {
    let mut pacer = heroku();
    exchange(&mut pacer, &accepted(4_000.0), S);
    let burst: Vec<_> = (0..100).map(|_| pacer.on_send(Cost::ONE, at(2 * S))).collect();
    for sent in burst {
        pacer.on_response(sent, &refused(), at(2 * S + 50 * MS));
    }
    let wait = pacer.may_send_at(Cost::ONE, at(2 * S + 50 * MS)).as_nanos() - 2 * S;
    assert!(wait < 180 * S, "waits {wait} ns");
}

#[test]
fn a_clock_set_back_by_a_year_does_not_silence_the_pacer() {
    let mut pacer = heroku();
    exchange(&mut pacer, &accepted(60.0), 2 * YEAR);
    let wait = pacer.may_send_at(Cost::ONE, at(YEAR)).as_nanos() - YEAR;
    assert!(wait <= 4 * S, "waits {wait} ns");
}

#[test]
fn a_clock_set_forward_by_a_year_lets_one_request_go() {
    let mut pacer = heroku();
    exchange(&mut pacer, &accepted(20.0), S);
    assert!(pacer.may_send_at(Cost::ONE, at(YEAR)) <= at(YEAR));
    let _early = pacer.on_send(Cost::ONE, at(YEAR));
    assert!(pacer.may_send_at(Cost::ONE, at(YEAR)) > at(YEAR + 10 * S));
}

#[test]
fn what_is_lost_without_a_word_does_not_fill_memory() {
    let mut pacer = heroku();
    for request in 0..100_000 {
        let _lost = pacer.on_send(Cost::ONE, at(S + request));
    }
    assert!(pacer.unseen.len() <= 4_096);
    assert!(pacer.may_send_at(Cost::ONE, at(3_600 * S)) <= at(3_600 * S));
}
