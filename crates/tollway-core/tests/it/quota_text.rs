//! Quotas as text: any text is read or refused, and what is written reads back the same.

use std::time::Duration;

use proptest::prelude::*;
use tollway_core::{Policy, Quota, parse_duration};

use crate::key::config;

fn any_quota() -> impl Strategy<Value = Quota> {
    let units = || prop_oneof![1..100u64, 1..=Quota::UNITS_MAX];
    let period_max = Quota::PERIOD_MAX.as_nanos() as u64;
    let period =
        prop_oneof![1..=period_max, 1..5_000u64, (1..3_000u64).prop_map(|s| s * 1_000_000_000)];
    (units(), period, units())
        .prop_filter_map("takes too long to fill", |(units, period, burst)| {
            Quota::with_burst(units, Duration::from_nanos(period), burst).ok()
        })
}

/// Text that is nearly a quota: its own characters, in any order.
const NEARLY: &str = "[0-9_/ \tbursnmhdwé-]{0,30}";

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_is_written_reads_back_the_same(quota in any_quota()) {
        let text = quota.to_string();
        prop_assert_eq!(text.parse::<Quota>().unwrap(), quota);
        prop_assert_eq!(text.parse::<Quota>().unwrap().to_string(), text);
    }

    #[test]
    fn any_text_is_read_or_refused_with_a_place_in_it(
        text in prop_oneof![
            any::<String>(),
            NEARLY,
            "[0-9]{1,20}/[0-9]{0,20}[nmuswhd]{1,2}( burst [0-9]{1,20})?",
        ],
    ) {
        match text.parse::<Quota>() {
            Ok(quota) => prop_assert_eq!(quota.to_string().parse::<Quota>().unwrap(), quota),
            Err(error) => {
                prop_assert!(error.at() <= text.len());
                prop_assert!(text.is_char_boundary(error.at()));
                let _ = (error.pointing_into(&text), error.to_string());
                prop_assert!(Policy::parse("api", &text).is_err());
            }
        }
        let _ = parse_duration(&text);
    }
}
