//! A budget of LLM tokens: reserve the most a call may use, commit what it really used.
//!
//! Serves a pretend model on loopback that answers in 120 tokens whatever the prompt allows. With
//! 1000 tokens per hour and 400 reserved per call, calls go on until fewer than 400 are left, and
//! not merely until 1000 / 400 = 2 calls were made.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

mod client;

use std::sync::Arc;

use axum::routing::post;
use axum::{Extension, Router};
use tollway_core::{Policy, StoreLimiter};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_tower::keys::ClientAddress;
use tollway_tower::{Head, Limit, Meter, RateLimitLayer};

use client::{Error, send, serve};

const MAX_TOKENS: u64 = 400;

#[tokio::main]
async fn main() -> Result<(), Error> {
    run().await
}

/// What the client allows the model to use, as the request says it.
fn asked_tokens(head: &Head<'_>) -> u64 {
    let asked = head.headers.get("x-max-tokens").and_then(|value| value.to_str().ok());
    asked.and_then(|text| text.parse().ok()).unwrap_or(MAX_TOKENS).clamp(1, MAX_TOKENS)
}

/// The pretend model knows its real use only when it is done.
async fn complete(Extension(meter): Extension<Meter>) -> &'static str {
    meter.add(20);
    meter.add(100);
    "an answer of 120 tokens"
}

pub(crate) async fn run() -> Result<(), Error> {
    let policy = Policy::parse("tokens", "1000/1h")?;
    let store = Arc::new(MemoryStore::new(Capacity::keys(10_000)));
    let limiter = StoreLimiter::new([policy], store, Arc::new(SystemClock::new()));

    let budget = Limit::new("tokens", ClientAddress::peer()).cost(asked_tokens).settle_metered();
    let layer = RateLimitLayer::builder(limiter).limit(budget).build()?;
    let address = serve(Router::new().route("/complete", post(complete)).layer(layer)).await?;

    let mut calls = 0;
    loop {
        let answer = send(address, "POST /complete HTTP/1.1\r\nx-max-tokens: 400").await?;
        println!("{} while in flight: {}", answer.status, answer.field("ratelimit"));
        if answer.status == 429 {
            break;
        }
        calls += 1;
    }
    assert_eq!(calls, 6, "1000 - 5 x 120 = 400 still covers a call of 400, 280 does not");
    let small = send(address, "POST /complete HTTP/1.1\r\nx-max-tokens: 200").await?;
    assert_eq!(small.status, 200, "a smaller call still fits");
    Ok(())
}
