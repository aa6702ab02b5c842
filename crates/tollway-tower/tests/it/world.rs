use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollway_core::{Clock, Policy, Store, StoreLimiter, Timestamp, VirtualClock};
use tollway_memory::{Capacity, MemoryStore};
use tollway_tower::keys::PeerAddr;
use tollway_tower::{Builder, Limit, RateLimit, RateLimitLayer};
use tower::{Layer, Service, ServiceExt};

/// 2023-11-14 22:13:20 UTC, a whole second.
pub(crate) const START: Timestamp = Timestamp::from_millis(1_700_000_000_000);

pub(crate) fn clock() -> Arc<VirtualClock> {
    Arc::new(VirtualClock::at(START))
}

pub(crate) fn policy(name: &str, quota: &str) -> Policy {
    Policy::parse(name, quota).expect("a policy")
}

pub(crate) fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(Capacity::keys(1_000)))
}

pub(crate) fn limiter(
    policies: impl IntoIterator<Item = Policy>,
    clock: &Arc<VirtualClock>,
) -> StoreLimiter {
    let clock: Arc<dyn Clock> = clock.clone();
    StoreLimiter::new(policies, memory(), clock)
}

/// A builder with one policy on memory, and the clock it runs by.
pub(crate) fn one(quota: &str, limit: Limit) -> (Builder, Arc<VirtualClock>) {
    let clock = clock();
    let limiter = limiter([policy("api", quota)], &clock);
    (RateLimitLayer::builder(limiter).limit(limit), clock)
}

pub(crate) fn get(path: &str) -> Request<String> {
    from("192.0.2.1", path)
}

/// A GET request from that peer.
pub(crate) fn from(peer: &str, path: &str) -> Request<String> {
    let address = SocketAddr::new(peer.parse().expect("an address"), 40_000);
    Request::get(path).extension(PeerAddr(address)).body(String::new()).expect("a request")
}

pub(crate) fn header<'a, B>(response: &'a Response<B>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().expect("ASCII"))
}

/// A service that says "ok" behind the layer.
pub(crate) fn ok(
    builder: Builder,
) -> RateLimit<
    impl Service<
        Request<String>,
        Response = Response<Full<Bytes>>,
        Error = Infallible,
        Future: Send + 'static,
    > + Clone,
> {
    builder
        .build()
        .expect("a layer")
        .layer(tower::service_fn(|_| async { Ok(Response::new(Full::from("ok"))) }))
}

/// Calls a clone of the service and reads the whole response.
pub(crate) async fn call<S, R>(service: &S, request: Request<String>) -> Response<String>
where
    S: Service<Request<String>, Response = Response<R>> + Clone,
    S::Error: std::fmt::Debug,
    R: http_body::Body<Data = Bytes>,
    R::Error: std::fmt::Debug,
{
    let response = service.clone().oneshot(request).await.expect("an answer");
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.expect("a body").to_bytes();
    Response::from_parts(parts, String::from_utf8(bytes.into()).expect("text"))
}

/// The statuses of that many requests, one after the other.
pub(crate) async fn statuses<S, R>(
    service: &S,
    count: usize,
    request: impl Fn() -> Request<String>,
) -> Vec<u16>
where
    S: Service<Request<String>, Response = Response<R>> + Clone,
    S::Error: std::fmt::Debug,
    R: http_body::Body<Data = Bytes>,
    R::Error: std::fmt::Debug,
{
    let mut statuses = Vec::new();
    for _ in 0..count {
        statuses.push(call(service, request()).await.status().as_u16());
    }
    statuses
}

/// Serves the router on a free loopback port, with the peer's address.
pub(crate) async fn serve(router: axum::Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// The bytes of one HTTP/1.1 response, without the `date` line that no clock of ours decides.
pub(crate) async fn raw(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let request = format!("{head}\r\nhost: test\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).await.expect("received");
    let undated = response.split_inclusive("\r\n").filter(|line| !line.starts_with("date: "));
    undated.collect()
}
