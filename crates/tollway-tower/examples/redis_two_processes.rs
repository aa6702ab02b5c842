//! Two processes share one limit through Redis: five requests pass, whichever process they reach.
//!
//! Starts redis-server on a free loopback port and two copies of itself as axum services, sends
//! them twelve requests in turn, and counts. Needs redis-server on the path.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

mod client;

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tollway_core::{Policy, StoreLimiter};
use tollway_memory::SystemClock;
use tollway_redis::{RedisStore, Settings};
use tollway_tower::keys::{ClientAddress, Everyone};
use tollway_tower::{Limit, RateLimitLayer};

use client::{Error, send, serve};

#[tokio::main]
async fn main() -> Result<(), Error> {
    match std::env::args().nth(1) {
        Some(url) => serve_one(&url).await,
        None => run().await,
    }
}

/// One service, on the Redis at `url`; says its address and serves until it is killed.
async fn serve_one(url: &str) -> Result<(), Error> {
    let policies = [Policy::parse("client", "5/1m")?, Policy::parse("everybody", "1000/1s")?];
    let store = Arc::new(RedisStore::connect(url, Settings::default()).await?);
    let limiter = StoreLimiter::new(policies, store, Arc::new(SystemClock::new()));
    let layer = RateLimitLayer::builder(limiter)
        .limit(Limit::new("client", ClientAddress::peer()))
        .limit(Limit::new("everybody", Everyone))
        .build()?;
    let address = serve(Router::new().route("/", get(|| async { "hello" })).layer(layer)).await?;
    println!("{address}");
    std::future::pending().await
}

async fn run() -> Result<(), Error> {
    let (_redis, url) = start_redis().await?;
    let (_first, first) = start_copy(&url).await?;
    let (_second, second) = start_copy(&url).await?;
    let mut passed = [0, 0];
    for turn in 0..12 {
        let answer = send([first, second][turn % 2], "GET / HTTP/1.1").await?;
        println!("process {}: {} {}", turn % 2, answer.status, answer.field("ratelimit"));
        passed[turn % 2] += u32::from(answer.status == 200);
    }
    assert_eq!(passed, [3, 2], "five in all, in turn");
    Ok(())
}

/// A Redis of our own that dies with us, and its address.
async fn start_redis() -> Result<(Child, String), Error> {
    // The port is free again as soon as the listener is dropped.
    let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
    let redis = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    for _ in 0..200 {
        if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
            return Ok((redis, format!("redis://127.0.0.1:{port}")));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Err("redis-server did not answer within four seconds".into())
}

/// Another process of this program, serving by the Redis at `url`, and its address.
async fn start_copy(url: &str) -> Result<(Child, SocketAddr), Error> {
    let mut copy = Command::new(std::env::current_exe()?)
        .arg(url)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = copy.stdout.take().ok_or("no output")?;
    let said = BufReader::new(output).lines().next_line().await?;
    Ok((copy, said.ok_or("a copy ended before it served")?.parse()?))
}
