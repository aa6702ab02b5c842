use futures_util::future::join_all;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tollway_sim::fake_api::loopback::Loopback;
use tollway_sim::fake_api::{Ending, Fault, Spec};
use tollway_upstream::budget::{Ledger, LocalLedger, Reason, Refusal, Settings};
use tollway_upstream::client::reqwest::BudgetMiddleware;
use tollway_upstream::client::tower::{BudgetLayer, Error};
use tollway_upstream::client::{ClaimOptions, ClientSettings};
use tollway_upstream::profile::Profile;
use tower::{Layer as _, ServiceExt as _};

fn settings() -> ClientSettings {
    let profile = Profile::builtin("discord").unwrap();
    let ledger = LocalLedger::new(profile.clone(), Settings::default());
    ClientSettings::new(Arc::new(ledger), profile)
}

fn reqwest_client(settings: ClientSettings) -> ClientWithMiddleware {
    ClientBuilder::new(reqwest::Client::new()).with(BudgetMiddleware::new(settings)).build()
}

/// Discord as the simulator plays it, with its periods divided by three.
fn discord() -> Spec {
    Spec::named("discord").unwrap().faster(3)
}

async fn start(spec: Spec) -> (Loopback, String) {
    let fake = Loopback::start(spec, "127.0.0.1:0".parse().unwrap()).await.unwrap();
    let url = format!("http://{}/api/v10/channels/1/messages", fake.address());
    (fake, url)
}

#[tokio::test]
async fn twelve_requests_at_five_per_window_bring_no_429_through_the_middleware() {
    let (fake, url) = start(discord()).await;
    let client = reqwest_client(settings());
    let all = (0..12).map(|_| Box::pin(client.post(&url).body("{}").send()));
    for answer in join_all(all).await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    assert_eq!((fake.counters().requests, fake.counters().limited_all()), (12, 0));
}

#[tokio::test]
async fn twelve_requests_at_five_per_window_bring_no_429_through_the_layer() {
    let (fake, url) = start(discord()).await;
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let service = BudgetLayer::new(settings()).replaying().layer(client);
    let ask = || {
        let request = http::Request::post(&url).body(Full::new(Bytes::from_static(b"{}"))).unwrap();
        Box::pin(service.clone().oneshot(request))
    };
    for answer in join_all((0..12).map(|_| ask())).await {
        assert_eq!(answer.unwrap().status(), 200);
    }
    assert_eq!((fake.counters().requests, fake.counters().limited_all()), (12, 0));
}

#[tokio::test]
async fn a_refusal_is_retried_with_the_same_body_and_only_so_often() {
    let (fake, url) = start(discord()).await;
    fake.inject(Fault::SetLimit { bucket: "messages".to_owned(), limit: 1 });
    let client = reqwest_client(settings().retries(1));
    assert_eq!(client.post(&url).body("{}").send().await.unwrap().status(), 200);
    // Refused, and refused again: the second refusal is the answer.
    fake.inject(Fault::Html { count: 2 });
    let answer = client.post(&url).body("{}").send().await.unwrap();
    assert_eq!(answer.status(), 429);
    assert!(answer.text().await.unwrap().contains("Error 1015"), "the upstream's own words");
    assert_eq!(fake.counters().html, 2);
}

#[tokio::test]
async fn a_stream_is_sent_once_only() {
    let (fake, url) = start(discord()).await;
    fake.inject(Fault::Html { count: 1 });
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let service = BudgetLayer::new(settings()).layer(client);
    let request = http::Request::post(&url).body(Full::new(Bytes::from_static(b"{}"))).unwrap();
    assert_eq!(service.oneshot(request).await.unwrap().status(), 429);
    assert_eq!(fake.counters().requests, 1);
}

#[tokio::test]
async fn a_deadline_is_kept_before_and_between_tries() {
    let (fake, url) = start(Spec::named("discord").unwrap()).await;
    let client = reqwest_client(settings());
    for _ in 0..5 {
        assert_eq!(client.post(&url).body("{}").send().await.unwrap().status(), 200);
    }
    let options = ClaimOptions::default().within(Duration::from_millis(100));
    let refused = client.post(&url).body("{}").with_extension(options).send().await.unwrap_err();
    let reqwest_middleware::Error::Middleware(error) = refused else { panic!("{refused}") };
    assert_eq!(error.downcast_ref::<Refusal>().unwrap().reason, Reason::Patience);
    assert_eq!(fake.counters().requests, 5);

    // The upstream says to wait longer than the caller can: its refusal is the answer, at once.
    let (fake, url) = start(Spec::named("discord").unwrap()).await;
    let client = reqwest_client(settings());
    fake.inject(Fault::Html { count: 1 });
    let options = ClaimOptions::default().within(Duration::from_millis(300));
    let answer = client.post(&url).body("{}").with_extension(options).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), fake.counters().requests), (429, 1));
}

#[tokio::test]
async fn lost_answers_and_refused_connections_leave_a_budget_that_goes_on() {
    let (fake, url) = start(discord()).await;
    let settings = settings();
    let client = reqwest_client(settings);
    assert_eq!(client.post(&url).body("{}").send().await.unwrap().status(), 200);
    fake.inject(Fault::End { count: 2, ending: Ending::Close });
    for _ in 0..2 {
        assert!(client.post(&url).body("{}").send().await.is_err());
    }
    for _ in 0..4 {
        assert_eq!(client.post(&url).body("{}").send().await.unwrap().status(), 200);
    }
    assert_eq!(fake.counters().limited_all(), 0);
    let closed = client.post("http://127.0.0.1:1/api/v10/channels/2/messages").send().await;
    assert!(closed.is_err());
}

#[tokio::test]
async fn the_layer_says_why_a_request_was_not_sent() {
    let (_fake, url) = start(Spec::named("discord").unwrap()).await;
    let profile = Profile::builtin("discord").unwrap();
    let settings = Settings { queue_max: 1, ..Settings::default() };
    let ledger: Arc<dyn Ledger> = Arc::new(LocalLedger::new(profile.clone(), settings));
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let settings = ClientSettings::new(ledger, profile).patience(Duration::from_secs(20));
    let service = BudgetLayer::new(settings).layer(client);
    let ask = || {
        let request = http::Request::post(&url).body(Full::default()).unwrap();
        Box::pin(service.clone().oneshot(request))
    };
    let answers = join_all((0..3).map(|_| ask())).await;
    let refused = answers.iter().filter(|answer| matches!(answer, Err(Error::Refused(_)))).count();
    assert_eq!(refused, 1, "one probe, one that waits for it, and no room for another");
}
