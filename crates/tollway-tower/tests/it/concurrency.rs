use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tollway_core::Policy;
use tollway_core::concurrency::Concurrency;
use tollway_tower::keys::{ClientAddress, Everyone};
use tollway_tower::{LayerErrorKind, Limit, RateLimitLayer};
use tower::{Layer, Service};

use crate::world::{call, clock, from, get, header, limiter, policy};

fn slots(name: &str, limit: u64) -> Policy {
    let limit = Concurrency::new(limit, Duration::from_secs(30)).expect("a limit");
    Policy::new(name, limit).expect("a policy")
}

async fn handler(_: Request<String>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("ok")))
}

#[tokio::test]
async fn a_permit_is_held_until_the_body_ends() {
    let limiter = limiter([slots("slots", 1)], &clock());
    let layer = RateLimitLayer::new(limiter, "slots", Everyone).expect("a layer");
    let mut service = layer.layer(tower::service_fn(handler));
    let first = service.call(get("/")).await.expect("an answer");
    assert_eq!(header(&first, "ratelimit-policy"), "\"slots\";q=1;qu=\"concurrent-requests\"");
    assert_eq!(call(&service, get("/")).await.status(), 429);
    first.into_body().collect().await.expect("a body");
    assert_eq!(call(&service, get("/")).await.status(), 200);
}

#[tokio::test]
async fn a_dropped_request_and_a_dropped_body_give_their_permits_back() {
    let limiter = limiter([slots("slots", 1)], &clock());
    let layer = RateLimitLayer::new(limiter, "slots", Everyone).expect("a layer");
    let mut service = layer.layer(tower::service_fn(handler));
    drop(service.call(get("/")));
    let response = service.call(get("/")).await.expect("an answer");
    assert_eq!(response.status(), 200);
    drop(response);
    assert_eq!(call(&service, get("/")).await.status(), 200);
}

#[tokio::test]
async fn permits_per_client_and_in_total_are_taken_together() {
    let limiter = limiter([slots("client", 1), slots("total", 2)], &clock());
    let layer = RateLimitLayer::builder(limiter)
        .limit(Limit::new("client", ClientAddress::peer()))
        .limit(Limit::new("total", Everyone))
        .build()
        .expect("a layer");
    let mut service = layer.layer(tower::service_fn(handler));
    let _first = service.call(from("192.0.2.1", "/")).await.expect("an answer");
    for _ in 0..3 {
        assert_eq!(call(&service, from("192.0.2.1", "/")).await.status(), 429);
    }
    let _second = service.call(from("192.0.2.2", "/")).await.expect("an answer");
    let third = call(&service, from("192.0.2.3", "/")).await;
    assert!(third.body().contains("[\"total\"]"), "{}", third.body());
}

#[tokio::test]
async fn a_lease_that_ends_frees_the_slot() {
    let clock = clock();
    let limiter = limiter([slots("slots", 1)], &clock);
    let layer = RateLimitLayer::new(limiter, "slots", Everyone).expect("a layer");
    let mut service = layer.layer(tower::service_fn(handler));
    let _stuck = service.call(get("/")).await.expect("an answer");
    let denied = call(&service, get("/")).await;
    assert_eq!(header(&denied, "retry-after"), "30");
    clock.advance(Duration::from_secs(30));
    assert_eq!(call(&service, get("/")).await.status(), 200);
}

#[test]
fn concurrency_does_not_mix_with_rates_nor_settle() {
    let build = |limits: [Limit; 2]| {
        let limiter = limiter([slots("slots", 1), policy("rate", "1/1s")], &clock());
        let builder = RateLimitLayer::builder(limiter);
        let builder = limits.into_iter().fold(builder, |builder, limit| builder.limit(limit));
        builder.build().expect_err("a mistake").kind()
    };
    let mixed = [Limit::new("slots", Everyone), Limit::new("rate", Everyone)];
    assert_eq!(build(mixed), LayerErrorKind::MixedKinds);
    let settled = Limit::new("slots", Everyone).settle_bytes();
    let kind = build([Limit::new("slots", Everyone), settled]);
    assert_eq!(kind, LayerErrorKind::SettledConcurrency);
}
