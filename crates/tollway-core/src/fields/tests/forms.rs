use core::time::Duration;

use super::super::{Form, counts_per_window, http_date, seconds_up, used_of_size};

const NOW: Duration = Duration::from_secs(1_700_000_000);

fn secs(text: &str, form: Form) -> Option<f64> {
    form.delay(text, NOW).map(|wait| wait.as_secs_f64())
}

#[test]
fn deltas_read_decimals_and_refuse_signs() {
    assert_eq!(secs("0.755", Form::DeltaSeconds), Some(0.755));
    assert_eq!(secs(" 64.57 ", Form::DeltaSeconds), Some(64.57));
    assert_eq!(secs("1500", Form::DeltaMillis), Some(1.5));
    for text in ["", "-1", "+1", "1.", ".5", "1e3", "1 2", "0x10", "NaN", "1.2.3", "٣"] {
        assert_eq!(secs(text, Form::DeltaSeconds), None, "{text}");
        assert_eq!(secs(text, Form::Guess), None, "{text}");
    }
}

#[test]
fn absurd_numbers_are_clamped_not_wrapped() {
    let max = Duration::from_secs(super::super::INTEGER_MAX);
    for text in ["999999999999999999999", "18446744073709551616", "1000000000000000"] {
        assert_eq!(Form::DeltaSeconds.delay(text, NOW), Some(max), "{text}");
    }
    assert_eq!(secs("000000000000000000005", Form::DeltaSeconds), Some(5.0));
}

#[test]
fn fractions_beyond_a_nanosecond_round_up() {
    let read = |text| Form::DeltaSeconds.delay(text, NOW);
    assert_eq!(read("0.0000000001"), Some(Duration::from_nanos(1)));
    assert_eq!(read("0.9999999999"), Some(Duration::from_secs(1)));
    assert_eq!(read("0.5000000000"), Some(Duration::from_millis(500)));
}

#[test]
fn epochs_count_from_the_servers_time_and_the_past_is_no_wait() {
    assert_eq!(secs("1700000030", Form::EpochSeconds), Some(30.0));
    assert_eq!(secs("1700000000.25", Form::EpochSeconds), Some(0.25));
    assert_eq!(secs("1700000030500", Form::EpochMillis), Some(30.5));
    assert_eq!(secs("1600000000", Form::EpochSeconds), Some(0.0));
}

#[test]
fn durations_read_as_go_prints_them() {
    for (text, expected) in [
        ("6m0s", 360.0),
        ("12ms", 0.012),
        ("1s", 1.0),
        ("1h2m3.5s", 3723.5),
        ("500us", 0.0005),
        ("1.5h", 5400.0),
        ("2d", 172_800.0),
        ("750µs", 0.00075),
    ] {
        assert_eq!(secs(text, Form::Duration), Some(expected), "{text}");
        assert_eq!(secs(text, Form::Guess), Some(expected), "{text}");
    }
    for text in ["", "s", "1", "1x", "-1s", "1s2", "1..2s", "1s "] {
        assert_eq!(Form::Duration.delay(text, NOW).is_some(), text == "1s ", "{text}");
    }
}

#[test]
fn all_three_http_dates_are_the_same_instant() {
    for text in [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "Sun Nov 6 1994 09:49:37 GMT+0100 (Central European Standard Time)",
    ] {
        assert_eq!(http_date(text, NOW), Some(Duration::from_secs(784_111_777)), "{text}");
    }
}

#[test]
fn two_digit_years_over_fifty_ahead_are_past() {
    let in_2023 = |text| http_date(text, NOW).expect("a date").as_secs() / 31_556_952 + 1970;
    assert_eq!(in_2023("Monday, 01-Jul-24 00:00:00 GMT"), 2024);
    assert_eq!(in_2023("Sunday, 01-Jul-73 00:00:00 GMT"), 2073);
    assert_eq!(in_2023("Monday, 01-Jul-74 00:00:00 GMT"), 1974);
}

#[test]
fn impossible_dates_are_refused() {
    for text in [
        "Sun, 31 Feb 2021 00:00:00 GMT",
        "Sun, 00 Nov 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:00:00 GMT",
        "Sun, 06 Nov 1994 08:60:00 GMT",
        "Sun, 06 Nov 1994 08:49:37",
        "Sun, 06 Nov 1994 08:49:37 PST",
        "Sun, 06 anF 1994 08:49:37 GMT",
        "29 Feb 2023",
        "",
    ] {
        assert_eq!(http_date(text, NOW), None, "{text}");
    }
    assert!(http_date("Thu, 29 Feb 2024 00:00:00 GMT", NOW).is_some());
}

#[test]
fn rfc3339_reads_fractions_offsets_and_bare_minutes() {
    for text in [
        "2023-11-14T22:13:30Z",
        "2023-11-14t22:13:30z",
        "2023-11-14 22:13:30.000Z",
        "2023-11-14T23:13:30+01:00",
        "2023-11-14T17:13:30-05:00",
    ] {
        assert_eq!(secs(text, Form::Rfc3339), Some(10.0), "{text}");
        assert_eq!(secs(text, Form::Guess), Some(10.0), "{text}");
    }
    assert_eq!(secs("2023-11-14T22:14Z", Form::Rfc3339), Some(40.0));
    assert_eq!(secs("2023-11-14T22:13:20.250Z", Form::Rfc3339), Some(0.25));
    for text in ["2023-13-01T00:00:00Z", "2023-11-14", "2023-11-14T22:13:30", "T Z", "-1T+"] {
        assert_eq!(secs(text, Form::Rfc3339), None, "{text}");
    }
}

#[test]
fn guessing_goes_by_magnitude_and_letters() {
    assert_eq!(secs("30", Form::Guess), Some(30.0));
    assert_eq!(secs("0.5", Form::Guess), Some(0.5));
    assert_eq!(secs("1700000030", Form::Guess), Some(30.0));
    assert_eq!(secs("1700000030.5", Form::Guess), Some(30.5));
    assert_eq!(secs("1700000030500", Form::Guess), Some(30.5));
    assert_eq!(secs("999999999", Form::Guess), Some(999_999_999.0));
    assert_eq!(secs("Tue Nov 14 2023 23:13:30 GMT+0100 (CET)", Form::Guess), Some(10.0));
    assert_eq!(secs("Tue, 14 Nov 2023 22:13:30 GMT", Form::Guess), Some(10.0));
}

#[test]
fn call_limits_and_window_lists_are_read_whole_or_not_at_all() {
    assert_eq!(used_of_size("32/40"), Some((32, 40)));
    assert_eq!(used_of_size("32"), None);
    let secs = Duration::from_secs;
    assert_eq!(
        counts_per_window("20:1,100:120").as_deref(),
        Some(&[(20, secs(1)), (100, secs(120))][..])
    );
    assert_eq!(counts_per_window("20:1,100"), None);
}

#[test]
fn seconds_round_up() {
    for (nanos, expected) in
        [(0, 0), (1, 1), (999_999_999, 1), (1_000_000_000, 1), (1_000_000_001, 2)]
    {
        assert_eq!(seconds_up(Duration::from_nanos(nanos)), expected);
    }
    assert_eq!(seconds_up(Duration::MAX), u64::MAX);
}
