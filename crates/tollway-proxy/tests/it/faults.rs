use futures_util::future::join_all;
use std::time::Duration;

use tollway_proxy::Settings;
use tollway_sim::fake_api::{Ending, Fault, Spec};

use crate::rig::{Rig, discord, proxy_to};

const PATH: &str = "/api/v10/channels/1/messages";

#[tokio::test]
async fn an_html_429_stops_everything_once_and_nobody_else_is_refused() {
    let rig = Rig::start(discord(""), Settings::default()).await;
    assert_eq!(rig.post(PATH).await.status, 200);
    rig.fake.inject(Fault::Html { count: 1 });
    let all = (0..6)
        .map(|channel| format!("/api/v10/channels/{channel}/messages"))
        .map(|path| rig.request_with("POST", &path, &[], "{}"))
        .map(|request| Box::pin(rig.send(request)));
    for answer in join_all(all).await {
        assert_eq!(answer.status, 200);
    }
    assert_eq!(rig.fake.counters().limited_all(), 1);
}

#[tokio::test]
async fn buckets_that_are_renamed_and_fields_that_vanish_stall_nobody() {
    let faults = r#"
        faults = [
            { do = "rename-buckets", at-request = 8 },
            { do = "hide-fields", on = true, at-request = 20 },
            { do = "hide-fields", on = false, at-request = 24 },
            { do = "garble", count = 4, at-request = 30 },
        ]
    "#;
    let rig = Rig::start(discord(faults), Settings::default()).await;
    let all = (0..48)
        .map(|number| format!("/api/v10/channels/{}/messages", number % 4))
        .map(|path| rig.request_with("POST", &path, &[], "{}"))
        .map(|request| Box::pin(rig.send(request)));
    for answer in join_all(all).await {
        assert_eq!(answer.status, 200);
    }
    let counters = rig.fake.counters();
    let log: Vec<_> =
        counters.arrivals.iter().map(|it| (it.at_us, &it.bucket, it.status)).collect();
    assert!(counters.limited_all() <= 3, "one refusal for each cause at most: {log:?}");
    assert!(rig.metric("tollway_proxy_malformed_fields_total").await > 0.0);
}

#[tokio::test]
async fn a_rename_that_must_wait_for_minutes_blocks_no_other_change_of_the_channel() {
    let rig = Rig::start(Spec::named("discord").unwrap(), Settings::default()).await;
    let change = |body: &'static str, deadline: &'static str| {
        let fields = [("x-tollway-deadline", deadline)];
        rig.request_with("PATCH", "/api/v10/channels/1", &fields, body)
    };
    for _ in 0..2 {
        assert_eq!(rig.send(change(r#"{"name":"x"}"#, "5")).await.status, 200);
    }
    let refused = rig.send(change(r#"{"name":"x"}"#, "5")).await;
    assert_eq!(refused.status, 429);
    assert_eq!(rig.send(change(r#"{"nsfw":true}"#, "0")).await.status, 200);
    let again = rig.send(change(r#"{"name":"x"}"#, "5")).await;
    assert_eq!((again.status, again.field("x-tollway-answer")), (429, "deadline"));
    assert_eq!(rig.fake.counters().limited_sub, 1);
}

#[tokio::test]
async fn an_upstream_that_stalls_closes_or_lies_leaves_a_defined_error_and_a_working_budget() {
    let settings = Settings {
        head_timeout: Duration::from_millis(200),
        idle_timeout: Duration::from_millis(200),
        ..Settings::default()
    };
    let rig = Rig::start(discord(""), settings).await;
    assert_eq!(rig.get("/api/v10/guilds/1").await.status, 200);
    let mut answers = Vec::new();
    for ending in [Ending::Stall, Ending::Close, Ending::CutBody, Ending::StallBody] {
        rig.fake.inject(Fault::End { count: 1, ending });
        let answer = rig.try_send(rig.request("GET", "/api/v10/guilds/1")).await;
        answers.push(
            answer.map(|answer| (answer.status, answer.field("x-tollway-answer").to_owned())),
        );
    }
    assert_eq!(answers[0], Ok((504, "late".to_owned())));
    assert_eq!(answers[1], Ok((502, "broken".to_owned())));
    // The head was passed on already: only the end of the connection can tell.
    assert!(answers[2].is_err() && answers[3].is_err(), "{answers:?}");
    rig.fake.inject(Fault::Garble { count: 1 });
    assert_eq!(rig.get("/api/v10/guilds/1").await.status, 200);
    for _ in 0..3 {
        assert_eq!(rig.get("/api/v10/guilds/1").await.status, 200);
    }
    assert_eq!(rig.fake.counters().limited_all(), 0);
    rig.until_metric("tollway_proxy_requests", 0.0).await;
    assert_eq!(rig.metric("tollway_proxy_held_bytes").await, 0.0);
}

#[tokio::test]
async fn the_header_fields_of_a_probe_release_the_others_while_its_body_is_on_its_way() {
    let rig = Rig::start(discord(""), Settings::default()).await;
    rig.fake.inject(Fault::End { count: 1, ending: Ending::StallBody });
    let probe = rig.try_send(rig.request_with("POST", PATH, &[], "{}"));
    let others = async {
        while rig.fake.counters().arrivals.is_empty() {
            tokio::task::yield_now().await;
        }
        let others = (0..3).map(|_| Box::pin(rig.post(PATH)));
        join_all(others).await
    };
    tokio::select! {
        answer = probe => panic!("its body never ends: {answer:?}"),
        answers = others => assert!(answers.iter().all(|answer| answer.status == 200)),
    }
    assert_eq!(rig.fake.counters().limited_all(), 0);
}

#[tokio::test]
async fn without_a_connection_nothing_is_counted() {
    let (_proxy, address) =
        proxy_to("http://127.0.0.1:1", Settings::default(), "10000/10m", None).await;
    for _ in 0..3 {
        let request = reqwest::Client::new().get(format!("http://{address}/api/v10/gateway"));
        let answer = request.header("x-tollway-deadline", "0").send().await.unwrap();
        assert_eq!(answer.status(), 502);
        assert_eq!(answer.headers()["x-tollway-answer"], "no-connection");
    }
}

#[tokio::test]
async fn a_refused_credential_is_not_tried_for_a_while_and_then_once() {
    let settings = Settings { unauthorized_for: Duration::from_millis(300), ..Settings::default() };
    let rig = Rig::start(discord(""), settings).await;
    let ask = |path: &str| rig.request_with("GET", path, &[("authorization", "Bot revoked")], "");
    for _ in 0..3 {
        assert_eq!(rig.send(ask("/api/v10/users/@me")).await.status, 401);
    }
    let locked = rig.send(ask("/api/v10/users/@me")).await;
    assert_eq!((locked.status, locked.field("x-tollway-answer")), (401, "unauthorized"));
    assert_eq!(rig.get("/api/v10/users/@me").await.status, 200, "another credential");
    let deadline = std::time::Instant::now() + crate::rig::PATIENCE;
    while rig.fake.counters().unauthorized == 3 {
        assert!(std::time::Instant::now() < deadline, "never tried again");
        assert_eq!(rig.send(ask("/api/v10/users/@me")).await.status, 401);
    }
    assert_eq!(rig.fake.counters().unauthorized, 4);
    // A webhook's own token says nothing about the credential beside it.
    for _ in 0..4 {
        let fields = [("authorization", "Bot fine")];
        rig.send(rig.request_with("POST", "/api/v10/webhooks/404/gone", &fields, "{}")).await;
    }
    assert_eq!(
        rig.send(rig.request_with("GET", "/x", &[("authorization", "Bot fine")], "")).await.status,
        200
    );
}

#[tokio::test]
async fn a_webhook_that_is_gone_is_asked_for_once() {
    let rig = Rig::start(discord(""), Settings::default()).await;
    let path = "/api/v10/webhooks/404/token";
    assert_eq!(rig.post(path).await.status, 404);
    for _ in 0..3 {
        let answer = rig.post(path).await;
        assert_eq!((answer.status, answer.field("x-tollway-answer")), (404, "missing"));
    }
    assert_eq!(rig.fake.counters().missing_webhook, 1);
    assert_eq!(rig.post("/api/v10/webhooks/405/token").await.status, 204);
}

#[tokio::test]
async fn before_a_ban_requests_are_held_back_the_urgent_last() {
    let spec = discord(r#"ban = { invalid = 40, per = "10m", lasting = "1h" }"#);
    let rig = Rig::guarded(spec, Settings::default(), "40/10m").await;
    let mut statuses = Vec::new();
    for number in 0..60 {
        statuses.push(rig.post(&format!("/api/v10/channels/403{number}/messages")).await.status);
    }
    let forbidden = statuses.iter().filter(|status| **status == 403).count();
    assert_eq!(forbidden, 38, "a twentieth is kept for the urgent");
    assert_eq!(statuses.last(), Some(&503));
    let urgent = rig.request_with("GET", "/x", &[("x-tollway-priority", "high")], "");
    assert_eq!(rig.send(urgent).await.status, 200);
    let counters = rig.fake.counters();
    assert_eq!((counters.bans, counters.banned), (0, false));
}
