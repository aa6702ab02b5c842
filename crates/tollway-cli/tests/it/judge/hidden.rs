//! Limits that nothing tells of before a refusal: learned once, by the fleet as by one process.
//!
//! At most two requests teach a limit that the profile expects (`opens_up_to`). Elsewhere what was
//! under way when the first refusal was answered is refused too: one, or up to a quarter of the
//! limit. Afterwards a window has at most
//! one request more than it serves: the one that goes first after a wait, or a test of what is
//! believed.

use std::time::Duration;

use serde_json::json;
use tollway_testkit::servers::Engine;

use super::fleets::Scene;
use super::rules::{Asked, engines, through};
use super::{Bound, Judge, Record};

/// The ways to keep a ledger.
fn stores() -> Vec<Option<Engine>> {
    std::iter::once(None).chain(engines().into_iter().map(Some)).collect()
}

/// Row 4: a field of the body decides what a hidden limit counts.
#[tokio::test]
async fn a_hidden_limit_of_renames_is_learned_from_a_burst_in_any_order() {
    let rename = |number| {
        let body = json!({"name": format!("channel-{number}")});
        (reqwest::Method::PATCH, "/api/v10/channels/100".to_owned(), body)
    };
    for store in stores() {
        let limits = json!({"channel": [5, 1.0], "rename": [2, 1.0], "latency": [5, 50]});
        let judge = Judge::start("discord", &limits);
        let asked: Vec<Asked> = (0..16).map(rename).collect();
        let record = through(&judge, store, 1, 6, asked).await;
        let what = format!("16 renames, 6 at once, {store:?}");
        let least = Duration::from_secs(7);
        Bound { least, rounding: Duration::ZERO, refused: 2 }.judge(&what, &record);
        assert!(record.refused_knowingly() <= 1, "{what}: {}", record.figures());
    }
}

/// Row 5: a refusal stops the whole credential, and one request finds out whether it still does.
#[tokio::test]
async fn after_a_wait_of_the_credential_one_request_goes_first() {
    let issue = |number| {
        let body = json!({"title": format!("Issue {number}")});
        (reqwest::Method::POST, "/repos/a/b/issues".to_owned(), body)
    };
    for store in stores() {
        let limits = json!({"core": [5_000, 3_600.0], "secondary": [8, 3.0], "latency": [5, 50]});
        let judge = Judge::start("github", &limits);
        let asked: Vec<Asked> = (0..24).map(issue).collect();
        let record = through(&judge, store, 1, 24, asked).await;
        let what = format!("24 issues, {store:?}");
        let least = Duration::from_secs(6);
        // Three windows, of which the first taught it: one each at the most.
        Bound { least, rounding: Duration::from_secs(1), refused: 4 }.judge(&what, &record);
        assert!(record.refused_knowingly() <= 2, "{what}: {}", record.figures());
    }
}

/// Nothing says how long to wait, and what the API documents is more than it serves.
#[tokio::test]
async fn a_limit_below_the_documented_one_is_found_although_no_wait_is_told() {
    let customer = |number| {
        let body = json!({"name": format!("customer {number}")});
        (reqwest::Method::POST, "/v1/customers".to_owned(), body)
    };
    for store in stores() {
        let limits = json!({"endpoint-rate": [10, 1.0], "latency": [5, 50]});
        let judge = Judge::start("stripe", &limits);
        let asked: Vec<Asked> = (0..60).map(customer).collect();
        // Nobody gets the 429: all are served.
        let record = through(&judge, store, 1, 60, asked).await;
        let what = format!("60 customers, 10 per 1 s, {store:?}");
        let least = Duration::from_secs(5);
        // Two teach it, and each window has one test at the most.
        let bound = Bound { least, rounding: least.mul_f64(0.4), refused: 7 };
        bound.judge(&what, &record);
        assert!(record.refused_knowingly() <= 6, "{what}: {}", record.figures());
    }
}

/// Two teach it, and a window whose end was told in whole seconds may need another one.
fn refused_thrice_at_most(what: &str, record: &Record) {
    let figures = record.figures();
    assert!(record.refused_most() <= 3, "{what}: {figures}\n{}", record.around_refusals());
}

/// The limit is of a field of the body: three channels, each with its own.
#[tokio::test]
async fn slack_is_obeyed_by_channel() {
    // Waits are told in whole seconds, so the window is at first taken for up to a second longer.
    let bound =
        Bound { least: Duration::from_secs(3), rounding: Duration::from_secs(4), refused: 9 };
    let limits = json!({"chat.postMessage": [3, 1.0]});
    let scene = Scene { api: "slack", what: "slack.post", calls: 30, limits, bound };
    scene.play_and(refused_thrice_at_most).await;
}

#[tokio::test]
async fn slack_is_obeyed_by_method() {
    let bound =
        Bound { least: Duration::from_secs(6), rounding: Duration::from_secs(3), refused: 3 };
    let limits = json!({"reactions.add": [5, 3.0]});
    let scene = Scene { api: "slack", what: "slack.react", calls: 15, limits, bound };
    scene.play_and(refused_thrice_at_most).await;
}
