//! The fake upstream as a real server on a loopback port, over HTTP/1.1 and HTTP/2.
//!
//! Beside the described routes it serves, uncounted and unlimited:
//!
//! | request | answer |
//! |---|---|
//! | `GET /_fake/counters` | what happened so far, as JSON |
//! | `POST /_fake/forget` | forgets it |
//! | `POST /_fake/faults` | makes the fault in the JSON body happen |
//! | `GET /_fake/big/N` | N bytes, streamed |
//! | `POST /_fake/echo` | the body, streamed back |

mod reply;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderName};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tollway_core::Timestamp;

use super::{Counters, Ending, Fault, Request, Spec, Upstream};
use reply::Body;

/// How much of a body is looked at; the rest is read and forgotten. Requests of models are long.
const BODY_MAX: usize = 16 << 20;
/// What clients prove themselves by; the first that is there counts.
const CREDENTIALS: [HeaderName; 2] = [AUTHORIZATION, HeaderName::from_static("x-api-key")];

/// A fake upstream that listens. Dropped, it closes every connection.
#[derive(Debug)]
pub struct Loopback {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    upstream: Mutex<State>,
    start: Instant,
    epoch: Timestamp,
}

#[derive(Debug)]
struct State {
    upstream: Upstream,
    in_flight: u64,
    in_flight_max: u64,
    abandoned: u64,
    tokens_sent: u64,
}

impl Loopback {
    /// Listens on `listen`; port 0 takes a free one.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound.
    pub async fn start(spec: Spec, listen: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let state = State {
            upstream: Upstream::new(spec),
            in_flight: 0,
            in_flight_max: 0,
            abandoned: 0,
            tokens_sent: 0,
        };
        let shared = Arc::new(Shared {
            upstream: Mutex::new(state),
            start: Instant::now(),
            epoch: Timestamp::MIN.after(epoch),
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { address, shared, task })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.counters()
    }

    /// Makes a fault happen from the next request on.
    pub fn inject(&self, fault: Fault) {
        self.shared.state().upstream.inject(fault);
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn now(&self) -> Timestamp {
        self.epoch.after(self.start.elapsed())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.upstream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counters(&self) -> Counters {
        let now = self.now();
        let mut state = self.state();
        let State { in_flight_max, abandoned, tokens_sent, .. } = *state;
        Counters { in_flight_max, abandoned, tokens_sent, ..state.upstream.counters(now).clone() }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // The set is dropped with this task, and every connection with the set.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        connections.spawn(serve(stream, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    // Small answers at once: a delayed acknowledgement would look like a slow upstream.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { answer(request, shared).await }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    // A client that goes away ends its connection; nobody is to be told.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    request: http::Request<Incoming>,
    shared: Arc<Shared>,
) -> io::Result<http::Response<Body>> {
    if let Some(path) = request.uri().path().strip_prefix("/_fake/") {
        let path = path.to_owned();
        return Ok(aside(&path, request, &shared).await.unwrap_or_else(|never| match never {}));
    }
    let flight = RequestAtWork::new(Arc::clone(&shared));
    let (head, body) = request.into_parts();
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    // A request counts when it has arrived whole, as behind a buffering gateway.
    let body = beginning(body).await?;
    let credential = CREDENTIALS.iter().find_map(|name| head.headers.get(name)?.to_str().ok());
    let request =
        Request { method: head.method.as_str(), target: &target, credential, body: &body };
    let now = shared.now();
    let response = shared.state().upstream.answer(&request, now);
    let delivery = Delivery(Some(Arc::clone(&shared)));
    if !response.delay.is_zero() {
        tokio::time::sleep(response.delay).await;
    }
    drop(flight);
    match response.ending {
        Ending::Stall => std::future::pending().await,
        Ending::Close => {
            delivery.done();
            Err(io::ErrorKind::ConnectionReset.into())
        }
        Ending::Whole | Ending::CutBody | Ending::StallBody => Ok(reply::of(response, delivery)),
    }
}

/// Reads a body of any size to its end and keeps its beginning.
async fn beginning(mut body: Incoming) -> io::Result<Vec<u8>> {
    let mut kept = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
        let room = BODY_MAX - kept.len();
        kept.extend_from_slice(&data[..room.min(data.len())]);
    }
    Ok(kept)
}

/// What is not part of the described API.
async fn aside(
    path: &str,
    request: http::Request<Incoming>,
    shared: &Shared,
) -> Result<http::Response<Body>, Infallible> {
    let big = path.strip_prefix("big/").and_then(|count| count.parse().ok());
    Ok(match (path, big) {
        (_, Some(count)) => reply::big(count),
        ("echo", _) => reply::echo(request),
        ("counters", _) => reply::json(&shared.counters()),
        ("forget", _) => {
            let mut state = shared.state();
            state.upstream.forget_counts();
            (state.in_flight_max, state.abandoned, state.tokens_sent) = (0, 0, 0);
            reply::text(204, "")
        }
        ("faults", _) => inject(request, shared).await,
        _ => reply::text(404, "nothing here"),
    })
}

async fn inject(request: http::Request<Incoming>, shared: &Shared) -> http::Response<Body> {
    let body = Limited::new(request.into_body(), BODY_MAX).collect().await;
    let bytes: Bytes = body.map(|body| body.to_bytes()).unwrap_or_default();
    match serde_json::from_slice::<Fault>(&bytes) {
        Ok(fault) => {
            shared.state().upstream.inject(fault);
            reply::text(204, "")
        }
        Err(error) => reply::text(400, &error.to_string()),
    }
}

/// An answer on its way. Dropped before its end, its client has left.
struct Delivery(Option<Arc<Shared>>);

impl Delivery {
    fn sent(&self, tokens: u64) {
        if let Some(shared) = &self.0 {
            shared.state().tokens_sent += tokens;
        }
    }

    fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.state().abandoned += 1;
        }
    }
}

/// A request at work.
struct RequestAtWork(Arc<Shared>);

impl RequestAtWork {
    fn new(shared: Arc<Shared>) -> Self {
        let mut state = shared.state();
        state.in_flight += 1;
        state.in_flight_max = state.in_flight_max.max(state.in_flight);
        drop(state);
        Self(shared)
    }
}

impl Drop for RequestAtWork {
    fn drop(&mut self) {
        self.0.state().in_flight -= 1;
    }
}
