//! Listening: connections of clients over HTTP/1.1 and HTTP/2, bounded, and ended in order.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::body::Body;
use crate::refusal::Cause;
use crate::{State, access, admin, forward};
use tollway_http::{Answers, FirstRequest, WriteTimeout};

/// After a failed accept (no file descriptors left) the next is tried this much later.
const PAUSE: Duration = Duration::from_millis(50);
/// Requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 1_024;

/// What a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Serves {
    /// Requests on their way to the upstream, and own pages under a prefix.
    Proxy,
    /// The proxy's own pages.
    Admin,
}

/// Where a connection came in.
#[derive(Clone, Copy, Debug)]
struct Entry {
    serves: Serves,
    /// Whether only this machine can reach it.
    is_loopback: bool,
}

/// Accepts until told to stop, then waits for the connections to end.
pub(super) async fn accept(listener: TcpListener, state: Arc<State>, serves: Serves) {
    let places = Arc::new(Semaphore::new(state.settings.connections_max));
    // Where it cannot be told, a name proves nothing: then none is asked for.
    let is_loopback = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let entry = Entry { serves, is_loopback };
    let mut stopping = state.stopping.clone();
    let mut connections = JoinSet::new();
    loop {
        // Beyond the bound clients wait in the kernel's backlog.
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            _ = stopping.wait_for(|stop| *stop) => break,
        };
        match (place, accepted) {
            (Ok(place), Ok((stream, peer))) => {
                connections.spawn(serve(stream, peer.ip(), Arc::clone(&state), entry, place));
            }
            _ => tokio::time::sleep(PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn serve(
    stream: TcpStream,
    peer: IpAddr,
    state: Arc<State>,
    entry: Entry,
    _place: OwnedSemaphorePermit,
) {
    let _open = Open::new(&state);
    // Answers are small and come in one piece: a delayed acknowledgement would double their time.
    let _ = stream.set_nodelay(true);
    let mut stopping = state.stopping.clone();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(state.settings.slow_client_after)
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(Duration::from_secs(30));
    let (inner, answers) = (Arc::clone(&state), Answers::default());
    let (sent, first) = (answers.clone(), FirstRequest::default());
    let asked = first.clone();
    let service = service_fn(move |request| {
        asked.is_there();
        let (state, sent) = (Arc::clone(&inner), sent.clone());
        async move {
            let response = answer(state, peer, entry, request).await;
            Ok::<_, Infallible>(response.map(|body| sent.watch(body)))
        }
    });
    let stream = WriteTimeout::new(stream, state.settings.idle_timeout);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    // A part of HTTP/2's preface is no head for which hyper has a deadline.
    let first_by = Instant::now() + state.settings.slow_client_after;
    let stalled = async {
        tokio::select! {
            () = answers.stalled(state.settings.idle_timeout) => {}
            () = first.is_missing_at(first_by) => {}
        }
    };
    tokio::pin!(connection, stalled);
    tokio::select! {
        // A client that breaks off is nobody to tell.
        _ = connection.as_mut() => return,
        () = stalled.as_mut() => return,
        _ = stopping.wait_for(|stop| *stop) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = connection => {}
        () = stalled => {}
    }
}

async fn answer(
    state: Arc<State>,
    peer: IpAddr,
    entry: Entry,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let settings = &state.settings;
    let is_own = entry.serves == Serves::Admin
        || settings.admin.prefix.as_ref().is_some_and(|prefix| strip(prefix, request.uri_mut()));
    // Who probes needs no name; the answers say nothing that a page could use.
    let is_probe = is_own && admin::is_probe(request.uri().path());
    if !is_probe && let Err(cause) = access::admit(&request, &settings.hosts, entry.is_loopback) {
        return refuse(&state, cause);
    }
    if is_own {
        return admin::answer(&state, peer, &request).await;
    }
    if access::has_admin_token(&state, &request) {
        return refuse(&state, Cause::NoPage);
    }
    match forward::forward(&state, peer, request).await {
        Ok(response) => response,
        Err(cause) => refuse(&state, cause),
    }
}

/// Takes the prefix of the proxy's own pages from a target; false if it has none.
fn strip(prefix: &str, uri: &mut Uri) -> bool {
    let target = uri.path_and_query().map_or("", |target| target.as_str());
    let page = target.strip_prefix(prefix).filter(|page| page.starts_with('/'));
    let Some(page) = page.and_then(|page| page.parse().ok()) else { return false };
    *uri = page;
    true
}

fn refuse(state: &State, cause: Cause) -> Response<Body> {
    state.metrics.refused(&cause);
    cause.response()
}

/// Counts a connection for as long as it lives.
struct Open<'a>(&'a State);

impl<'a> Open<'a> {
    fn new(state: &'a State) -> Self {
        state.connections.fetch_add(1, Ordering::Relaxed);
        Self(state)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
