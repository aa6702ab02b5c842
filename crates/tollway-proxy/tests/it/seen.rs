use tollway_proxy::{Admin, Settings};

use crate::rig::{Rig, discord};

const MESSAGES: &str = "/api/v10/channels/1/messages";
const ROUTE: &str = "POST /channels/:major/messages";

#[tokio::test]
async fn buckets_say_by_which_route_they_are_known_and_why_their_requests_wait() {
    let rig = Rig::start(discord("latency = \"1ms\""), Settings::default()).await;
    for _ in 0..5 {
        assert_eq!(rig.post(MESSAGES).await.status, 200);
    }
    let waits = rig.send(rig.request_with("POST", MESSAGES, &[], "{}"));
    let looks = async {
        loop {
            let listed = rig.get("/admin/buckets").await.json();
            let bucket = &listed["buckets"][0];
            if bucket["queued"] == 1 {
                break bucket.clone();
            }
        }
    };
    let (answer, bucket) = tokio::join!(waits, looks);
    assert_eq!(answer.status, 200);
    assert_eq!(bucket["routes"][0], ROUTE, "{bucket}");
    let why = &bucket["why"][0];
    assert_eq!((&why["cause"], &why["what"]), (&"spent".into(), &"requests".into()), "{bucket}");
    assert!(why["for"].as_f64().is_some_and(|left| left > 0.0), "{bucket}");
}

#[tokio::test]
async fn the_status_tells_upstream_profile_and_the_last_changes() {
    let rig = Rig::start(discord(""), Settings::default()).await;
    assert_eq!(rig.post(MESSAGES).await.status, 200);
    let status = rig.get("/admin/status").await.json();
    assert_eq!((&status["profile"], &status["store"]), (&"discord".into(), &().into()));
    assert_eq!(status["upstream"]["url"], format!("http://{}", rig.fake.address()));
    assert_eq!(status["upstream"]["up"], true);
    let learned = &status["changes"][0];
    assert_eq!((&learned["what"], &learned["limit"]), (&"bucket learned".into(), &5.into()));
    assert_eq!(learned["route"], ROUTE, "{status}");
    assert_eq!(learned["credential"].as_str().unwrap().len(), 8);
}

#[tokio::test]
async fn metrics_count_by_route_and_by_credential_and_what_is_made_up_under_other() {
    let rig = Rig::start(discord(""), Settings::default()).await;
    for _ in 0..2 {
        assert_eq!(rig.post(MESSAGES).await.status, 200);
    }
    // The fake upstream answers 404 to an id that starts so.
    assert_eq!(rig.post("/api/v10/made-up/40499").await.status, 404);
    let text = String::from_utf8(rig.get("/metrics").await.body.to_vec()).unwrap();
    for line in [
        format!("tollway_proxy_route_requests_total{{route=\"{ROUTE}\"}} 2"),
        format!("tollway_proxy_route_remaining{{route=\"{ROUTE}\"}} 3"),
        format!("tollway_proxy_route_waiting{{route=\"{ROUTE}\"}} 0"),
        "tollway_proxy_route_requests_total{route=\"other\"} 1".to_owned(),
        "tollway_proxy_upstream_up 1".to_owned(),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    assert!(!text.contains("made-up"), "{text}");
    let credential = "tollway_proxy_credential_requests_total{credential=\"";
    let labels: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(credential)).collect();
    assert_eq!(labels.len(), 2, "one, and others: {text}");
}

#[tokio::test]
async fn the_page_runs_nothing_from_elsewhere_and_its_figures_need_the_token() {
    let admin = Admin { token: Some("secret".to_owned()), ..Admin::default() };
    let rig = Rig::start(discord(""), Settings { admin, ..Settings::default() }).await;
    let files = [
        ("/admin/", "text/html"),
        ("/admin/page.js", "text/javascript"),
        ("/admin/page.css", "text/css"),
        ("/admin/palette.css", "text/css"),
    ];
    for (path, kind) in files {
        let page = rig.get(path).await;
        assert_eq!(page.status, 200, "{path}");
        assert!(page.field("content-type").starts_with(kind), "{path}");
        let policy = page.field("content-security-policy");
        assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self'"));
        assert!(!policy.contains("unsafe"), "{policy}");
    }
    for path in ["/admin/status", "/admin/buckets"] {
        assert_eq!(rig.get(path).await.status, 403, "{path}");
        let token = [("authorization", "Bearer secret")];
        assert_eq!(rig.send(rig.request_with("GET", path, &token, "")).await.status, 200);
    }
}
