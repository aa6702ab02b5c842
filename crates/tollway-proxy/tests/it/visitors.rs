use std::net::SocketAddr;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollway_core::fields::Hosts;
use tollway_proxy::{Admin, Settings};
use tollway_upstream::profile::Profile;

use crate::rig::{Outgoing, PATIENCE, Rig, discord, proxy_to, upstream_of};

const MESSAGES: &str = "/api/v10/channels/1/messages";

/// Fields as a browser sends them for the page of somebody else, and one rebound name.
const PAGES: [&[(&str, &str)]; 5] = [
    &[("sec-fetch-site", "cross-site"), ("origin", "http://evil.example")],
    &[("sec-fetch-site", "same-site")],
    &[("origin", "http://evil.example")],
    &[("origin", "null"), ("authorization", "")],
    &[("host", "evil.example")],
];

#[tokio::test]
async fn a_web_page_of_others_sends_nothing_and_spends_nothing() {
    let rig = Rig::guarded(discord(""), Settings::default(), "5/10m").await;
    for fields in PAGES.iter().cycle().take(20) {
        for path in [MESSAGES, "/metrics", "/admin/buckets"] {
            let refused = rig.send(rig.request_with("POST", path, fields, "{}")).await;
            assert_eq!((refused.status, refused.field("x-tollway-answer")), (403, "cross-site"));
        }
        let probe = rig.send(rig.request_with("GET", "/healthz", fields, "")).await;
        assert_eq!(probe.status, 200, "{fields:?}");
    }
    assert_eq!(rig.fake.counters().requests, 0);
    assert_eq!(rig.metric("tollway_proxy_not_forwarded_total{cause=\"cross-site\"}").await, 60.0);
    assert_eq!(rig.post(MESSAGES).await.status, 200, "the budget of invalid requests is whole");
}

#[tokio::test]
async fn a_name_that_was_added_is_answered_to_and_so_is_our_own_page() {
    let mut hosts = Hosts::default();
    hosts.add("bots.internal").unwrap();
    let rig = Rig::start(discord(""), Settings { hosts, ..Settings::default() }).await;
    for fields in [
        &[("host", "bots.internal:8090")][..],
        &[("sec-fetch-site", "same-origin")],
        &[("sec-fetch-site", "none")],
    ] {
        let answer = rig.send(rig.request_with("POST", MESSAGES, fields, "{}")).await;
        assert_eq!(answer.status, 200, "{fields:?}");
    }
}

#[tokio::test]
async fn the_admin_token_is_never_sent_to_the_upstream() {
    for prefix in [None, Some("/-/tollway".to_owned())] {
        let admin = Admin { token: Some("s3cret".to_owned()), prefix };
        let rig = Rig::start(discord(""), Settings { admin, ..Settings::default() }).await;
        for path in
            ["//admin/buckets", "/admni/buckets", "/-/tollwayadmin", "/%61dmin/buckets", "/"]
        {
            for fields in [
                [("authorization", "Bearer s3cret")],
                [("authorization", "bearer   s3cret")],
                [("authorization", "s3cret")],
                [("x-api-key", "s3cret")],
                [("authorization", "Token token=s3cret")],
                [("cookie", "a=b; token=s3cret")],
                // ops:s3cret, s3cret: and :s3cret, with and without padding, in both alphabets.
                [("authorization", "Basic b3BzOnMzY3JldA==")],
                [("authorization", "basic b3BzOnMzY3JldA")],
                [("authorization", "Basic czNjcmV0Og==")],
                [("proxy-authorization", "Basic OnMzY3JldA==")],
                [("authorization", "Basic _3M6czNjcmV0")],
                [("cookie", "a=b; token=s3%63ret")],
            ] {
                let answer = rig.send(rig.request_with("GET", path, &fields, "")).await;
                let told = (answer.status, answer.field("x-tollway-answer"));
                assert_eq!(told, (404, "no-page"), "{path} {fields:?}");
            }
        }
        for target in ["/x?token=s3cret", "/x?token=%733cret", "/%733cret"] {
            let answer = rig.send(rig.request_with("GET", target, &[], "")).await;
            assert_eq!(answer.field("x-tollway-answer"), "no-page", "{target}");
        }
        assert_eq!(rig.fake.counters().requests, 0);
        assert_eq!(rig.post(MESSAGES).await.status, 200);
    }
}

/// Shopify's whole API is below `/admin/`.
#[tokio::test]
async fn no_path_of_the_upstream_is_the_proxys() {
    let admin = Admin { token: None, prefix: Some("/-/tollway".to_owned()) };
    let settings = Settings { admin, ..Settings::default() };
    let pages = ["/admin/buckets", "/metrics", "/healthz", "/readyz"];
    for (settings, prefix) in [(Settings::default(), ""), (settings, "/-/tollway")] {
        let rig = Rig::start(discord(""), settings).await;
        let client = reqwest::Client::new();
        let is_theirs = async |path: &str| {
            let asked = client.get(format!("http://{}{path}", rig.address)).send();
            asked.await.unwrap().headers().contains_key("x-tollway-waited")
        };
        for path in pages {
            assert!(is_theirs(path).await, "{path} is answered by the upstream");
            let own = format!("/-/tollway{path}");
            assert_eq!(is_theirs(&own).await, prefix.is_empty(), "{own}");
        }
        assert!(is_theirs("/-/tollway").await, "a prefix is no page");
    }
}

#[tokio::test]
async fn a_connection_that_does_not_say_its_version_is_closed() {
    let settings =
        Settings { slow_client_after: Duration::from_millis(200), ..Settings::default() };
    let rig = Rig::start(discord(""), settings).await;
    for first in ["", "P", "PR", "PRI * HTTP/", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
        let mut stream = TcpStream::connect(rig.address).await.unwrap();
        stream.write_all(first.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{first:?} holds its connection");
    }
}

#[tokio::test]
async fn fields_that_the_upstream_ignores_make_no_budget_of_their_own() {
    let rig = Rig::start(discord(""), Settings::default()).await;
    for fields in [
        &[("authorization", "Bot me")][..],
        &[("authorization", "bot   me")],
        &[("authorization", "Bot me"), ("x-api-key", "1")],
        &[("authorization", "Bot me"), ("private-token", "2"), ("connection", "private-token")],
    ] {
        let answer = rig.send(rig.request_with("POST", MESSAGES, fields, "{}")).await;
        assert_eq!(answer.status, 200, "{fields:?}");
    }
    let twice = [("authorization", "Bot me"), ("authorization", "Bot you")];
    assert_eq!(rig.send(rig.request_with("POST", MESSAGES, &twice, "{}")).await.status, 400);
    let listed = rig.get("/admin/buckets").await.json();
    let credentials: std::collections::HashSet<_> =
        listed["buckets"].as_array().unwrap().iter().map(|it| it["credential"].clone()).collect();
    assert_eq!(credentials.len(), 1, "{listed}");
}

/// Random fields beside, or in place of, the one that is the credential.
#[tokio::test]
async fn the_profile_names_the_field_that_is_the_credential() {
    let profile = Profile::builtin("discord").unwrap();
    let rig = Rig::start(discord(""), Settings::for_profile(&profile)).await;
    for number in 0..6 {
        let extra = format!("{number}");
        let spaces = " ".repeat(number + 1);
        let (me, key) = (format!("bOT{spaces}me"), [("x-api-key", &*extra), ("api-key", &*extra)]);
        let fields = [("authorization", &*me), key[0], key[1]];
        assert_eq!(rig.send(rig.request_with("POST", MESSAGES, &fields, "{}")).await.status, 200);
        let url = format!("http://{}{MESSAGES}", rig.address);
        let keyed = reqwest::Client::new().post(url).header("x-api-key", extra).body("{}");
        keyed.send().await.unwrap();
    }
    let listed = rig.get("/admin/buckets").await.json();
    let credentials: std::collections::HashSet<_> =
        listed["buckets"].as_array().unwrap().iter().map(|it| it["credential"].clone()).collect();
    assert_eq!(credentials.len(), 2, "one, and nobody's: {listed}");
}

/// An upstream that knows every webhook and no thread.
async fn webhooks() -> SocketAddr {
    let answer = |request: Request<Incoming>| async move {
        let is_known = request.uri().query().is_none_or(|query| !query.contains("thread"));
        let mut response = Response::new(Outgoing::default());
        *response.status_mut() = if is_known { 200 } else { 404 }.try_into().unwrap();
        response
    };
    upstream_of(answer).await
}

#[tokio::test]
async fn what_a_query_asks_for_may_be_missing_while_the_webhook_is_not() {
    let upstream = format!("http://{}", webhooks().await);
    let (_proxy, proxy) = proxy_to(&upstream, Settings::default(), "9/1m", None).await;
    let client = reqwest::Client::new();
    let post = async |query: &str| {
        let url = format!("http://{proxy}/api/v10/webhooks/42/t{query}");
        let answer = client.post(url).send().await.unwrap();
        (answer.status().as_u16(), answer.headers().contains_key("x-tollway-answer"))
    };
    assert_eq!(post("?thread_id=bad").await, (404, false));
    assert_eq!(post("?thread_id=bad").await, (404, true), "it is not asked for again");
    assert_eq!(post("?wait=true").await, (200, false));
}
