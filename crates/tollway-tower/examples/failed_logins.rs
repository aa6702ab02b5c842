//! Only failed logins count: three wrong passwords from one address, and the door stays shut.
//!
//! Serves on loopback, logs in with the right password ten times, then guesses until refused; after
//! that even the right password has to wait.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

mod client;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use tollway_core::{OnExpiry, Policy, ReservationTerms, StoreLimiter};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_tower::keys::ClientAddress;
use tollway_tower::{Limit, RateLimitLayer};

use client::{Error, send, serve};

#[tokio::main]
async fn main() -> Result<(), Error> {
    run().await
}

async fn login(headers: HeaderMap) -> StatusCode {
    match headers.get("authorization") {
        Some(password) if password == "sesame" => StatusCode::NO_CONTENT,
        _ => StatusCode::UNAUTHORIZED,
    }
}

pub(crate) async fn run() -> Result<(), Error> {
    // An attempt whose answer never comes counts as failed.
    let terms = ReservationTerms { ttl: Duration::from_secs(30), on_expiry: OnExpiry::Keep };
    let policy = Policy::parse("failed-logins", "3/15m")?.reservations(terms);
    let store = Arc::new(MemoryStore::new(Capacity::keys(10_000)));
    let limiter = StoreLimiter::new([policy], store, Arc::new(SystemClock::new()));

    let failed = Limit::new("failed-logins", ClientAddress::peer())
        .charge_if(|response| response.status == StatusCode::UNAUTHORIZED);
    let layer = RateLimitLayer::builder(limiter).limit(failed).build()?;
    let address = serve(Router::new().route("/login", post(login)).layer(layer)).await?;

    let mut statuses = Vec::new();
    for (password, times) in [("sesame", 10), ("guess", 4), ("sesame", 1)] {
        for _ in 0..times {
            let request = format!("POST /login HTTP/1.1\r\nauthorization: {password}");
            let answer = send(address, &request).await?;
            println!("{password}: {} {}", answer.status, answer.field("ratelimit"));
            statuses.push(answer.status);
        }
    }
    assert_eq!(statuses[..10], [204; 10], "right passwords cost nothing");
    assert_eq!(statuses[10..], [401, 401, 401, 429, 429], "three failures, then nobody gets in");
    Ok(())
}
