use alloc::string::{String, ToString};
use core::time::Duration;

use super::*;

fn no_zones(name: &str) -> Result<Zone, String> {
    Err(alloc::format!("unknown time zone {name:?}"))
}

fn window(text: &str) -> CalendarWindow {
    CalendarWindow::parse(text, &no_zones).unwrap()
}

fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

const HOUR: Duration = Duration::from_secs(3_600);
const NANO: Duration = Duration::from_nanos(1);

/// 2026-11-01 00:00 UTC, and the beginning of the two months after it.
const NOVEMBER: Timestamp = Timestamp::from_millis(1_793_491_200_000);
const DECEMBER: Timestamp = Timestamp::from_millis(1_796_083_200_000);
const JANUARY: Timestamp = Timestamp::from_millis(1_798_761_600_000);

#[test]
fn a_window_ends_with_its_month_to_the_nanosecond() {
    let plan = window("3/month");
    let now = NOVEMBER.after(HOUR);
    let (first, state) = plan.decide(State::default(), cost(3), now);
    assert!(first.is_allowed());
    assert_eq!(first.snapshot().reset_at(now), DECEMBER);
    let (denied, _) = plan.decide(state, Cost::ONE, now);
    assert_eq!(denied.retry(), Some(Retry::After(DECEMBER.since(now))));
    assert!(!plan.decide(state, Cost::ONE, DECEMBER.before(NANO)).0.is_allowed());
    let (next, state) = plan.decide(state, cost(3), DECEMBER);
    assert!(next.is_allowed());
    assert_eq!(plan.vacant_at(state), JANUARY);
}

#[test]
fn more_than_a_window_ever_holds_is_never_allowed() {
    let (denied, state) = window("3/month").decide(State::default(), cost(4), NOVEMBER);
    assert_eq!((denied.retry(), state), (Some(Retry::Never), State::default()));
}

#[test]
fn unused_units_are_carried_over_up_to_a_bound() {
    let plan = window("10/month carry 4");
    let november = NOVEMBER.after(HOUR);
    // New: with all that it may carry.
    assert_eq!(plan.peek(State::default(), november).remaining(), 14);
    for (used, left_in_december) in [(9, 14), (10, 14), (11, 13), (13, 11), (14, 10)] {
        let (_, state) = plan.decide(State::default(), cost(used), november);
        let december = plan.peek(state, DECEMBER);
        assert_eq!(december.remaining(), left_in_december, "{used} used");
        // A window in which nothing is used makes up for everything.
        assert_eq!(plan.peek(state, JANUARY).remaining(), 14);
        let full_at = if left_in_december == 14 { DECEMBER } else { JANUARY };
        assert_eq!(
            (plan.vacant_at(state), plan.peek(state, november).reset_at(november)),
            (full_at, full_at)
        );
    }
}

#[test]
fn a_cost_that_needs_what_is_carried_waits_for_the_window_that_has_it() {
    let plan = window("10/month carry 4");
    let (_, state) = plan.decide(State::default(), cost(13), NOVEMBER);
    for (units, at) in [(11, DECEMBER), (12, JANUARY), (14, JANUARY)] {
        let (denied, _) = plan.decide(state, cost(units), NOVEMBER);
        assert_eq!(denied.retry(), Some(Retry::After(at.since(NOVEMBER))), "{units}");
        assert!(!plan.decide(state, cost(units), at.before(NANO)).0.is_allowed());
        assert!(plan.decide(state, cost(units), at).0.is_allowed());
    }
    assert_eq!(plan.decide(state, cost(15), NOVEMBER).0.retry(), Some(Retry::Never));
}

#[test]
fn a_soft_limit_lets_its_grace_pass_and_says_how_much_is_used() {
    let plan = window("10/month grace 3");
    let (_, state) = plan.decide(State::default(), cost(10), NOVEMBER);
    assert_eq!(plan.grace_used(plan.peek(state, NOVEMBER)), 0);
    let (soft, state) = plan.decide(state, cost(2), NOVEMBER);
    assert!(soft.is_allowed());
    assert_eq!((plan.grace_used(soft.snapshot()), soft.snapshot().remaining()), (2, 1));
    assert!(!plan.decide(state, cost(2), NOVEMBER).0.is_allowed());
    // Grace is no loan: the next window has all of its units, and its grace.
    assert_eq!(plan.peek(state, DECEMBER).remaining(), 13);
}

#[test]
fn grace_is_forgiven_and_what_was_carried_is_gone() {
    let plan = window("10/month carry 4 grace 3");
    let (_, state) = plan.decide(State::default(), cost(17), NOVEMBER);
    assert_eq!(plan.grace_used(plan.peek(state, NOVEMBER)), 3);
    let december = plan.peek(state, DECEMBER);
    assert_eq!((december.remaining(), plan.grace_used(december)), (13, 0));
}

#[test]
fn units_of_an_earlier_window_are_not_given_back_to_this_one() {
    let plan = window("5/month");
    let (_, state) = plan.decide(State::default(), cost(4), DECEMBER);
    assert_eq!(plan.refund(state, 4, Some(NOVEMBER), DECEMBER), state);
    let given = plan.refund(state, 3, Some(DECEMBER), DECEMBER.after(HOUR));
    assert_eq!(plan.peek(given, DECEMBER.after(HOUR)).remaining(), 4);
    let given = plan.refund(state, 9, None, DECEMBER);
    assert_eq!(plan.peek(given, DECEMBER).remaining(), 5);
}

#[test]
fn it_makes_no_difference_to_what_is_carried_over_when_units_are_given_back() {
    let plan = window("5/month carry 3");
    let (_, state) = plan.decide(State::default(), cost(7), NOVEMBER);
    let [before, after] = [DECEMBER.before(NANO), DECEMBER.after(HOUR)];
    let given = [before, after].map(|now| plan.refund(state, 7, Some(NOVEMBER), now));
    assert_eq!(given.map(|state| plan.peek(state, after).remaining()), [8, 8]);
    // Once somebody was charged in the next window, the last one is settled.
    let (_, state) = plan.decide(state, Cost::ONE, DECEMBER);
    assert_eq!(plan.refund(state, 7, Some(NOVEMBER), after), state);
}

#[test]
fn who_comes_late_is_decided_in_the_window_that_is_open() {
    let plan = window("5/month");
    let (_, state) = plan.decide(State::default(), cost(4), DECEMBER);
    let late = DECEMBER.before(HOUR);
    assert!(plan.decide(state, Cost::ONE, late).0.is_allowed());
    let (denied, _) = plan.decide(state, cost(2), late);
    assert_eq!(denied.retry(), Some(Retry::After(JANUARY.since(late))));
    assert_eq!(plan.moment(state, late), DECEMBER);
}

/// Two processes of a fleet with other data for a zone: here, an hour apart.
#[test]
fn who_opens_a_window_decides_when_it_ends() {
    let early = window("5/day anchor 22:00");
    let late = window("5/day anchor 23:00");
    let midnight = NOVEMBER;
    let [at_22, at_23] = [22, 23].map(|hour| midnight.after(HOUR * hour));
    let (_, state) = late.decide(State::default(), cost(5), midnight);
    // By its own rules this one's window is over.
    let (denied, _) = early.decide(state, Cost::ONE, at_22);
    assert_eq!(denied.retry(), Some(Retry::After(HOUR)));
    // The next one begins with the end of the last and ends by the rules of who opens it.
    let (_, state) = early.decide(state, cost(5), at_23);
    let opened = state.window().unwrap();
    assert_eq!((opened.start, opened.end), (at_23, at_22.after(HOUR * 24)));
}

#[test]
fn a_clock_that_was_set_back_locks_nobody_for_longer_than_a_window() {
    let plan = window("5/month");
    let (_, state) = plan.decide(State::default(), cost(5), DECEMBER);
    let november = NOVEMBER.after(HOUR);
    let rewound = plan.rewind(state, november);
    let (denied, _) = plan.decide(rewound, Cost::ONE, november);
    assert_eq!(denied.retry(), Some(Retry::After(DECEMBER.since(november))));
    assert_eq!(plan.rewind(state, DECEMBER), state);
    // Within the time that clocks differ anyway, a window that is about to begin is believed.
    assert_eq!(plan.rewind(state, DECEMBER.before(SKEW)), state);
}

#[test]
fn what_is_cleared_is_as_good_as_new_from_then_on() {
    let plan = window("5/month carry 2");
    let (_, state) = plan.decide(State::default(), cost(7), NOVEMBER);
    let cleared = plan.clear(state, NOVEMBER.after(HOUR));
    assert_eq!(plan.peek(cleared, NOVEMBER.after(HOUR)).remaining(), 7);
    assert_eq!(plan.vacant_at(cleared), Timestamp::MIN);
}

#[test]
fn a_text_is_written_as_it_is_read() {
    for text in [
        "10000/month",
        "1/hour",
        "10/day anchor 06:00 carry 10",
        "10/week anchor sun grace 2",
        "10/quarter anchor 02-15 06:00 carry 1 grace 999999999999988",
        "999999999999999/year anchor 04-06",
    ] {
        assert_eq!(window(text).to_string(), text);
    }
    let any_order = window(" 1_000 / month grace 5  anchor 15  06:00 tz UTC carry 7 ");
    assert_eq!(any_order.to_string(), "1000/month anchor 15 06:00 carry 7 grace 5");
}

#[test]
fn an_error_points_at_the_word() {
    for (text, at, why) in [
        ("10000", 5, "expected a slash and a period, as in 10000/month"),
        ("10/mnth", 3, "\"mnth\" is no unit; did you mean month?"),
        ("10/fortnight", 3, "expected hour, day, week, month, quarter or year"),
        ("10/", 3, "expected hour, day, week, month, quarter or year"),
        ("10/month in Berlin", 9, "expected the end, or one of tz, anchor, carry and grace"),
        ("10/month anchr 15", 9, "unknown option \"anchr\"; did you mean anchor?"),
        ("10/month tz", 11, "expected the name of a time zone, as in tz Europe/Berlin"),
        ("10/month tz Berlin", 12, "unknown time zone \"Berlin\""),
        ("10/month carry 1 carry 2", 17, "carry is given twice"),
        ("10/month carry", 14, "expected a number of units"),
        ("10/month carry 11", 15, "carry must not be more than the units of one window"),
        ("0/month", 0, "units must be between 1 and 999999999999999"),
        (
            "10/month grace 999999999999990",
            15,
            "units, carry and grace must together be at most 999999999999999",
        ),
        ("10/hour anchor 15", 15, "an hour has no anchor: it begins when it is full"),
        ("10/year anchor 02-30", 15, "\"02-30\" never comes: month 2 has 29 days"),
    ] {
        let error = CalendarWindow::parse(text, &no_zones).unwrap_err();
        let told = alloc::format!("at character {}: {why}", at + 1);
        assert_eq!((error.at(), error.to_string()), (at, told), "{text:?}");
    }
}

#[test]
fn a_civil_unit_is_told_from_a_period() {
    for text in ["1/month", "1/day tz x", "1 / Week", "1/mnth", "1/years", "1/hours"] {
        assert!(CalendarWindow::is_meant_by(text), "{text}");
    }
    for text in ["1/m", "1/d", "1/1d", "1/h burst 3", "1/ms", "1", "", "1/30d", "1/sec", "1/min"] {
        assert!(!CalendarWindow::is_meant_by(text), "{text}");
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2_000))]

    #[test]
    fn what_reads_at_all_is_written_and_read_again(
        start in "[0-9_]{1,4} ?/ ?(hour|day|week|month|quarter|year)?",
        options in proptest::collection::vec(
            "(tz|anchor|carry|grace|sun|UTC|[0-3]?[0-9]|[01][0-9]-[0-3][0-9]|[0-2][0-9]:[0-5][0-9]|é)",
            0..7,
        ),
    ) {
        let text = alloc::format!("{start} {}", options.join(" "));
        if let Ok(read) = CalendarWindow::parse(&text, &no_zones) {
            proptest::prop_assert_eq!(window(&read.to_string()), read);
            let numbers = Apply::numbers(&read);
            proptest::prop_assert_eq!(<CalendarWindow as Apply>::from_numbers(numbers), Some(read));
        }
    }
}
