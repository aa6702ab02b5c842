use std::sync::Arc;
use std::time::Duration;

use tollway_core::{Timestamp, VirtualClock};
use tollway_memory::Capacity;

use crate::harness::{Http, start_with};

const PLAN: &str = r#"
    [[policies]]
    name = "plan"
    quota = "2/month tz Europe/Berlin anchor 15"
    overrides = [
        { key = "acme", quota = "3/month tz America/New_York anchor 15 grace 1" },
        { key = "fast", quota = "5/1s" },
    ]
"#;

/// 46 minutes and 40 seconds before the 15th of November 2023 begins in Berlin.
const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);

#[test]
fn a_plan_resets_when_its_month_begins_in_its_zone_and_for_each_key_on_its_own_day() {
    let clock = Arc::new(VirtualClock::at(START));
    let running = start_with(PLAN, Arc::clone(&clock) as _, Vec::new(), Capacity::keys(1_000));
    let mut http = Http::connect(running.http);
    let mut check = |key: &str, cost: u64| {
        let body = format!(r#"{{"policy":"plan","key":"{key}","cost":{cost}}}"#);
        http.post("/v1/check", &body)
    };
    let first = check("ada", 2);
    assert_eq!(first.field("ratelimit"), Some("\"plan\";r=0;t=2800"));
    assert_eq!(first.field("ratelimit-policy"), Some("\"plan\";q=2;w=2592000"));
    assert_eq!(first.json()["charges"][0]["reset_after_ms"], 2_800_000);
    assert_eq!(first.json()["charges"][0].get("grace_used"), None);
    let denied = check("ada", 1);
    assert_eq!((denied.status, denied.field("retry-after")), (429, Some("2800")));
    // In New York the day begins six hours later, and the limit is soft.
    let soft = check("acme", 4).json();
    assert_eq!(soft["charges"][0]["reset_after_ms"], 24_400_000);
    assert_eq!(
        (&soft["charges"][0]["limit"], &soft["charges"][0]["grace_used"]),
        (&4.into(), &1.into())
    );
    assert_eq!(check("acme", 1).status, 429);
    assert_eq!(check("fast", 5).json()["charges"][0]["reset_after_ms"], 1_000);
    clock.set(START.after(Duration::from_secs(2_800)));
    assert_eq!(check("ada", 2).status, 200);
    assert_eq!(check("acme", 1).status, 429);
    clock.set(START.after(Duration::from_secs(24_400)));
    assert_eq!(check("acme", 1).json()["charges"][0]["grace_used"], 0);
    let metrics = http.get("/metrics").body;
    let line = "tollway_in_grace_total{domain=\"\",policy=\"plan\"} 1";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn a_plan_comes_with_a_call_too_and_what_is_wrong_with_it_is_told() {
    let clock = Arc::new(VirtualClock::at(START));
    let running = start_with("", clock, Vec::new(), Capacity::keys(1_000));
    let mut http = Http::connect(running.http);
    let mut check = |quota: &str| {
        let body = format!(r#"{{"limit":{{"quota":"{quota}"}},"key":"initech"}}"#);
        http.post("/v1/check", &body)
    };
    let answer = check("300/month tz Asia/Kathmandu anchor 29");
    assert_eq!((answer.status, &answer.json()["charges"][0]["remaining"]), (200, &299.into()));
    let refused = check("300/month tz Asia/Kathmandoo");
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("did you mean"), "{}", refused.body);
    assert!(check("300/hour anchor 15").body.contains("an hour has no anchor"));
}
