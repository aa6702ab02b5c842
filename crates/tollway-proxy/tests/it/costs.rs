//! What clients say that a request takes, and what its answer says that it took.

use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tollway_proxy::{Parts, Proxy, Settings, Upstream};
use tollway_upstream::profile::Profile;

use crate::rig::{Outgoing, PATIENCE, local, local_ledgers, upstream_of};

/// A model server that tells nothing but what was used, and only in bodies.
const MODEL: &str = "name = 'model'\n[[dimensions]]\nname = 'tokens'\nreach = 'credential'\n\
    stated = '1000/1h'\nusage = { body = ['usage.input', 'usage.output'] }\n";

/// Says after a long text that it took as many tokens as its path names.
async fn model(request: Request<Incoming>) -> Response<Outgoing> {
    let used = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    assert!(!request.headers().contains_key("x-tollway-cost"), "it is meant for the proxy");
    let text = "word ".repeat(10_000);
    let body = format!(r#"{{"text": "{text}", "usage": {{"input": {used}, "output": 10}}}}"#);
    let response = Response::builder().header("content-type", "application/json; charset=utf-8");
    response.body(Outgoing::new(body.into())).unwrap()
}

/// A proxy by that profile in front of it, and how it answers a request that states its cost.
struct Scene {
    _proxy: Proxy,
    url: String,
    client: reqwest::Client,
}

impl Scene {
    async fn new() -> Self {
        let upstream = upstream_of(model).await;
        let profile = Arc::new(Profile::parse(MODEL).unwrap());
        let parts = Parts {
            upstream: Upstream::parse(&format!("http://{upstream}")).unwrap(),
            ledgers: local_ledgers(Arc::clone(&profile)),
            settings: Settings::for_profile(&profile),
            profile,
            guard: None,
            models: None,
            roots_pem: None,
        };
        let mut proxy = Proxy::new(parts).unwrap();
        let listener = TcpListener::bind(local()).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        proxy.listen(listener);
        Self { _proxy: proxy, url, client: reqwest::Client::new() }
    }

    /// What the proxy says against a cost.
    async fn why(&self, cost: &str) -> String {
        let request = self.client.post(format!("{}/chat/1", self.url)).timeout(PATIENCE);
        let answer = request.header("x-tollway-cost", cost).body("{}").send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 400);
        let body = answer.bytes().await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        body["message"].as_str().unwrap().to_owned()
    }

    /// Asks without waiting; the status and, of an answer of the proxy's own, why.
    async fn ask(&self, used: u32, cost: &str) -> (u16, String) {
        let request = self.client.post(format!("{}/chat/{used}", self.url)).timeout(PATIENCE);
        let request = request.header("x-tollway-deadline", "0").header("x-tollway-cost", cost);
        let answer = request.body("{}").send().await.unwrap();
        let status = answer.status().as_u16();
        let own = answer.headers().get("x-tollway-answer").map(|it| it.to_str().unwrap().into());
        let body = answer.bytes().await.unwrap();
        assert!(status != 200 || body.len() > 50_000, "it arrives whole");
        (status, own.unwrap_or_default())
    }
}

#[tokio::test]
async fn a_cost_is_taken_by_name_and_settled_by_what_the_body_says_at_its_end() {
    let scene = Scene::new().await;
    let served = (200, String::new());
    // 900 are taken for it, 60 were used.
    assert_eq!(scene.ask(50, "tokens=900").await, served);
    assert_eq!(scene.ask(930, "tokens=940").await, served, "the rest came back");
    assert_eq!(scene.ask(0, "tokens=1").await, (429, "deadline".to_owned()), "none is left");
    assert_eq!(scene.ask(0, "tokens=1001").await, (429, "too-costly".to_owned()));
    let slip = scene.why("token=1").await;
    assert!(slip.ends_with("did you mean \"tokens\"?"), "{slip}");
    let other = scene.why("words=1").await;
    let expected = "x-tollway-cost: unknown dimension \"words\"; expected tokens";
    assert_eq!(other, expected);
    for wrong in ["words=1", "tokens", "tokens=1.5"] {
        assert_eq!(scene.ask(0, wrong).await, (400, "bad-request".to_owned()), "{wrong}");
    }
}
