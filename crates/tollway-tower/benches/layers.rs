//! What a limiting layer adds to a request: bare, ours, tower_governor's and tower's own.
//!
//! ```text
//! cargo bench -p tollway-tower --bench layers                 ns per request, all in one run
//! cargo bench -p tollway-tower --bench layers -- http         requests per second over loopback
//! valgrind --tool=callgrind … layers count <variant> <n>       n requests, to subtract two counts
//! ```
//!
//! Everything runs a no-op axum handler behind axum's own router. Rounds of the variants are
//! interleaved, so that a noisy machine disturbs them alike; the median round counts.

#![allow(clippy::print_stdout, reason = "a benchmark reports")]

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tollway_core::{Policy, StoreLimiter};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_tower::keys::{ClientAddress, Everyone};
use tollway_tower::{Dialect, Limit, RateLimitLayer};
use tower::{Service, ServiceExt};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;

/// So large that no request is denied, in every variant.
const PLENTY: u32 = 1_000_000_000;
const ROUNDS: usize = 31;
const REQUESTS_PER_ROUND: usize = 20_000;

type App = Router;

fn bare() -> App {
    Router::new().route("/", get(|| async { "" }))
}

/// A layer that does nothing: what axum itself spends on any layer.
fn no_op() -> App {
    bare().layer(tower::util::MapRequestLayer::new(|request: Request<Body>| request))
}

fn tollway(limits: &[&str], dialect: Dialect) -> App {
    bare().layer(tollway_layer(limits, dialect).for_axum())
}

fn tollway_layer(limits: &[&str], dialect: Dialect) -> RateLimitLayer {
    let store = Arc::new(MemoryStore::new(Capacity::keys(100_000)));
    let quota = format!("{PLENTY}/1s");
    let policies = limits.iter().map(|name| Policy::parse(*name, &quota).expect("a policy"));
    let limiter = StoreLimiter::new(policies, store, Arc::new(SystemClock::new()));
    let builder = RateLimitLayer::builder(limiter).dialect(dialect);
    let builder = limits.iter().fold(builder, |builder, &name| match name {
        "everyone" => builder.limit(Limit::new(name, Everyone)),
        _ => builder.limit(Limit::new(name, ClientAddress::peer())),
    });
    builder.build().expect("a layer")
}

fn governor(headers: bool) -> App {
    let mut config = GovernorConfigBuilder::default();
    config.per_nanosecond(1).burst_size(PLENTY);
    if headers {
        let config = config.use_headers().finish().expect("a configuration");
        return bare().layer(GovernorLayer::new(config));
    }
    bare().layer(GovernorLayer::new(config.finish().expect("a configuration")))
}

/// tower's own limits one service for all callers, by a buffer, because it is not `Clone`. axum
/// needs its error handled.
fn tower_limit() -> App {
    let limit = tower::ServiceBuilder::new()
        .layer(axum::error_handling::HandleErrorLayer::new(|_: tower::BoxError| async {
            http::StatusCode::SERVICE_UNAVAILABLE
        }))
        .layer(tower::buffer::BufferLayer::new(1024))
        .layer(tower::limit::RateLimitLayer::new(PLENTY.into(), Duration::from_secs(1)));
    bare().layer(limit)
}

/// The variants in one run. tower's needs a runtime for its buffer.
fn variants() -> Vec<(&'static str, App)> {
    vec![
        ("bare", bare()),
        ("no-op layer", no_op()),
        ("tollway off", tollway(&["client"], Dialect::Off)),
        ("tollway draft10", tollway(&["client"], Dialect::Draft10)),
        ("tollway x-ratelimit", tollway(&["client"], Dialect::XRateLimitDelta)),
        ("tollway 2 policies draft10", tollway(&["client", "everyone"], Dialect::Draft10)),
        ("tollway draft10, any body", bare().layer(tollway_layer(&["client"], Dialect::Draft10))),
        ("tower_governor", governor(false)),
        ("tower_governor headers", governor(true)),
        ("tower RateLimit+Buffer", tower_limit()),
    ]
}

fn request(client: u32) -> Request<Body> {
    let address = SocketAddr::new(IpAddr::from((0x0a00_0000 + client).to_be_bytes()), 40_000);
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(address));
    request
}

async fn ask(app: &mut App, client: u32) {
    let response: Result<Response<Body>, Infallible> =
        ServiceExt::<Request<Body>>::ready(app).await.expect("ready").call(request(client)).await;
    let response = response.expect("an answer");
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!(body, Bytes::new());
}

async fn ask_many(app: &mut App, requests: usize) {
    for index in 0..requests {
        ask(app, (index % 1000) as u32).await;
    }
}

/// Median nanoseconds per request of each variant, rounds interleaved.
async fn time_in_process() {
    let mut apps = variants();
    let mut rounds = vec![Vec::new(); apps.len()];
    for _ in 0..ROUNDS {
        for ((_, app), rounds) in apps.iter_mut().zip(&mut rounds) {
            let start = Instant::now();
            ask_many(app, REQUESTS_PER_ROUND).await;
            rounds.push(start.elapsed().as_nanos() as f64 / REQUESTS_PER_ROUND as f64);
        }
    }
    let bare = median(&mut rounds[0].clone());
    println!("{:<30} {:>12} {:>12}", "in process", "ns/request", "added ns");
    for ((name, _), rounds) in apps.iter().zip(&mut rounds) {
        let median = median(rounds);
        println!("{name:<30} {median:>12.0} {:>12.0}", median - bare);
    }
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Requests per second of each variant over kept-alive loopback connections, rounds interleaved.
async fn time_over_http() {
    const CONNECTIONS: usize = 16;
    const REQUESTS: usize = 500;
    const HTTP_ROUNDS: usize = 11;
    let apps = variants();
    let mut addresses = Vec::new();
    for (_, app) in &apps {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        addresses.push(listener.local_addr().expect("bound"));
        let service = app.clone().into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
    }
    let mut rates = vec![Vec::new(); apps.len()];
    for _ in 0..HTTP_ROUNDS {
        for (&address, rates) in addresses.iter().zip(&mut rates) {
            let start = Instant::now();
            let clients: Vec<_> =
                (0..CONNECTIONS).map(|_| tokio::spawn(keep_asking(address, REQUESTS))).collect();
            for client in clients {
                client.await.expect("no panic");
            }
            rates.push((CONNECTIONS * REQUESTS) as f64 / start.elapsed().as_secs_f64());
        }
    }
    println!("{:<30} {:>12}", "HTTP/1.1 loopback, 16 conn.", "requests/s");
    for ((name, _), rates) in apps.iter().zip(&mut rates) {
        println!("{name:<30} {:>12.0}", median(rates));
    }
}

async fn keep_asking(address: SocketAddr, requests: usize) {
    let stream = TokioIo::new(TcpStream::connect(address).await.expect("connected"));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(stream).await.expect("HTTP/1.1");
    tokio::spawn(connection);
    for _ in 0..requests {
        let request = Request::get("/").header("host", "bench").body(Body::empty());
        let response = sender.send_request(request.expect("a request")).await.expect("an answer");
        assert_eq!(response.status(), 200);
        response.into_body().collect().await.expect("a body");
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    match args[..] {
        ["count", name, requests] => runtime.block_on(async {
            let found = variants().into_iter().find(|(variant, _)| *variant == name);
            let requests = requests.parse().expect("a number of requests");
            ask_many(&mut found.expect("a variant").1, requests).await;
        }),
        ["list"] => runtime.block_on(async {
            variants().iter().for_each(|(name, _)| println!("{name}"));
        }),
        ["http"] => tokio::runtime::Runtime::new().expect("a runtime").block_on(time_over_http()),
        _ => runtime.block_on(time_in_process()),
    }
}
