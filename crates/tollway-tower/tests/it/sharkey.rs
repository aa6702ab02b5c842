use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tollway_core::leaky_bucket::LeakyBucket;
use tollway_core::{Policy, VirtualClock};
use tollway_tower::keys::Everyone;
use tollway_tower::{Dialect, Limit, RateLimitLayer};

use crate::world::{clock, limiter, raw, serve};

/// A server limited by a bucket of that size that drips once in `drip_ms`.
async fn server(size: u64, drip_ms: u64) -> (std::net::SocketAddr, Arc<VirtualClock>) {
    let clock = clock();
    let bucket = LeakyBucket::new(size, 1, Duration::from_millis(drip_ms)).expect("a bucket");
    let bucket = Policy::new("bucket", bucket).expect("a policy");
    let layer = RateLimitLayer::builder(limiter([bucket], &clock))
        .limit(Limit::new("bucket", Everyone))
        .dialect(Dialect::XRateLimitClear)
        .build()
        .expect("a layer");
    (serve(Router::new().route("/", get(|| async { "" })).layer(layer)).await, clock)
}

/// The rate-limit fields of one response, in order.
async fn fields(address: std::net::SocketAddr) -> Vec<String> {
    let response = raw(address, "GET / HTTP/1.1").await;
    let ours = |line: &&str| line.starts_with("x-ratelimit-") || line.starts_with("retry-after");
    response.lines().filter(ours).map(str::to_owned).collect()
}

#[tokio::test]
async fn allowed_calls_carry_remaining_and_clear_and_nothing_else() {
    let (address, _clock) = server(2, 1000).await;
    assert_eq!(fields(address).await, ["x-ratelimit-remaining: 1", "x-ratelimit-clear: 1.000"]);
    assert_eq!(fields(address).await, ["x-ratelimit-remaining: 0", "x-ratelimit-clear: 2.000"]);
}

#[tokio::test]
async fn blocked_calls_add_reset_with_decimals_and_retry_after_rounded_up() {
    let (address, clock) = server(1, 1500).await;
    assert_eq!(fields(address).await, ["x-ratelimit-remaining: 0", "x-ratelimit-clear: 1.500"]);
    clock.advance(Duration::from_millis(245));
    assert_eq!(
        fields(address).await,
        [
            "x-ratelimit-remaining: 0",
            "x-ratelimit-clear: 1.255",
            "x-ratelimit-reset: 1.255",
            "retry-after: 2",
        ]
    );
    clock.advance(Duration::from_millis(500));
    assert_eq!(fields(address).await[2..], ["x-ratelimit-reset: 0.755", "retry-after: 1"]);
}

#[tokio::test]
async fn who_waits_as_long_as_reset_says_is_admitted() {
    let (address, clock) = server(1, 1500).await;
    fields(address).await;
    clock.advance(Duration::from_millis(745));
    assert_eq!(fields(address).await[2], "x-ratelimit-reset: 0.755");
    clock.advance(Duration::from_millis(754));
    assert_eq!(fields(address).await[2], "x-ratelimit-reset: 0.001");
    clock.advance(Duration::from_millis(1));
    assert_eq!(fields(address).await.len(), 2);
}
