use std::time::Duration;

use tokio::time::Instant;
use tollway_core::Timestamp;
use tollway_core::outages::{Episode, OutageEvent};
use tollway_upstream::budget::{Change, ChangeKind};
use tollway_upstream::profile::Scope;

use super::*;

fn refusal(bucket: &str) -> Change {
    let wait = Duration::from_secs(2);
    Change {
        at: Timestamp::MIN,
        bucket: bucket.into(),
        route: "POST /channels/:major/messages".into(),
        what: ChangeKind::Refused { scope: Some(Scope::User), wait },
        count: 1,
    }
}

fn id() -> CredentialId {
    CredentialId::parse("00112233445566778899aabbccddeeff").unwrap()
}

fn told(events: &Events) -> Vec<(String, u64)> {
    let newest_first = events.recent();
    let told = newest_first.iter().rev().map(|event| {
        (event["what"].as_str().unwrap().to_owned(), event["count"].as_u64().unwrap())
    });
    told.collect()
}

#[tokio::test(start_paused = true)]
async fn a_storm_is_a_line_at_once_and_then_one_with_a_count() {
    let events = Events::default();
    for _ in 0..500 {
        events.budgets(id(), &[refusal("abc 1")]);
        events.flush(Instant::now());
    }
    let line = |count| ("refused by the upstream".to_owned(), count);
    assert_eq!(told(&events), [line(1)]);
    tokio::time::advance(Duration::from_secs(5)).await;
    events.flush(Instant::now());
    assert_eq!(told(&events), [line(1), line(499)]);
    // It is over: nothing is told for a while, and then the next at once.
    tokio::time::advance(Duration::from_secs(5)).await;
    events.flush(Instant::now());
    events.budgets(id(), &[refusal("abc 1")]);
    assert_eq!(told(&events), [line(1), line(499), line(1)]);
}

#[tokio::test(start_paused = true)]
async fn each_bucket_is_told_of_but_not_thousands_of_them() {
    let events = Events::default();
    for channel in 0..10_000 {
        events.budgets(id(), &[refusal(&format!("abc {channel}"))]);
    }
    let lines = told(&events).len();
    assert!((60..70).contains(&lines), "{lines}");
    tokio::time::advance(Duration::from_secs(5)).await;
    events.flush(Instant::now());
    let counted: u64 = told(&events).iter().map(|(_, count)| count).sum();
    assert_eq!(counted, 10_000, "none is forgotten");
    assert!(events.recent().len() <= RING_MAX);
}

#[tokio::test(start_paused = true)]
async fn the_upstream_is_down_once_and_up_again_once() {
    let events = Events::default();
    events.upstream_answered();
    for _ in 0..3 {
        events.upstream_failed("refused");
    }
    assert!(!events.is_upstream_up());
    tokio::time::advance(Duration::from_secs(7)).await;
    events.upstream_answered();
    events.upstream_answered();
    assert!(events.is_upstream_up());
    let words: Vec<String> = told(&events).into_iter().map(|(what, _)| what).collect();
    assert_eq!(words, ["upstream down", "upstream up again"]);
    assert_eq!(events.recent()[0]["lasted_ms"], 7_000);
}

#[tokio::test(start_paused = true)]
async fn what_outages_cost_is_added_up_apart_from_how_often_they_ended() {
    let events = Events::default();
    let outage = |unanswered| {
        let episode = Episode { since: Timestamp::MIN, reason: "gone".to_owned(), unanswered };
        OutageEvent::Ended(episode, Duration::from_secs(2))
    };
    for unanswered in [7, 30, 200] {
        events.store(&outage(unanswered));
    }
    tokio::time::advance(Duration::from_secs(5)).await;
    events.flush(Instant::now());
    let newest_first = events.recent();
    let told = newest_first
        .iter()
        .map(|event| (event["count"].as_u64().unwrap(), event["unanswered"].as_u64().unwrap()));
    assert_eq!(told.collect::<Vec<_>>(), [(2, 230), (1, 7)]);
}

#[test]
fn what_looks_like_a_token_in_a_path_is_not_shown() {
    let token = "B9xTq7LrWv2NcYp4KsHd8ZmE";
    for text in [format!("POST /services/T0/B0/{token}"), format!("POST /services/{token} 42")] {
        let shown = shown(&text);
        assert!(!shown.contains(token) && shown.starts_with("POST /services/"), "{shown}");
    }
    for text in ["POST /channels/:major/messages 81384788765712384", "4005a0e1f2c34d5e6f708192 7"] {
        assert_eq!(shown(text), text);
    }
    assert!(shown(&"/é".repeat(500)).chars().count() <= 161);
}

#[test]
fn an_event_names_the_credential_by_the_beginning_of_its_hash() {
    let events = Events::default();
    events.budgets(id(), &[refusal("abc 1")]);
    let event = events.recent().remove(0);
    assert_eq!(event["credential"], "00112233");
    assert_eq!((&event["scope"], &event["wait_ms"]), (&"user".into(), &2_000.into()));
}
