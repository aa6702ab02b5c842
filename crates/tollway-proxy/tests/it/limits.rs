use std::collections::HashMap;
use std::time::Duration;

use tollway_proxy::{Settings, Versions};
use tollway_sim::fake_api::{Arrival, Ending, Fault, Spec};

use crate::rig::{Rig, discord};

/// Twenty channels with five requests per 200 ms each, and answers that travel for 20 ms.
const TWENTY: &str = r#"
    latency = "20ms"
    fields = [
        ["X-RateLimit-Limit", "limit"],
        ["X-RateLimit-Remaining", "remaining"],
        ["X-RateLimit-Reset-After", "reset-after-decimal"],
        ["X-RateLimit-Bucket", "bucket"],
    ]
    denied-fields = [["Retry-After", "retry-seconds"], ["X-RateLimit-Scope", "scope"]]
    denied-body = '{"retry_after":{retry},"global":false}'
    [buckets]
    messages = { limit = 5, per = "200ms", window = "fixed" }
    [[routes]]
    method = "POST"
    path = "/channels/{+channel}/messages"
    bucket = "messages"
"#;

fn by_bucket(arrivals: &[Arrival]) -> HashMap<&str, Vec<&Arrival>> {
    let mut buckets: HashMap<&str, Vec<&Arrival>> = HashMap::new();
    for arrival in arrivals {
        buckets.entry(&arrival.bucket).or_default().push(arrival);
    }
    buckets
}

#[tokio::test]
async fn a_burst_of_500_over_20_buckets_brings_no_429_one_probe_each_and_keeps_order() {
    let settings = Settings { versions: Versions::Http2, ..Settings::default() };
    let rig = Rig::start(Spec::from_toml(TWENTY).unwrap(), settings).await.over_http2();
    let mut requests = Vec::new();
    for number in 0..500 {
        let (channel, place) = (number % 20, number / 20);
        let path = format!("/api/v10/channels/{channel}/messages?tag={place}");
        requests.push(rig.request_with("POST", &path, &[], "{}"));
    }
    let answers = futures_of(&rig, requests).await;
    assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
    let counters = rig.fake.counters();
    assert_eq!((counters.requests, counters.limited_all()), (500, 0));
    let buckets = by_bucket(&counters.arrivals);
    assert_eq!(buckets.len(), 20);
    for (bucket, arrivals) in buckets {
        let tags: Vec<u32> =
            arrivals.iter().map(|arrival| arrival.tag.as_ref().unwrap().parse().unwrap()).collect();
        assert!(tags.is_sorted(), "{bucket}: {tags:?}");
        // One probe: the second leaves after the head of the first answer, 20 ms later.
        assert!(arrivals[1].at_us - arrivals[0].at_us >= 20_000, "{bucket}");
    }
    // More than one at a time once the limit is known.
    assert!(counters.in_flight_max > 20, "{}", counters.in_flight_max);
}

async fn futures_of(rig: &Rig, requests: Vec<http::Request<crate::rig::Outgoing>>) -> Vec<u16> {
    let mut all = Vec::new();
    for request in requests {
        all.push(Box::pin(rig.send(request)));
    }
    let mut statuses = Vec::new();
    for answer in futures_util::future::join_all(all).await {
        statuses.push(answer.status);
    }
    statuses
}

#[tokio::test]
async fn a_deadline_that_cannot_be_met_is_refused_at_once_with_the_wait() {
    let rig = Rig::start(Spec::named("discord").unwrap(), Settings::default()).await;
    for _ in 0..5 {
        assert_eq!(rig.post("/api/v10/channels/1/messages").await.status, 200);
    }
    let fields = [("x-tollway-deadline", "0.5")];
    let request = rig.request_with("POST", "/api/v10/channels/1/messages", &fields, "{}");
    let refused = rig.send(request).await;
    assert_eq!((refused.status, refused.field("x-tollway-answer")), (429, "deadline"));
    let wait = refused.json()["retry_after"].as_f64().unwrap();
    assert!(wait > 0.5 && wait < 5.1, "{wait}");
    let told: u64 = refused.field("retry-after").parse().unwrap();
    assert_eq!(told, wait.ceil() as u64);
    assert_eq!(rig.fake.counters().requests, 5, "it was not sent");
    let nonsense = rig.request_with("GET", "/", &[("x-tollway-deadline", "soon")], "");
    assert_eq!(rig.send(nonsense).await.status, 400);
}

#[tokio::test]
async fn other_buckets_and_credentials_do_not_wait_for_a_full_one() {
    let rig = Rig::start(Spec::named("discord").unwrap(), Settings::default()).await;
    for _ in 0..5 {
        rig.post("/api/v10/channels/1/messages").await;
    }
    let fields = [("x-tollway-deadline", "0")];
    let other = rig.request_with("POST", "/api/v10/channels/2/messages", &fields, "{}");
    assert_eq!(rig.send(other).await.status, 200);
    let fields = [("x-tollway-deadline", "0"), ("authorization", "Bot two")];
    let other = rig.request_with("POST", "/api/v10/channels/1/messages", &fields, "{}");
    assert_eq!(rig.send(other).await.status, 200);
}

#[tokio::test]
async fn urgent_requests_go_first_and_clients_take_turns() {
    let settings = Settings { versions: Versions::Http2, ..Settings::default() };
    let rig = Rig::start(Spec::from_toml(TWENTY).unwrap(), settings).await.over_http2();
    let ask = |tag: &str, fields: &[(&str, &str)]| {
        let path = format!("/api/v10/channels/1/messages?tag={tag}");
        rig.request_with("POST", &path, fields, "{}")
    };
    // One probe, then a crowd of `a` that came first, some of `b`, and one that is urgent.
    let mut requests = vec![ask("probe", &[])];
    requests.extend((0..9).map(|_| ask("a", &[("x-tollway-client", "a")])));
    requests.extend((0..3).map(|_| ask("b", &[("x-tollway-client", "b")])));
    requests.push(ask("low", &[("x-tollway-client", "c"), ("x-tollway-priority", "low")]));
    requests.push(ask("high", &[("x-tollway-client", "c"), ("x-tollway-priority", "high")]));
    assert!(futures_of(&rig, requests).await.iter().all(|status| *status == 200));
    let arrivals = rig.fake.counters().arrivals;
    let tags: Vec<&str> = arrivals.iter().map(|it| it.tag.as_deref().unwrap()).collect();
    let place = |tag| tags.iter().position(|found| *found == tag).unwrap();
    assert_eq!(place("probe"), 0);
    assert!(place("high") <= 1, "{tags:?}");
    let last_b = tags.iter().rposition(|tag| *tag == "b").unwrap();
    assert!(last_b <= 8, "b waits for its turns, not for all of a: {tags:?}");
    assert_eq!(rig.fake.counters().limited_all(), 0);
}

#[tokio::test]
async fn a_refused_request_is_sent_again_only_with_a_body_that_was_kept() {
    // Another user of the credential spends the bucket: the proxy believes that there is room.
    let rig = Rig::start(discord(""), Settings::default()).await;
    let path = "/api/v10/channels/1/messages";
    assert_eq!(rig.post(path).await.status, 200);
    for _ in 0..4 {
        behind_the_back(&rig, path).await;
    }
    let answer = rig.post(path).await;
    assert_eq!(answer.status, 200, "waited and sent again");
    let counters = rig.fake.counters();
    assert_eq!((counters.limited_bucket, counters.requests), (1, 7));
    assert_eq!(rig.metric("tollway_proxy_retries_total").await, 1.0);

    let settings = Settings { replay_bytes_max: 8, ..Settings::default() };
    let rig = Rig::start(discord(""), settings).await;
    assert_eq!(rig.post(path).await.status, 200);
    for _ in 0..4 {
        behind_the_back(&rig, path).await;
    }
    let long = rig.request_with("POST", path, &[], "{\"content\":\"longer than eight\"}");
    let answer = rig.send(long).await;
    assert_eq!((answer.status, answer.field("x-ratelimit-scope")), (429, "user"));
}

/// Spends one of a bucket without the proxy.
async fn behind_the_back(rig: &Rig, path: &str) {
    let uri = format!("http://{}{path}", rig.fake.address());
    let request = http::Request::post(uri).header("authorization", "Bot one");
    let request = request.body(crate::rig::Outgoing::default()).unwrap();
    assert_eq!(rig.send(request).await.status, 200);
}

#[tokio::test]
async fn who_gives_up_in_line_leaves_it() {
    let rig = Rig::start(discord("latency = \"1ms\""), Settings::default()).await;
    let path = "/api/v10/channels/1/messages";
    for _ in 0..5 {
        assert_eq!(rig.post(path).await.status, 200);
    }
    let waiting = rig.send(rig.request_with("POST", path, &[], "{}"));
    let gone = tokio::time::timeout(Duration::from_millis(20), waiting).await;
    assert!(gone.is_err());
    rig.until_metric("tollway_proxy_requests", 0.0).await;
    assert_eq!(rig.post(path).await.status, 200);
    assert_eq!(rig.fake.counters().requests, 6);
}

/// Whoever asks and leaves, again and again, has as much at work at the upstream as who stays.
#[tokio::test]
async fn what_goes_on_without_its_client_keeps_its_place() {
    let rig = Rig::start(discord(""), Settings::default()).await;
    rig.fake.inject(Fault::End { count: 1, ending: Ending::Stall });
    let asked = rig.try_send(rig.request("GET", "/api/v10/guilds/1"));
    let arrived = async {
        while rig.fake.counters().arrivals.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        answer = asked => panic!("the upstream does not answer: {answer:?}"),
        () = arrived => {}
    }
    rig.until_metric("tollway_proxy_not_forwarded_total{cause=\"client-gone\"}", 1.0).await;
    assert_eq!(rig.metric("tollway_proxy_requests").await, 1.0);
}

#[tokio::test]
async fn more_than_the_room_holds_is_answered_503_and_the_rest_is_served() {
    let settings = Settings { requests_max: 2, ..Settings::default() };
    let rig = Rig::start(discord("latency = \"50ms\""), settings).await.over_http2();
    let requests: Vec<_> =
        (0..5).map(|channel| rig.request("GET", &format!("/guilds/{channel}"))).collect();
    let statuses = futures_of(&rig, requests).await;
    let served = statuses.iter().filter(|status| **status == 200).count();
    let full = statuses.iter().filter(|status| **status == 503).count();
    assert_eq!((served, full), (2, 3), "{statuses:?}");
}
