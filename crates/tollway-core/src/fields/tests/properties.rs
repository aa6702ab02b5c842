use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::time::Duration;

use proptest::prelude::*;

use super::super::sf::{self, Bare, Member, Params};
use super::super::{Dialect, Family, Form, INTEGER_MAX, Lines, Standing, read, seconds_up};
use super::{allowed, denied, emitted};

fn bare(value: &sfv::BareItem) -> Bare {
    match value {
        sfv::BareItem::Integer(number) => Bare::Integer((*number).into()),
        sfv::BareItem::Decimal(number) => Bare::Decimal(number.as_integer_scaled_1000().into()),
        sfv::BareItem::String(text) => Bare::String(text.as_str().to_string()),
        sfv::BareItem::Token(text) => Bare::Token(text.as_str().to_string()),
        sfv::BareItem::ByteSequence(bytes) => Bare::Bytes(bytes.clone()),
        sfv::BareItem::Boolean(flag) => Bare::Boolean(*flag),
        sfv::BareItem::Date(date) => Bare::Date(date.unix_seconds().into()),
        sfv::BareItem::DisplayString(text) => Bare::Display(text.clone()),
    }
}

fn params(params: &sfv::Parameters) -> Params {
    params.iter().map(|(key, value)| (key.as_str().to_string(), bare(value))).collect()
}

fn member(entry: &sfv::ListEntry) -> Member {
    match entry {
        sfv::ListEntry::Item(item) => Member::Item(bare(&item.bare_item), params(&item.params)),
        sfv::ListEntry::InnerList(list) => Member::Inner(
            list.items.iter().map(|item| (bare(&item.bare_item), params(&item.params))).collect(),
            params(&list.params),
        ),
    }
}

fn oracle_list(text: &str) -> Option<Vec<Member>> {
    let list: sfv::List = sfv::Parser::new(text).parse().ok()?;
    Some(list.iter().map(member).collect())
}

fn oracle_dictionary(text: &str) -> Option<Vec<(String, Member)>> {
    let entries: sfv::Dictionary = sfv::Parser::new(text).parse().ok()?;
    Some(entries.iter().map(|(key, value)| (key.as_str().to_string(), member(value))).collect())
}

/// Text that is mostly a structured field, so that both outcomes are common.
fn field_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[ \t,;=()\"\\\\:?@%*.a-cA-C0-9_/+é-]",
        "(, |;a=|;b|=| ;|\t,|\\(|\\))",
        "-?[0-9]{1,16}(\\.[0-9]{0,4})?",
        "\"[ -~]{0,4}\"",
        ":[A-Za-z0-9+/]{0,6}={0,3}:",
        "\\?[012]",
        "@-?[0-9]{1,16}",
        "%\"(%[0-9a-fF][0-9a-f]|[a-z]){0,4}\"",
        "[a-zA-Z*][a-zA-Z0-9:/!]{0,4}",
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

fn any_standing() -> impl Strategy<Value = Standing<'static>> {
    let wait = (0..2u64 * INTEGER_MAX, 0..1_000_000_000u32)
        .prop_map(|(secs, nanos)| Duration::new(secs, nanos));
    let name = prop::sample::select(&["default", "per \"user\"", "back\\slash", "ünï"][..]);
    (
        name,
        0..u64::MAX,
        prop::option::of(wait.clone()),
        0..u64::MAX,
        prop::option::of(wait.clone()),
        wait,
    )
        .prop_map(|(policy, quota, window, remaining, more_after, full_after)| Standing {
            policy,
            limit: quota,
            quota,
            window,
            remaining,
            more_after,
            full_after,
        })
}

/// Draft 10 by `sfv`: name and integer parameters of each item, or a panic if it is not that.
fn items_by_sfv(text: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list: sfv::List = sfv::Parser::new(text).parse().expect("sfv reads what we write");
    let item = |entry: &sfv::ListEntry| {
        let sfv::ListEntry::Item(item) = entry else { panic!("an inner list: {text}") };
        let name = item.bare_item.as_string().expect("names are Strings").as_str().to_string();
        let integer = |value: &sfv::BareItem| value.as_integer().expect("an Integer").into();
        let params = item.params.iter().filter(|(key, _)| key.as_str() != "qu");
        let params = params.map(|(key, value)| (key.as_str().to_string(), integer(value)));
        (name, params.collect())
    };
    list.iter().map(item).collect()
}

fn integer(number: u64) -> i64 {
    number.min(INTEGER_MAX) as i64
}

/// What is to be told of standings some of which share a policy.
fn tightest_by_name<'a>(standings: &[Standing<'a>]) -> Vec<Standing<'a>> {
    let slack = |standing: &Standing<'_>| (standing.remaining, Reverse(standing.full_after));
    let mut told: Vec<Standing<'a>> = Vec::new();
    for standing in standings {
        match told.iter_mut().find(|earlier| earlier.policy == standing.policy) {
            None => told.push(*standing),
            Some(earlier) if slack(standing) < slack(earlier) => *earlier = *standing,
            Some(_) => {}
        }
    }
    told
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4096,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn lists_are_read_as_sfv_reads_them(text in field_text()) {
        prop_assert_eq!(sf::list(&text), oracle_list(&text));
    }

    #[test]
    fn dictionaries_are_read_as_sfv_reads_them(text in "([a-c*]=?)?", rest in field_text()) {
        let text = text + &rest;
        prop_assert_eq!(sf::dictionary(&text), oracle_dictionary(&text));
    }

    #[test]
    fn no_bytes_make_a_reader_panic(
        value in prop::collection::vec(any::<u8>(), 0..48),
        text in field_text(),
        now in any::<u64>(),
    ) {
        let names = [
            "ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-reset", "retry-after",
            "x-ratelimit-remaining", "x-ratelimit-reset", "x-ratelimit-clear", "date", "age",
            "retry-after-ms",
        ];
        let now = Duration::from_secs(now);
        for value in [&value[..], text.as_bytes()] {
            let lines: Lines<'_> = names.iter().map(|&name| (name, value)).collect();
            let _ = read(&lines, now);
        }
        for form in [Form::Guess, Form::HttpDate, Form::Rfc3339, Form::Duration] {
            let _ = form.delay(&text, now);
        }
    }

    #[test]
    fn times_with_random_digits_never_panic(
        text in "[0-9]{1,4}[-./: ][0-9]{1,4}[-T: ][0-9]{1,6}[:. ]?[0-9]{0,4}[Z+-]?[0-9:]{0,5}",
        date in "[A-Z][a-z]{2},? [0-9]{1,2}[ -](Jan|Feb|Nov)[ -][0-9]{2,5} [0-9:.]{1,9} GMT",
    ) {
        for form in [Form::Guess, Form::HttpDate, Form::Rfc3339, Form::Duration] {
            let _ = form.delay(&text, Duration::ZERO);
            let _ = form.delay(&date, Duration::MAX);
        }
    }

    #[test]
    fn sfv_reads_draft10_with_r_rounded_down_and_t_rounded_up(
        standings in prop::collection::vec(any_standing(), 1..4),
    ) {
        let fields = emitted(Dialect::Draft10, &allowed(&standings));
        let (policies, limits) = (items_by_sfv(&fields[0].1), items_by_sfv(&fields[1].1));
        let told = tightest_by_name(&standings);
        prop_assert_eq!((policies.len(), limits.len()), (told.len(), told.len()));
        for (standing, (name, params)) in told.iter().zip(&limits) {
            let mut expected = Vec::from([("r".to_string(), integer(standing.remaining))]);
            expected.extend(standing.more_after.map(|t| ("t".into(), integer(seconds_up(t)))));
            prop_assert_eq!(params, &expected);
            let escaped: String =
                standing.policy.chars().map(|c| if c.is_ascii() { c } else { '_' }).collect();
            prop_assert_eq!(name, &escaped);
        }
        for (_, params) in &policies {
            prop_assert!(params[0].0 == "q");
            prop_assert!(params.get(1).is_none_or(|(key, window)| key == "w" && *window >= 1));
        }
    }

    #[test]
    fn every_dialect_reads_back_what_it_wrote(
        standing in any_standing(),
        retry in prop::option::of(1..10_000_000u64),
    ) {
        let fields = [standing];
        let report = match retry {
            Some(millis) => denied(&fields, Some(Duration::from_millis(millis))),
            None => allowed(&fields),
        };
        for (dialect, family) in [
            (Dialect::Draft10, Family::Draft10),
            (Dialect::Draft07, Family::Draft07),
            (Dialect::Draft03, Family::RateLimit),
            (Dialect::XRateLimitClear, Family::XRateLimit),
            (Dialect::XRateLimitDelta, Family::XRateLimit),
            (Dialect::XRateLimitEpoch, Family::XRateLimit),
        ] {
            let lines = emitted(dialect, &report);
            let lines: Lines<'_> =
                lines.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
            let reading = read(&lines, report.epoch);
            prop_assert_eq!(reading.family, Some(family), "{}", dialect);
            let zeroed = dialect == Dialect::XRateLimitClear && retry.is_some();
            let remaining = if zeroed { 0 } else { standing.remaining.min(INTEGER_MAX) };
            prop_assert_eq!(reading.limits[0].remaining, Some(remaining), "{}", dialect);
            let told = reading.retry_after.map(|wait| wait.as_secs());
            prop_assert_eq!(told, report.retry().map(|wait| seconds_up(wait).min(INTEGER_MAX)));
            if let (Some(told), Some(more)) = (told, reading.limits[0].more_after) {
                prop_assert!(dialect != Dialect::Draft10 || told >= more.as_secs());
            }
        }
    }
}
