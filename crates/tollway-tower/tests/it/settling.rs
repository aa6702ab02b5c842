use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tollway_core::{OnExpiry, Policy, ReservationTerms};
use tollway_tower::keys::{ClientAddress, Everyone};
use tollway_tower::{Limit, Meter, RateLimitLayer};
use tower::{Layer, Service};

use crate::world::{call, clock, from, get, header, limiter, one, policy, statuses};

/// Answers with the status that the path names, after reporting the query to the meter.
async fn handler(request: Request<String>) -> Result<Response<Full<Bytes>>, Infallible> {
    let status = request.uri().path()[1..].parse().unwrap_or(200);
    if let Some(units) = request.uri().query().and_then(|units| units.parse().ok()) {
        request.extensions().get::<Meter>().expect("a meter").add(units);
    }
    let mut response = Response::new(Full::from("0123456789"));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    Ok(response)
}

/// What is left, as the next request sees it before its own charge of `cost`.
fn left(response: &Response<String>, cost: u64) -> u64 {
    let field = header(response, "ratelimit").split(";r=").nth(1).expect("a remainder");
    let digits = field.split(';').next().expect("digits");
    digits.parse::<u64>().expect("a number") + cost
}

#[tokio::test]
async fn only_failed_logins_are_charged() {
    let failed = Limit::new("api", ClientAddress::peer())
        .charge_if(|response| response.status == StatusCode::UNAUTHORIZED);
    let (builder, clock) = one("2/1h", failed);
    let service = builder.build().expect("a layer").layer(tower::service_fn(handler));
    assert_eq!(statuses(&service, 9, || get("/200")).await, [200; 9]);
    assert_eq!(statuses(&service, 4, || get("/401")).await, [401, 401, 429, 429]);
    assert_eq!(call(&service, get("/200")).await.status(), 429);
    assert_eq!(call(&service, from("192.0.2.2", "/200")).await.status(), 200);
    clock.advance(Duration::from_secs(1800));
    assert_eq!(statuses(&service, 2, || get("/200")).await, [200, 200]);
}

#[tokio::test]
async fn attempts_in_flight_cannot_exceed_the_limit() {
    let failed = Limit::new("api", Everyone).charge_if(|response| response.status == 401);
    let (builder, _clock) = one("2/1h", failed);
    let mut service = builder.build().expect("a layer").layer(tower::service_fn(handler));
    let flying: Vec<_> = (0..3).map(|_| service.call(get("/401"))).collect();
    let mut statuses = Vec::new();
    for attempt in flying {
        statuses.push(attempt.await.expect("an answer").status().as_u16());
    }
    assert_eq!(statuses, [401, 401, 429]);
}

#[tokio::test]
async fn who_hangs_up_before_the_answer_is_charged() {
    let failed = Limit::new("api", Everyone).charge_if(|response| response.status == 401);
    let (builder, _clock) = one("2/1h", failed);
    let service = builder.build().expect("a layer").layer(tower::service_fn(handler));
    for _ in 0..2 {
        drop(service.clone().call(get("/401")));
    }
    assert_eq!(call(&service, get("/200")).await.status(), 429);
}

#[tokio::test]
async fn the_real_cost_replaces_the_reserved_one() {
    let by_head = Limit::new("api", Everyone)
        .cost(|_| 10)
        .settle_by(|response| if response.status == 200 { 3 } else { 25 });
    let (builder, _clock) = one("100/1h", by_head);
    let service = builder.build().expect("a layer").layer(tower::service_fn(handler));
    assert_eq!(left(&call(&service, get("/200")).await, 10), 100);
    assert_eq!(left(&call(&service, get("/500")).await, 10), 97);
    assert_eq!(left(&call(&service, get("/200")).await, 10), 72);
}

#[tokio::test]
async fn response_bytes_are_charged_when_the_body_ends() {
    let bytes = Limit::new("api", Everyone).cost(|_| 50).settle_bytes();
    let (builder, _clock) = one("100/1h", bytes);
    let service = builder.build().expect("a layer").layer(tower::service_fn(handler));
    assert_eq!(left(&call(&service, get("/")).await, 50), 100);
    assert_eq!(left(&call(&service, get("/")).await, 50), 90);
}

#[tokio::test]
async fn a_meter_charges_what_the_handler_reports() {
    let tokens = Limit::new("api", Everyone).cost(|_| 50).settle_metered();
    let (builder, _clock) = one("1000/1h", tokens);
    let service = builder.build().expect("a layer").layer(tower::service_fn(handler));
    assert_eq!(left(&call(&service, get("/200?7")).await, 50), 1000);
    assert_eq!(left(&call(&service, get("/200?700")).await, 50), 993);
    // The third reports nothing and pays what was reserved; the fourth reports zero.
    assert_eq!(left(&call(&service, get("/200")).await, 50), 293);
    assert_eq!(left(&call(&service, get("/200?0")).await, 50), 243);
    assert_eq!(left(&call(&service, get("/200?0")).await, 50), 243);
}

#[tokio::test]
async fn a_settled_limit_and_a_plain_one_are_taken_together() {
    let clock = clock();
    let policies = [policy("requests", "2/1h"), policy("tokens", "100/1h")];
    let layer = RateLimitLayer::builder(limiter(policies, &clock))
        .limit(Limit::new("requests", Everyone))
        .limit(Limit::new("tokens", Everyone).cost(|_| 60).settle_metered())
        .build()
        .expect("a layer");
    let service = layer.layer(tower::service_fn(handler));
    assert_eq!(call(&service, get("/200?1")).await.status(), 200);
    let second = call(&service, get("/200?1")).await;
    assert_eq!(header(&second, "ratelimit"), "\"requests\";r=0;t=1800, \"tokens\";r=39;t=36");
    assert_eq!(call(&service, get("/200?1")).await.status(), 429);
}

#[tokio::test]
async fn an_expired_reservation_keeps_its_units_if_its_policy_says_so() {
    let terms = ReservationTerms { ttl: Duration::from_secs(5), on_expiry: OnExpiry::Keep };
    let kept: Policy = policy("api", "1/1h").reservations(terms);
    let clock = clock();
    let layer = RateLimitLayer::builder(limiter([kept], &clock))
        .limit(Limit::new("api", Everyone).charge_if(|response| response.status == 401))
        .build()
        .expect("a layer");
    let mut service = layer.layer(tower::service_fn(handler));
    let slow = service.call(get("/200"));
    clock.advance(Duration::from_secs(6));
    assert_eq!(call(&service, get("/200")).await.status(), 429);
    assert_eq!(slow.await.expect("an answer").status(), 200);
}
