//! An axum service with a limit per user and one for everybody, in memory.
//!
//! Serves on loopback, then sends requests as two users: alice may send five at once and is told to
//! wait on the sixth, bob is not bothered by that, and everybody together gets eight.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

mod client;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tollway_core::{Policy, StoreLimiter};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_tower::keys::{ClientAddress, Everyone, Header};
use tollway_tower::{Limit, RateLimitLayer};

use client::{Error, send, serve};

#[tokio::main]
async fn main() -> Result<(), Error> {
    run().await
}

pub(crate) async fn run() -> Result<(), Error> {
    let policies = [Policy::parse("user", "5/1m")?, Policy::parse("everybody", "8/1m")?];
    let store = Arc::new(MemoryStore::new(Capacity::keys(10_000)));
    let limiter = StoreLimiter::new(policies, store, Arc::new(SystemClock::new()));

    // Who sends no API key is limited by address.
    let user = Header::new("x-api-key")?.or(ClientAddress::peer());
    let layer = RateLimitLayer::builder(limiter)
        .limit(Limit::new("user", user))
        .limit(Limit::new("everybody", Everyone))
        .exempt_paths(["/healthz"])
        .build()?;

    let router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
    let address = serve(router).await?;

    let mut allowed = Vec::new();
    for user in ["alice", "bob"] {
        let request = format!("GET / HTTP/1.1\r\nx-api-key: {user}");
        let mut passed = 0;
        for _ in 0..6 {
            let answer = send(address, &request).await?;
            println!("{user}: {} ratelimit: {}", answer.status, answer.field("ratelimit"));
            if answer.status == 429 {
                println!("{user}: retry after {} s", answer.field("retry-after"));
            }
            passed += u32::from(answer.status == 200);
        }
        allowed.push(passed);
    }
    assert_eq!(allowed, [5, 3], "five of alice, and three more until everybody's eight are spent");
    Ok(())
}
