use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::time::Duration;

use super::super::{Dialect, Field, INTEGER_MAX, Problem, Standing};
use super::{allowed, denied, emitted, standing};
use crate::{Policy, Snapshot};

fn text(dialect: Dialect, report: &super::super::Report<'_>) -> Vec<String> {
    emitted(dialect, report).iter().map(|(name, value)| format!("{name}: {value}")).collect()
}

#[test]
fn draft10_reports_every_policy_by_name() {
    let day = Standing {
        quota: 5000,
        window: Some(Duration::from_secs(86_400)),
        remaining: 5000,
        more_after: None,
        full_after: Duration::ZERO,
        ..standing("day")
    };
    assert_eq!(
        text(Dialect::Draft10, &allowed(&[standing("minute"), day])),
        [
            r#"RateLimit-Policy: "minute";q=100;w=60, "day";q=5000;w=86400"#,
            r#"RateLimit: "minute";r=50;t=1, "day";r=5000"#,
        ]
    );
}

#[test]
fn a_policy_asked_for_several_keys_is_named_once_and_stands_by_the_tightest() {
    let left = |remaining| Standing { remaining, ..standing("key") };
    let standings = [left(7), standing("other"), left(3), left(5)];
    let policies = r#"RateLimit-Policy: "key";q=100;w=60, "other";q=100;w=60"#;
    let told = text(Dialect::Draft10, &allowed(&standings));
    assert_eq!(told, [policies, r#"RateLimit: "key";r=3;t=1, "other";r=50;t=1"#]);
    // The key that denied is the one to be told about, though another has fewer left.
    let told = text(Dialect::Draft10, &denied(&standings, Some(Duration::from_secs(9))));
    assert_eq!(told[..2], [policies, r#"RateLimit: "key";r=7;t=1, "other";r=50;t=1"#]);
    let told = text(Dialect::Draft07, &allowed(&[left(7), left(3)]));
    assert_eq!(told, ["RateLimit-Policy: 100;w=60", "RateLimit: limit=100, remaining=3, reset=30"]);
    let body = Problem::QuotaExceeded.body(429, ["key", "other", "key"]);
    assert!(body.ends_with(r#""violated-policies":["key","other"]}"#), "{body}");
}

#[test]
fn draft07_is_a_dictionary_of_the_tightest_policy() {
    let roomy = Standing { remaining: 51, ..standing("roomy") };
    assert_eq!(
        text(Dialect::Draft07, &allowed(&[roomy, standing("tight")])),
        ["RateLimit-Policy: 100;w=60, 100;w=60", "RateLimit: limit=100, remaining=50, reset=30"]
    );
}

#[test]
fn draft03_is_one_field_per_number() {
    assert_eq!(
        text(Dialect::Draft03, &allowed(&[standing("a")])),
        [
            "RateLimit-Policy: 100;w=60",
            "RateLimit-Limit: 100",
            "RateLimit-Remaining: 50",
            "RateLimit-Reset: 30",
        ]
    );
}

#[test]
fn x_ratelimit_reset_is_a_delta_or_an_epoch() {
    let fields = [standing("a")];
    let rest = ["X-RateLimit-Limit: 100", "X-RateLimit-Remaining: 50"];
    let delta = text(Dialect::XRateLimitDelta, &allowed(&fields));
    assert_eq!(delta[..2], rest);
    assert_eq!(delta[2..], ["X-RateLimit-Reset: 30"]);
    let epoch = text(Dialect::XRateLimitEpoch, &allowed(&fields));
    assert_eq!(epoch[..2], rest);
    assert_eq!(epoch[2..], ["X-RateLimit-Reset: 1700000030"]);
}

#[test]
fn epoch_resets_round_up_after_adding() {
    let mut report = allowed(&[]);
    let late = [Standing { full_after: Duration::from_millis(900), ..standing("a") }];
    report.standings = &late;
    report.epoch = Duration::from_millis(10_200);
    assert_eq!(text(Dialect::XRateLimitEpoch, &report)[2], "X-RateLimit-Reset: 12");
}

#[test]
fn off_says_nothing_even_on_denial() {
    let fields = [standing("a")];
    assert!(text(Dialect::Off, &denied(&fields, Some(Duration::from_secs(1)))).is_empty());
}

#[test]
fn retry_after_alone_is_a_dialect() {
    let fields = [standing("a")];
    assert!(text(Dialect::RetryAfter, &allowed(&fields)).is_empty());
    let told = text(Dialect::RetryAfter, &denied(&fields, Some(Duration::from_millis(1001))));
    assert_eq!(told, ["Retry-After: 2"]);
}

#[test]
fn every_dialect_but_off_tells_a_denial_when_to_retry() {
    let spent = [Standing { remaining: 0, ..standing("a") }];
    for dialect in Dialect::ALL {
        let told = text(dialect, &denied(&spent, Some(Duration::from_millis(2001))));
        let retry: Vec<_> = told.iter().filter(|line| line.starts_with("Retry-After")).collect();
        let expected: &[&str] = if dialect == Dialect::Off { &[] } else { &["Retry-After: 3"] };
        assert_eq!(retry, expected, "{dialect}");
    }
}

#[test]
fn a_denial_no_wait_can_cure_has_no_retry_after() {
    let spent = [standing("a")];
    for dialect in Dialect::ALL {
        let told = text(dialect, &denied(&spent, None));
        assert!(!told.iter().any(|line| line.starts_with("Retry-After")), "{dialect}");
    }
}

#[test]
fn a_denial_never_says_retry_after_zero() {
    let spent = [Standing { remaining: 0, more_after: None, ..standing("a") }];
    let told = text(Dialect::RetryAfter, &denied(&spent, Some(Duration::ZERO)));
    assert_eq!(told, ["Retry-After: 1"]);
}

#[test]
fn retry_after_is_not_earlier_than_t_of_any_spent_policy() {
    let spent = |name, secs| Standing {
        remaining: 0,
        more_after: Some(Duration::from_secs(secs)),
        ..standing(name)
    };
    let left = Standing { more_after: Some(Duration::from_secs(99)), ..standing("left") };
    let fields = [spent("a", 5), spent("b", 7), left];
    let told = text(Dialect::Draft10, &denied(&fields, Some(Duration::from_secs(1))));
    assert_eq!(told[2], "Retry-After: 7");
}

#[test]
fn older_drafts_repeat_the_retry_time_as_reset_on_denial() {
    let spent = [Standing { remaining: 0, ..standing("a") }];
    let told = text(Dialect::Draft07, &denied(&spent, Some(Duration::from_secs(2))));
    assert_eq!(told[1..], ["RateLimit: limit=100, remaining=0, reset=2", "Retry-After: 2"]);
}

#[test]
fn windows_that_are_not_whole_seconds_are_scaled_or_left_out() {
    let policy = |quota, window| {
        let fields = [Standing { quota, window: Some(window), ..standing("a") }];
        text(Dialect::Draft10, &allowed(&fields))[0].clone()
    };
    let millis = Duration::from_millis;
    assert_eq!(policy(10, millis(100)), r#"RateLimit-Policy: "a";q=100;w=1"#);
    assert_eq!(policy(5, millis(1500)), r#"RateLimit-Policy: "a";q=10;w=3"#);
    assert_eq!(policy(7, millis(333)), r#"RateLimit-Policy: "a";q=7"#);
    assert_eq!(policy(7, millis(60_001)), r#"RateLimit-Policy: "a";q=7"#);
    assert_eq!(policy(7, Duration::ZERO), r#"RateLimit-Policy: "a";q=7"#);
    assert_eq!(policy(7, Duration::from_nanos(1)), r#"RateLimit-Policy: "a";q=7000000000;w=1"#);
}

#[test]
fn units_in_flight_have_no_window_and_say_so() {
    let fields = [Standing { window: None, quota: 8, limit: 8, ..standing("slots") }];
    assert_eq!(
        text(Dialect::Draft10, &allowed(&fields))[0],
        r#"RateLimit-Policy: "slots";q=8;qu="concurrent-requests""#
    );
    assert_eq!(text(Dialect::Draft03, &allowed(&fields))[0], "RateLimit-Policy: 8");
}

#[test]
fn the_limit_of_old_dialects_bounds_what_remains() {
    let bursty = Policy::parse("api", "10/1s burst 50").expect("a policy");
    let snapshot = Snapshot::new(50, 49, Duration::from_millis(100), Duration::from_millis(100));
    let fields = [Standing::new(&bursty, snapshot)];
    assert_eq!(
        text(Dialect::Draft07, &allowed(&fields)),
        ["RateLimit-Policy: 10;w=1", "RateLimit: limit=50, remaining=49, reset=1"]
    );
    assert_eq!(
        text(Dialect::Draft10, &allowed(&fields)),
        [r#"RateLimit-Policy: "api";q=10;w=1"#, r#"RateLimit: "api";r=49;t=1"#]
    );
}

#[test]
fn an_unused_policy_says_no_t() {
    let policy = Policy::parse("api", "10/1s").expect("a policy");
    let fields = [Standing::new(&policy, Snapshot::new(10, 10, Duration::ZERO, Duration::ZERO))];
    assert_eq!(text(Dialect::Draft10, &allowed(&fields))[1], r#"RateLimit: "api";r=10"#);
}

#[test]
fn numbers_are_clamped_to_fifteen_digits() {
    let huge = [Standing {
        quota: u64::MAX,
        remaining: u64::MAX,
        more_after: Some(Duration::MAX),
        window: Some(Duration::MAX),
        limit: u64::MAX,
        full_after: Duration::MAX,
        ..standing("a")
    }];
    let max = INTEGER_MAX.to_string();
    for dialect in Dialect::ALL {
        for (name, value) in emitted(dialect, &denied(&huge, Some(Duration::MAX))) {
            let longest = value.split(|char: char| !char.is_ascii_digit()).map(str::len).max();
            let plain = !name.ends_with("Clear") && !value.contains('.');
            assert!(!plain || longest <= Some(max.len()), "{dialect} {name}: {value}");
        }
    }
}

#[test]
fn names_that_a_string_cannot_hold_do_not_break_the_field() {
    let fields = [standing("a\"b\\c\r\nd é")];
    let told = text(Dialect::Draft10, &allowed(&fields));
    assert_eq!(told[1], r#"RateLimit: "a\"b\\c__d _";r=50;t=1"#);
}

#[test]
fn no_policy_means_no_field() {
    for dialect in Dialect::ALL {
        assert!(text(dialect, &allowed(&[])).is_empty(), "{dialect}");
    }
}

/// One row of Sharkey: bucket size and stored counter give these numbers, those these fields.
fn sharkey(remaining: u64, full_reset_ms: u64, blocked_reset_ms: Option<u64>) -> Vec<String> {
    let fields = [Standing {
        limit: 10,
        quota: 10,
        window: Some(Duration::from_secs(10)),
        remaining,
        more_after: None,
        full_after: Duration::from_millis(full_reset_ms),
        policy: "bucket",
    }];
    let report = match blocked_reset_ms {
        None => allowed(&fields),
        Some(reset_ms) => denied(&fields, Some(Duration::from_millis(reset_ms))),
    };
    text(Dialect::XRateLimitClear, &report)
}

#[test]
fn sharkey_allowed_calls_carry_remaining_and_clear_only() {
    assert_eq!(sharkey(1, 9000, None), ["X-RateLimit-Remaining: 1", "X-RateLimit-Clear: 9.000"]);
    assert_eq!(sharkey(0, 2000, None), ["X-RateLimit-Remaining: 0", "X-RateLimit-Clear: 2.000"]);
    assert_eq!(sharkey(3, 1500, None), ["X-RateLimit-Remaining: 3", "X-RateLimit-Clear: 1.500"]);
}

#[test]
fn sharkey_blocked_calls_add_reset_and_whole_seconds_to_retry() {
    let told = sharkey(0, 10_000, Some(755));
    assert_eq!(
        told,
        [
            "X-RateLimit-Remaining: 0",
            "X-RateLimit-Clear: 10.000",
            "X-RateLimit-Reset: 0.755",
            "Retry-After: 1",
        ]
    );
    assert_eq!(sharkey(0, 2000, Some(2000))[2..], ["X-RateLimit-Reset: 2.000", "Retry-After: 2"]);
    assert_eq!(sharkey(0, 6000, Some(1001))[2..], ["X-RateLimit-Reset: 1.001", "Retry-After: 2"]);
}

#[test]
fn sharkey_milliseconds_round_up() {
    let fields = [Standing { full_after: Duration::from_nanos(1_999_000_001), ..standing("a") }];
    let told = text(Dialect::XRateLimitClear, &allowed(&fields));
    assert_eq!(told[1], "X-RateLimit-Clear: 2.000");
}

#[test]
fn sharkey_merges_several_limits_against_the_requester() {
    let few = Standing { remaining: 2, full_after: Duration::from_secs(1), ..standing("few") };
    let told = text(Dialect::XRateLimitClear, &allowed(&[standing("slow"), few]));
    assert_eq!(told, ["X-RateLimit-Remaining: 2", "X-RateLimit-Clear: 30.000"]);
}

#[test]
fn dialect_names_parse_back_and_others_are_refused() {
    for dialect in Dialect::ALL {
        assert_eq!(dialect.name().parse(), Ok(dialect));
    }
    let error = "draft99".parse::<Dialect>().expect_err("no such dialect");
    assert!(error.to_string().contains("draft10, draft07"), "{error}");
}

#[test]
fn field_table_is_indexed_by_discriminant() {
    for (index, field) in Field::ALL.into_iter().enumerate() {
        assert_eq!(field as usize, index);
    }
}

#[test]
fn problem_bodies_name_the_violated_policies() {
    assert_eq!(
        Problem::TemporaryReducedCapacity.body(503, ["daily", "a\"\n\u{1}é"]),
        "{\"type\":\"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity\",\
         \"title\":\"Temporary Reduced Capacity\",\"status\":503,\
         \"violated-policies\":[\"daily\",\"a\\\"\\u000a\\u0001é\"]}"
    );
    let empty = Problem::AbnormalUsageDetected.body(429, []);
    assert!(empty.ends_with("\"status\":429,\"violated-policies\":[]}"), "{empty}");
}
