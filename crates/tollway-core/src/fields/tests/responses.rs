use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use core::time::Duration;

use super::super::{Family, Form, Lines, Observed, Reading, Triplet, read, retry_after};

const NOW: Duration = Duration::from_secs(1_700_000_000);

fn response(fields: &[(&str, &str)]) -> Reading {
    read(&lines(fields), NOW)
}

fn lines<'a>(fields: &[(&'a str, &'a str)]) -> Lines<'a> {
    fields.iter().map(|&(name, value)| (name, value.as_bytes())).collect()
}

fn secs(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds))
}

fn named(policy: &str) -> Observed {
    Observed { policy: Some(policy.to_string()), ..Observed::default() }
}

#[test]
fn draft10_pairs_policies_with_what_remains() {
    let reading = response(&[
        ("RateLimit-Policy", r#""hour";q=1000;w=3600, "day";q=5000;w=86400"#),
        ("RateLimit", r#""day";r=100;t=36000"#),
    ]);
    let hour = Observed { quota: Some(1000), window: secs(3600), ..named("hour") };
    let day = Observed {
        quota: Some(5000),
        window: secs(86_400),
        remaining: Some(100),
        more_after: secs(36_000),
        ..named("day")
    };
    assert_eq!(reading.family, Some(Family::Draft10));
    assert_eq!(reading.limits, [hour, day]);
}

#[test]
fn draft10_examples_with_partition_keys_and_units_are_understood() {
    let reading = response(&[(
        "ratelimit-policy",
        r#""peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:;acme-burst=12"#,
    )]);
    let limit = &reading.limits[0];
    assert_eq!(limit.unit.as_deref(), Some("content-bytes"));
    assert_eq!(limit.partition.as_ref().map(Vec::len), Some(7));
    let reading = response(&[("ratelimit", r#""default";r=999;pk=:dHJpYWwxMjEzMjM=:"#)]);
    assert_eq!(reading.limits[0].partition.as_deref(), Some(&b"trial121323"[..]));
}

#[test]
fn draft10_is_read_over_several_lines_in_any_case() {
    let reading =
        response(&[("RATELIMIT", r#""a";r=1"#), ("x-other", "1"), ("ratelimit", r#""b";r=2"#)]);
    let remaining: Vec<_> = reading.limits.iter().map(|limit| limit.remaining).collect();
    assert_eq!(remaining, [Some(1), Some(2)]);
}

#[test]
fn draft10_slips_of_the_text_are_forgiven() {
    let reading = response(&[
        ("RateLimit-Policy", "quota;q=100;w=1;qu=\"request\""),
        ("RateLimit", "quota;t=1"),
    ]);
    let limit = &reading.limits[0];
    assert_eq!((limit.quota, limit.remaining, limit.more_after), (Some(100), None, secs(1)));
    assert_eq!(limit.unit, None);
}

#[test]
fn malformed_fields_are_ignored_whole() {
    for value in [
        r#""a";r=-1"#,
        r#""a";r=1.5"#,
        r#""a";r="1""#,
        r#""a";r=1;t=-5"#,
        r#""a";r=1000000000000000"#,
        r#""a";r=5, "b";r=?1"#,
        r#""a";r=5,"#,
        r#""a;r=5"#,
        r#"("a");r=5"#,
        "5;r=5",
        "\"\u{e9}\";r=5",
    ] {
        assert_eq!(response(&[("RateLimit", value)]), Reading::default(), "{value}");
    }
    for value in [r#""a""#, r#""a";q=1;w=0"#, r#""a";q=1;w=1.5"#, r#""a";q=1;qu=bytes"#] {
        assert_eq!(response(&[("RateLimit-Policy", value)]), Reading::default(), "{value}");
    }
}

#[test]
fn a_malformed_field_leaves_the_next_family_its_chance() {
    let reading = response(&[("RateLimit", r#""a";r=-1"#), ("X-RateLimit-Remaining", "7")]);
    assert_eq!(reading.family, Some(Family::XRateLimit));
    assert_eq!(reading.limits[0].remaining, Some(7));
}

#[test]
fn draft07_is_told_from_draft10_by_its_shape() {
    let reading = response(&[
        ("RateLimit", "limit=100, remaining=50, reset=30"),
        ("RateLimit-Policy", "10;w=1, 100;w=60"),
    ]);
    assert_eq!(reading.family, Some(Family::Draft07));
    let limit = Observed {
        quota: Some(100),
        window: secs(60),
        remaining: Some(50),
        reset_after: secs(30),
        ..Observed::default()
    };
    assert_eq!(reading.limits, [limit]);
    assert_eq!(response(&[("RateLimit", "limit=100, remaining=-1")]), Reading::default());
}

#[test]
fn early_drafts_and_envoy_put_windows_into_the_limit() {
    let reading = response(&[
        ("x-ratelimit-limit", r#"2, 2;w=60;name="demo""#),
        ("x-ratelimit-remaining", "1"),
        ("x-ratelimit-reset", "19"),
    ]);
    let limit = &reading.limits[0];
    assert_eq!((limit.quota, limit.window, limit.reset_after), (Some(2), secs(60), secs(19)));
    let reading = response(&[
        ("RateLimit-Limit", "100"),
        ("RateLimit-Policy", "100;w=60"),
        ("RateLimit-Remaining", "50"),
        ("RateLimit-Reset", "30"),
    ]);
    assert_eq!(reading.family, Some(Family::RateLimit));
    assert_eq!((reading.limits[0].window, reading.limits[0].reset_after), (secs(60), secs(30)));
}

#[test]
fn heroku_sends_only_what_remains() {
    let reading = response(&[("RateLimit-Remaining", "4321")]);
    assert_eq!(reading.limits, [Observed { remaining: Some(4321), ..Observed::default() }]);
}

#[test]
fn gitlab_sends_epochs_under_the_drafts_name() {
    let reading = response(&[
        ("RateLimit-Limit", "60"),
        ("RateLimit-Remaining", "0"),
        ("RateLimit-Reset", "1700000060"),
    ]);
    assert_eq!(reading.limits[0].reset_after, secs(60));
}

#[test]
fn github_epochs_are_measured_by_the_servers_own_clock() {
    let reading = response(&[
        ("Date", "Tue, 14 Nov 2023 22:14:20 GMT"),
        ("x-ratelimit-limit", "5000"),
        ("x-ratelimit-remaining", "4999"),
        ("x-ratelimit-reset", "1700000100"),
    ]);
    assert_eq!(reading.limits[0].reset_after, secs(40));
}

#[test]
fn discord_reset_after_beats_reset() {
    let reading = response(&[
        ("X-RateLimit-Limit", "5"),
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Reset", "1700000099.123"),
        ("X-RateLimit-Reset-After", "64.57"),
    ]);
    assert_eq!(reading.limits[0].reset_after, Some(Duration::from_millis(64_570)));
}

#[test]
fn sharkey_reset_is_the_next_call_and_clear_the_whole_bucket() {
    let reading = response(&[
        ("X-RateLimit-Remaining", "0"),
        ("X-RateLimit-Clear", "10.000"),
        ("X-RateLimit-Reset", "0.755"),
        ("Retry-After", "1"),
    ]);
    let limit = &reading.limits[0];
    assert_eq!(limit.more_after, Some(Duration::from_millis(755)));
    assert_eq!((limit.reset_after, reading.retry_after), (secs(10), secs(1)));
}

#[test]
fn x_rate_limit_spelling_and_fractions_are_read() {
    let reading = response(&[
        ("X-Rate-Limit-Limit", "600"),
        ("X-Rate-Limit-Remaining", "598.5"),
        ("X-Rate-Limit-Reset", "120"),
    ]);
    let limit = &reading.limits[0];
    assert_eq!(
        (limit.quota, limit.remaining, limit.reset_after),
        (Some(600), Some(598), secs(120))
    );
}

#[test]
fn retry_after_is_seconds_or_a_date_measured_from_date() {
    let wait = |fields: &[(&str, &str)]| retry_after(&lines(fields), NOW);
    assert_eq!(wait(&[("retry-after", "120")]), secs(120));
    assert_eq!(wait(&[("retry-after", "2.0")]), secs(2));
    assert_eq!(wait(&[("retry-after", "Tue, 14 Nov 2023 22:13:50 GMT")]), secs(30));
    let date = ("Date", "Tue, 14 Nov 2023 22:13:45 GMT");
    assert_eq!(wait(&[date, ("retry-after", "Tue, 14 Nov 2023 22:13:50 GMT")]), secs(5));
    assert_eq!(wait(&[("retry-after", "Tue, 14 Nov 2023 22:13:00 GMT")]), secs(0));
    for text in ["", "-1", "soon", "1,2", "10 s"] {
        assert_eq!(wait(&[("retry-after", text)]), None, "{text}");
    }
}

#[test]
fn retry_after_ms_is_finer_and_the_longest_line_counts() {
    let wait = |fields: &[(&str, &str)]| retry_after(&lines(fields), NOW);
    let both = [("retry-after", "1"), ("Retry-After-Ms", "250")];
    assert_eq!(wait(&both), Some(Duration::from_millis(250)));
    assert_eq!(wait(&[("retry-after", "5"), ("retry-after", "30")]), secs(30));
}

#[test]
fn cached_responses_say_nothing_but_retry_after() {
    let reading = response(&[
        ("Age", "10"),
        ("RateLimit", r#""a";r=1"#),
        ("X-RateLimit-Remaining", "1"),
        ("Retry-After", "3"),
    ]);
    assert_eq!(reading, Reading { retry_after: secs(3), ..Reading::default() });
    assert_eq!(response(&[("Age", "0"), ("RateLimit", r#""a";r=1"#)]).limits.len(), 1);
}

#[test]
fn values_that_are_not_ascii_or_too_long_are_ignored() {
    let long = String::from_utf8(vec![b'9'; 64 * 1024]).expect("digits");
    assert_eq!(response(&[("X-RateLimit-Remaining", &long)]), Reading::default());
    let lines: Lines<'_> =
        [("x-ratelimit-remaining", &b"\xff5"[..]), ("retry-after", &b"5\x00"[..])]
            .into_iter()
            .collect();
    assert_eq!(read(&lines, NOW), Reading::default());
}

#[test]
fn unknown_as_minus_one_is_not_zero() {
    let reading = response(&[
        ("x-ratelimit-limit", "-1"),
        ("x-ratelimit-remaining", "-1"),
        ("x-ratelimit-reset", "-1"),
    ]);
    assert_eq!(reading, Reading::default());
}

#[test]
fn a_triplet_names_one_dimension_of_a_profile() {
    let fields = lines(&[
        ("x-ratelimit-limit-tokens", "150000"),
        ("x-ratelimit-remaining-tokens", "149984"),
        ("x-ratelimit-reset-tokens", "6m0s"),
        ("anthropic-ratelimit-requests-remaining", "49"),
        ("anthropic-ratelimit-requests-reset", "2023-11-14T22:13:50Z"),
    ]);
    let openai = Triplet::new(
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
        Form::Duration,
    );
    let limit = openai.read(&fields, NOW).expect("present");
    assert_eq!(
        (limit.quota, limit.remaining, limit.reset_after),
        (Some(150_000), Some(149_984), secs(360))
    );
    let anthropic = Triplet::new(
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
        Form::Rfc3339,
    );
    let limit = anthropic.read(&fields, NOW).expect("present");
    assert_eq!((limit.quota, limit.remaining, limit.reset_after), (None, Some(49), secs(30)));
}
