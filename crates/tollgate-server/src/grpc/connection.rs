//! One HTTP/2 connection of gRPC calls.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;

use http::{Request, Response};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::codegen::Service as _;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::messages::RateLimitResponse;
use super::reflection::{self, Reflection};
use super::status::{Code, Status};
use super::unary::{UnaryBody, receive, respond};
use super::{envoy, throttlecrab};
use crate::auth::{Refused, Role};
use crate::drain::Stop;
use crate::http::LocalExecutor;
use crate::metrics::Front;
use crate::worker::Worker;

/// Calls of one connection under way at once.
const STREAMS_MAX: u32 = 1_024;
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;

type Answer = Response<Either<UnaryBody, tonic::body::Body>>;

/// Health and reflection, shared by all connections.
#[derive(Clone)]
pub struct Probes {
    health: HealthServer<HealthService>,
    reporter: HealthReporter,
    reflection: Reflection,
}

impl Probes {
    /// Probes that say nothing yet.
    #[must_use]
    pub fn new() -> Self {
        let reporter = HealthReporter::new();
        let health = HealthServer::new(HealthService::from_health_reporter(reporter.clone()));
        Self { health, reporter, reflection: reflection::service() }
    }

    /// Tells everybody who watches that calls are welcome.
    pub async fn begin(&self) {
        self.report(tonic_health::ServingStatus::Serving).await;
    }

    /// Tells everybody who watches that calls are no longer wanted.
    pub async fn drain(&self) {
        self.report(tonic_health::ServingStatus::NotServing).await;
    }

    async fn report(&self, status: tonic_health::ServingStatus) {
        for name in ["", envoy::SERVICE] {
            self.reporter.set_service_status(name, status).await;
        }
    }
}

impl Default for Probes {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Probes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Probes")
    }
}

/// Serves a client until it leaves, misbehaves, or the service stops.
///
/// # Errors
///
/// If the stream fails.
pub async fn serve<S>(
    worker: &Rc<Worker>,
    stream: S,
    peer: IpAddr,
    probes: &Probes,
    mut stop: Stop,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let patience = worker.service.settings().limits.slow_client_after;
    let service = service_fn(move |request| {
        let (worker, probes) = (Rc::clone(worker), probes.clone());
        async move { Ok::<_, Infallible>(answer(&worker, peer, probes, request).await) }
    });
    let mut builder = http2::Builder::new(LocalExecutor);
    builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS_MAX);
    builder.keep_alive_interval(patience).keep_alive_timeout(patience);
    builder.max_header_list_size(HEADER_LIST_BYTES_MAX);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stop.stopped() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    served.map_err(io::Error::other)
}

async fn answer(
    worker: &Worker,
    peer: IpAddr,
    probes: Probes,
    request: Request<Incoming>,
) -> Answer {
    #[cfg(feature = "otlp")]
    let span = worker.service.traces().and_then(|traces| {
        let parent = request.headers().get("traceparent").map(http::HeaderValue::as_bytes);
        Some((traces, traces.begin(parent)?))
    });
    let answer = answer_call(worker, peer, probes, request).await;
    #[cfg(feature = "otlp")]
    if let Some((traces, begun)) = span {
        let failed = answer.headers().contains_key("grpc-status");
        traces.end(begun, (Front::Grpc, "gRPC call"), 1, if failed { 500 } else { 200 });
    }
    answer
}

async fn answer_call(
    worker: &Worker,
    peer: IpAddr,
    mut probes: Probes,
    request: Request<Incoming>,
) -> Answer {
    if let Err(status) = permit(worker, peer, &request) {
        worker.service.metrics().front(Front::Grpc).rejected.add(1);
        return respond::<RateLimitResponse>(Err(status)).map(Either::Left);
    }
    let path = request.uri().path();
    if path == envoy::PATH {
        let outcome = match receive(worker, request.into_body()).await {
            Ok(message) => envoy::should_rate_limit(worker, &message).await,
            Err(status) => Err(status),
        };
        return counted(worker, respond(outcome)).map(Either::Left);
    }
    if path == throttlecrab::PATH {
        let outcome = match receive(worker, request.into_body()).await {
            Ok(message) => throttlecrab::throttle(worker, &message).await,
            Err(status) => Err(status),
        };
        return counted(worker, respond(outcome)).map(Either::Left);
    }
    if path.starts_with("/grpc.health.v1.Health/") {
        let Ok(response) = probes.health.call(request).await;
        return response.map(Either::Right);
    }
    if path.starts_with("/grpc.reflection.v1.ServerReflection/") {
        return (probes.reflection)(request).await.map(Either::Right);
    }
    let unknown = Status::new(Code::Unimplemented, format!("there is no method {path}"));
    counted(worker, respond::<RateLimitResponse>(Err(unknown))).map(Either::Left)
}

fn counted(worker: &Worker, response: Response<UnaryBody>) -> Response<UnaryBody> {
    if response.headers().contains_key("grpc-status") {
        worker.service.metrics().front(Front::Grpc).rejected.add(1);
    }
    response
}

/// Health needs no token: a probe has none.
fn permit(worker: &Worker, peer: IpAddr, request: &Request<Incoming>) -> Result<(), Status> {
    let auth = &worker.service.settings().auth;
    if auth.is_open() || request.uri().path().starts_with("/grpc.health.v1.Health/") {
        return Ok(());
    }
    let field = request.headers().get(http::header::AUTHORIZATION);
    match auth.role_of_field(field.map(|value| value.as_bytes())) {
        None => Err(unauthenticated(worker, peer, field.is_some())),
        Some(role) if role < Role::Check => {
            Err(Status::new(Code::PermissionDenied, "this token does not permit it"))
        }
        Some(_) => Ok(()),
    }
}

fn unauthenticated(worker: &Worker, peer: IpAddr, has_token: bool) -> Status {
    if has_token && let Refused::TooMany { .. } = worker.service.wrong_token(peer, Front::Grpc) {
        let text = "too many wrong tokens came from this address";
        return Status::new(Code::ResourceExhausted, text);
    }
    Status::new(Code::Unauthenticated, "a bearer token is needed")
}
