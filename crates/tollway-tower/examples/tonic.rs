//! A tonic service behind the layer: the third call in a minute is RESOURCE_EXHAUSTED.
//!
//! Serves gRPC health checking on loopback and calls it as a tonic client, which learns from the
//! metadata when to come back.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::sync::Arc;

use tokio::net::TcpListener;
use tollway_core::{Policy, StoreLimiter};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_tower::keys::ClientAddress;
use tollway_tower::{Limit, RateLimitLayer};
use tonic::Code;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    run().await
}

pub(crate) async fn run() -> Result<(), Error> {
    let store = Arc::new(MemoryStore::new(Capacity::keys(10_000)));
    let policies = [Policy::parse("calls", "2/1m")?];
    let limiter = StoreLimiter::new(policies, store, Arc::new(SystemClock::new()));

    // tonic tells the peer's address in an extension of its own.
    let peer = ClientAddress::peer()
        .peer_from(|extensions| Some(extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    let layer = RateLimitLayer::builder(limiter).limit(Limit::new("calls", peer)).build()?;

    let (_reporter, health) = tonic_health::server::health_reporter();
    let incoming = TcpIncoming::from(TcpListener::bind("127.0.0.1:0").await?);
    let address = incoming.local_addr()?;
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(incoming));

    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    for call in 1..=2 {
        let answer = client.check(HealthCheckRequest::default()).await?;
        println!("call {call}: ratelimit {:?}", answer.metadata().get("ratelimit"));
    }
    let refused = client.check(HealthCheckRequest::default()).await;
    let status = refused.err().ok_or("the third call passed")?;
    println!("call 3: {:?}, retry after {:?}", status.code(), status.metadata().get("retry-after"));
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(
        status.metadata().get("retry-after").map(|value| value.as_bytes()),
        Some(&b"30"[..])
    );
    Ok(())
}
