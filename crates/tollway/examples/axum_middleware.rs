//! Limits the clients of an axum service by address: serves on loopback, then calls itself.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::net::SocketAddr;
use std::sync::Arc;

use axum::{Router, routing::get};
use tollway::tower::{RateLimitLayer, keys::ClientAddress};
use tollway::{Capacity, MemoryStore, Policy, StoreLimiter, SystemClock};

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = Arc::new(MemoryStore::new(Capacity::keys(100_000)));
    let policy = Policy::parse("client", "2/1m")?;
    let limiter = StoreLimiter::new([policy], store, Arc::new(SystemClock::new()));
    let layer = RateLimitLayer::new(limiter, "client", ClientAddress::peer())?;
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer.for_axum());

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    // The layer finds the peer's address in what axum calls connect info.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async { axum::serve(listener, app).await });

    for expected in [200, 200, 429] {
        let response = reqwest::get(&url).await?;
        println!("{}: {:?}", response.status(), response.headers().get("ratelimit"));
        assert_eq!(response.status(), expected);
    }
    Ok(())
}
