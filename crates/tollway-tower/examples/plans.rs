//! Plans of accounts: each request is limited by the plan of whoever sends it, strangers included.
//!
//! Serves on loopback, then sends requests as an account with a plan, as one whose plan nobody has
//! configured, and without a key: the last two have the free plan.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

mod client;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;
use tollway_core::{Policy, StoreLimiter};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_tower::keys::{ClientAddress, Header};
use tollway_tower::{Limit, RateLimitLayer};

use client::{Error, send, serve};

#[derive(Clone)]
struct Account {
    plan: String,
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    run().await
}

/// What looks accounts up, in a database for example. It stands outside of the limit.
async fn look_up(mut request: Request, next: Next) -> Response {
    let plan = match request.headers().get("x-api-key").map(|key| key.as_bytes()) {
        Some(b"ada") => Some("pro"),
        Some(b"bob") => Some("platinum"),
        _ => None,
    };
    if let Some(plan) = plan {
        request.extensions_mut().insert(Account { plan: plan.to_owned() });
    }
    next.run(request).await
}

pub(crate) async fn run() -> Result<(), Error> {
    let policies = [Policy::parse("free", "2/1m")?, Policy::parse("pro", "5/1m")?];
    let store = Arc::new(MemoryStore::new(Capacity::keys(10_000)));
    let limiter = StoreLimiter::new(policies, store, Arc::new(SystemClock::new()));

    let by_plan = Limit::choose(
        "free",
        |head| head.extensions.get::<Account>().map(|account| account.plan.clone()),
        Header::new("x-api-key")?.or(ClientAddress::peer()),
    );
    let layer = RateLimitLayer::builder(limiter).limit(by_plan).build()?;
    let router = Router::new().route("/", get(|| async { "hello" }));
    let address = serve(router.layer(layer).layer(from_fn(look_up))).await?;

    let mut allowed = Vec::new();
    for who in ["x-api-key: ada", "x-api-key: bob", "accept: */*"] {
        let mut passed = 0;
        for _ in 0..6 {
            let answer = send(address, &format!("GET / HTTP/1.1\r\n{who}")).await?;
            println!("{who}: {} ratelimit: {}", answer.status, answer.field("ratelimit"));
            passed += u32::from(answer.status == 200);
        }
        allowed.push(passed);
    }
    assert_eq!(allowed, [5, 2, 2], "pro, a plan that nobody has configured, and no key");
    Ok(())
}
