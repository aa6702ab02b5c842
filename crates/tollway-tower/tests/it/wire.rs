use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tollway_core::VirtualClock;
use tollway_tower::keys::{ClientAddress, Everyone};
use tollway_tower::{Dialect, Limit, RateLimitLayer};
use tower::Layer;

use crate::world::{clock, limiter, policy, raw, serve};

const GET: &str = "GET / HTTP/1.1";

async fn axum_server(dialect: Dialect) -> (SocketAddr, Arc<VirtualClock>) {
    let clock = clock();
    let policies = [policy("client", "2/1m"), policy("global", "1000/1s")];
    let layer = RateLimitLayer::builder(limiter(policies, &clock))
        .limit(Limit::new("client", ClientAddress::peer()))
        .limit(Limit::new("global", Everyone))
        .dialect(dialect)
        .build()
        .expect("a layer");
    let router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
    (serve(router).await, clock)
}

/// Allowed, allowed, denied: the three responses of one client.
async fn three(dialect: Dialect) -> [String; 3] {
    let (address, clock) = axum_server(dialect).await;
    let first = raw(address, GET).await;
    clock.advance(Duration::from_millis(400));
    [first, raw(address, GET).await, raw(address, GET).await]
}

fn allowed(fields: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain; charset=utf-8\r\n{fields}\
         content-length: 5\r\nconnection: close\r\n\r\nhello"
    )
}

fn denied(fields: &str) -> String {
    let body = "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
                \"title\":\"Quota Exceeded\",\"status\":429,\"violated-policies\":[\"client\"]}";
    format!(
        "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/problem+json\r\n{fields}\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[tokio::test]
async fn draft10_bytes_over_http_1() {
    let policies = "ratelimit-policy: \"client\";q=2;w=60, \"global\";q=1000;w=1\r\n";
    let [first, second, third] = three(Dialect::Draft10).await;
    let limit = "ratelimit: \"client\";r=1;t=30, \"global\";r=999;t=1\r\n";
    assert_eq!(first, allowed(&format!("{policies}{limit}")));
    let limit = "ratelimit: \"client\";r=0;t=30, \"global\";r=999;t=1\r\n";
    assert_eq!(second, allowed(&format!("{policies}{limit}")));
    let limit = "ratelimit: \"client\";r=0;t=30, \"global\";r=999;t=1\r\nretry-after: 30\r\n";
    assert_eq!(third, denied(&format!("{policies}{limit}")));
}

#[tokio::test]
async fn draft07_bytes_over_http_1() {
    let policies = "ratelimit-policy: 2;w=60, 1000;w=1\r\n";
    let [first, _, third] = three(Dialect::Draft07).await;
    let limit = "ratelimit: limit=2, remaining=1, reset=30\r\n";
    assert_eq!(first, allowed(&format!("{policies}{limit}")));
    let limit = "ratelimit: limit=2, remaining=0, reset=30\r\nretry-after: 30\r\n";
    assert_eq!(third, denied(&format!("{policies}{limit}")));
}

#[tokio::test]
async fn draft03_bytes_over_http_1() {
    let policies = "ratelimit-policy: 2;w=60, 1000;w=1\r\nratelimit-limit: 2\r\n";
    let [first, _, third] = three(Dialect::Draft03).await;
    let limit = "ratelimit-remaining: 1\r\nratelimit-reset: 30\r\n";
    assert_eq!(first, allowed(&format!("{policies}{limit}")));
    let limit = "ratelimit-remaining: 0\r\nratelimit-reset: 30\r\nretry-after: 30\r\n";
    assert_eq!(third, denied(&format!("{policies}{limit}")));
}

#[tokio::test]
async fn x_ratelimit_bytes_over_http_1() {
    let limit = "x-ratelimit-limit: 2\r\n";
    let [first, _, third] = three(Dialect::XRateLimitDelta).await;
    let rest = "x-ratelimit-remaining: 1\r\nx-ratelimit-reset: 30\r\n";
    assert_eq!(first, allowed(&format!("{limit}{rest}")));
    let rest = "x-ratelimit-remaining: 0\r\nx-ratelimit-reset: 30\r\nretry-after: 30\r\n";
    assert_eq!(third, denied(&format!("{limit}{rest}")));
    let [first, _, third] = three(Dialect::XRateLimitEpoch).await;
    let rest = "x-ratelimit-remaining: 1\r\nx-ratelimit-reset: 1700000030\r\n";
    assert_eq!(first, allowed(&format!("{limit}{rest}")));
    let rest = "x-ratelimit-remaining: 0\r\nx-ratelimit-reset: 1700000030\r\nretry-after: 30\r\n";
    assert_eq!(third, denied(&format!("{limit}{rest}")));
}

#[tokio::test]
async fn silence_is_a_dialect() {
    let [first, _, third] = three(Dialect::Off).await;
    assert_eq!((first, third), (allowed(""), denied("")));
    let [first, _, third] = three(Dialect::RetryAfter).await;
    assert_eq!((first, third), (allowed(""), denied("retry-after: 30\r\n")));
}

/// Requests over one HTTP/2 connection: status, fields and body of each.
async fn over_http_2(address: SocketAddr, count: usize) -> Vec<(StatusCode, HeaderMap, Bytes)> {
    let stream = TokioIo::new(TcpStream::connect(address).await.expect("connected"));
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream);
    let (mut sender, connection) = handshake.await.expect("HTTP/2");
    tokio::spawn(connection);
    let mut responses = Vec::new();
    for _ in 0..count {
        let uri = format!("http://{address}/");
        let request = Request::get(uri).body(Empty::<Bytes>::new()).expect("a request");
        let (parts, body) = sender.send_request(request).await.expect("a response").into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        responses.push((parts.status, parts.headers, body));
    }
    responses
}

#[tokio::test]
async fn draft10_over_http_2_is_read_back_by_sfv() {
    let (address, _clock) = axum_server(Dialect::Draft10).await;
    let responses = over_http_2(address, 3).await;
    for (index, (status, headers, _)) in responses.iter().enumerate() {
        assert_eq!(*status == 429, index == 2);
        let left = i64::from(index == 0);
        let limits = items(headers, "ratelimit");
        assert_eq!(limits[0], ("client".into(), vec![("r".into(), left), ("t".into(), 30)]));
        assert_eq!(limits[1].0, "global");
        let policies = items(headers, "ratelimit-policy");
        assert_eq!(policies[0], ("client".into(), vec![("q".into(), 2), ("w".into(), 60)]));
        assert_eq!(policies[1], ("global".into(), vec![("q".into(), 1000), ("w".into(), 1)]));
    }
    let (_, headers, body) = &responses[2];
    assert_eq!(headers["retry-after"], "30");
    assert_eq!(headers["content-type"], "application/problem+json");
    let problem: serde_json::Value = serde_json::from_slice(body).expect("JSON");
    assert_eq!(problem["violated-policies"], serde_json::json!(["client"]));
    assert_eq!(problem["status"], 429);
}

/// A List of named Items with Integer parameters, by an independent reader.
fn items(headers: &HeaderMap, name: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let lines: Vec<_> = headers.get_all(name).iter().map(|line| line.as_bytes()).collect();
    let list: sfv::List = sfv::Parser::new(&lines.join(&b", "[..])).parse().expect("a List");
    let item = |entry: &sfv::ListEntry| {
        let sfv::ListEntry::Item(item) = entry else { panic!("an inner list") };
        let integer = |value: &sfv::BareItem| value.as_integer().expect("an Integer").into();
        let params = item.params.iter().map(|(key, value)| (key.to_string(), integer(value)));
        (item.bare_item.as_string().expect("a String").to_string(), params.collect())
    };
    list.iter().map(item).collect()
}

#[tokio::test]
async fn clones_of_a_service_share_their_limits() {
    let (address, _clock) = axum_server(Dialect::Draft10).await;
    let one = over_http_2(address, 1).await;
    let other = over_http_2(address, 2).await;
    let statuses: Vec<_> = one.iter().chain(&other).map(|response| response.0).collect();
    assert_eq!(statuses, [200, 200, 429]);
}

#[tokio::test]
async fn stacked_layers_are_all_heard() {
    let clock = clock();
    let layer = |name: &str, quota: &str| {
        RateLimitLayer::new(limiter([policy(name, quota)], &clock), name, Everyone)
            .expect("a layer")
    };
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .layer(layer("inner", "5/1m"))
        .layer(layer("outer", "9/1m"));
    let response = raw(serve(router).await, GET).await;
    let lines = "ratelimit: \"inner\";r=4;t=12\r\nratelimit: \"outer\";r=8;t=7\r\n";
    assert!(response.replace("ratelimit-policy: \"outer\";q=9;w=60\r\n", "").contains(lines));
}

/// A server of hyper alone, without axum: connections are told their peer by an extension.
async fn hyper_server(layer: RateLimitLayer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let limited = layer.layer(tower::service_fn(|_| async {
                Ok::<_, Infallible>(Response::new(Full::from("hello")))
            }));
            let service = tower::ServiceBuilder::new()
                .map_request(move |mut request: Request<hyper::body::Incoming>| {
                    request.extensions_mut().insert(tollway_tower::keys::PeerAddr(peer));
                    request
                })
                .service(limited);
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                let service = TowerToHyperService::new(service);
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn a_bare_hyper_server_is_limited_too() {
    let limiter = limiter([policy("client", "1/1m")], &clock());
    let layer = RateLimitLayer::new(limiter, "client", ClientAddress::peer()).expect("a layer");
    let address = hyper_server(layer).await;
    let first = raw(address, GET).await;
    assert!(first.contains("\r\nratelimit: \"client\";r=0;t=60\r\n"), "{first}");
    assert!(raw(address, GET).await.starts_with("HTTP/1.1 429 "));
    let second = over_http_2(address, 1).await;
    assert_eq!(
        (second[0].0, &second[0].1["retry-after"]),
        (StatusCode::TOO_MANY_REQUESTS, &"60".parse().expect("a value"))
    );
}
