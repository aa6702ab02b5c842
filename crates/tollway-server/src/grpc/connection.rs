//! One HTTP/2 connection of gRPC calls.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;

use http::{Request, Response};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tonic::codegen::Service as _;
use tonic::{Code, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::messages::RateLimitResponse;
use super::pings::{Pinged, Pings};
use super::reflection::{self, Reflection};
use super::socket_name::Renamed;
use super::unary::{UnaryBody, receive, respond};
use super::{envoy, quota_stream, throttlecrab};
use crate::auth::{Refused, Role};
use crate::drain::Stop;
use crate::front::Front;
use crate::http::Peer;
use crate::http2::{self, Answered, Holder, Keeping, Options};
use crate::worker::Worker;

/// Calls of one connection under way at once.
const STREAMS_MAX: u32 = 1_024;
/// The longest answer that is not counted as held: nearly all are shorter.
const UNCOUNTED_BYTES_MAX: usize = 1024;
/// The longest message of a probe: it names a service. Health is asked without a token.
pub(super) const PROBE_BYTES_MAX: usize = 4 * 1024;

const HEALTH: &str = "/grpc.health.v1.Health/";
const REFLECTION: &str = "/grpc.reflection.";

type AnswerBody = Either<UnaryBody, tonic::body::Body>;

/// Health and reflection, shared by all connections.
#[derive(Clone)]
pub(crate) struct Probes {
    health: HealthServer<HealthService>,
    reporter: HealthReporter,
    reflections: [(&'static str, Reflection); 2],
}

impl Probes {
    /// Probes that say nothing yet.
    pub(crate) fn new() -> Self {
        let reporter = HealthReporter::new();
        let health = HealthServer::new(HealthService::from_health_reporter(reporter.clone()))
            .max_decoding_message_size(PROBE_BYTES_MAX);
        Self { health, reporter, reflections: reflection::services() }
    }

    /// Tells everybody who watches that calls are welcome.
    pub(crate) async fn begin(&self) {
        self.report(tonic_health::ServingStatus::Serving).await;
    }

    /// Tells everybody who watches that calls are no longer wanted.
    pub(crate) async fn drain(&self) {
        self.report(tonic_health::ServingStatus::NotServing).await;
    }

    async fn report(&self, status: tonic_health::ServingStatus) {
        for name in ["", envoy::SERVICE, throttlecrab::SERVICE] {
            self.reporter.set_service_status(name, status).await;
        }
    }
}

impl Default for Probes {
    fn default() -> Self {
        Self::new()
    }
}

/// Serves a client until it leaves, misbehaves, or the service stops.
///
/// # Errors
///
/// If the stream fails.
pub(crate) async fn serve<S>(
    worker: &Rc<Worker>,
    stream: S,
    peer: Peer,
    probes: &Probes,
    stop: Stop,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let first_by = Instant::now() + worker.service.settings().limits.first_request_after;
    let age = worker.service.settings().limits.grpc_age;
    let options = Options { front: Front::Grpc, streams_max: STREAMS_MAX, first_by, age };
    let pings = Pings::default();
    let streams = Streams { probes: probes.clone(), pings: pings.clone(), stop: stop.clone() };
    let respond = |request: Request<Incoming>, holder| {
        let (worker, streams) = (Rc::clone(worker), streams.clone());
        async move { answer(&worker, peer.address, streams, request, holder).await }
    };
    if peer.is_unix {
        let stream = Pinged::new(Renamed::new(stream), pings);
        return http2::serve(worker, stream, options, stop, respond).await;
    }
    http2::serve(worker, Pinged::new(stream, pings), options, stop, respond).await
}

/// What calls need that go on for as long as their client likes.
#[derive(Clone)]
struct Streams {
    probes: Probes,
    pings: Pings,
    stop: Stop,
}

async fn answer(
    worker: &Rc<Worker>,
    peer: IpAddr,
    streams: Streams,
    mut request: Request<Incoming>,
    holder: Holder,
) -> Answered<AnswerBody> {
    #[cfg(feature = "otlp")]
    let span = worker.service.traces().and_then(|traces| {
        let parent = request.headers().get("traceparent").map(http::HeaderValue::as_bytes);
        Some((traces, traces.begin(parent)?))
    });
    let answered = match answer_call(worker, peer, &mut request, &holder).await {
        Some(response) => {
            let response = kept(response, &holder).map(Either::Left);
            Answered { response, request: Some(request.into_body()) }
        }
        None if request.uri().path() == quota_stream::PATH => {
            let Streams { pings, stop, .. } = streams;
            let begun = quota_stream::answer(worker, request.into_body(), &pings, holder, stop);
            let refused = |status| counted(worker, respond::<RateLimitResponse>(Err(status)));
            let response = match begun {
                Ok(response) => response.map(Either::Right),
                Err(status) => refused(status).map(Either::Left),
            };
            Answered { response, request: None }
        }
        None => {
            let response = answer_probe(worker, streams.probes, request, &holder).await;
            Answered { response, request: None }
        }
    };
    #[cfg(feature = "otlp")]
    if let Some((traces, begun)) = span {
        let failed = answered.response.headers().contains_key("grpc-status");
        traces.end(begun, (Front::Grpc, "gRPC call"), 1, if failed { 500 } else { 200 });
    }
    answered
}

/// Answers a call, unless it is a probe that may be asked.
async fn answer_call(
    worker: &Worker,
    peer: IpAddr,
    request: &mut Request<Incoming>,
    holder: &Holder,
) -> Option<Response<UnaryBody>> {
    if let Err(status) = permit(worker, peer, request) {
        return Some(counted(worker, respond::<RateLimitResponse>(Err(status))));
    }
    let path = request.uri().path();
    Some(if path == envoy::PATH {
        let started = Instant::now();
        let outcome = match receive(worker, request.body_mut(), holder).await {
            Ok(message) => envoy::should_rate_limit(worker, &message).await,
            Err(status) => Err(status),
        };
        let metrics = worker.service.metrics();
        metrics.rls_seconds.observe(started.elapsed());
        let is_refused = |status: &Status| status.code() == Code::InvalidArgument;
        metrics.rls_refused.add(outcome.as_ref().is_err_and(is_refused).into());
        counted(worker, respond(outcome))
    } else if path == throttlecrab::PATH {
        let outcome = match receive(worker, request.body_mut(), holder).await {
            Ok(message) => throttlecrab::throttle(worker, &message).await,
            Err(status) => Err(status),
        };
        counted(worker, respond(outcome))
    } else if path == quota_stream::PATH || path.starts_with(HEALTH) || path.starts_with(REFLECTION)
    {
        return None;
    } else {
        let unknown = Status::new(Code::Unimplemented, format!("there is no method {path}"));
        counted(worker, respond::<RateLimitResponse>(Err(unknown)))
    })
}

/// Answers a probe. Strangers may ask for health: what they have not finished sending is held
/// within the bounds of any request, and not for longer. A call of reflection goes on for as long
/// as its client likes, so it has a place for one message.
async fn answer_probe(
    worker: &Worker,
    mut probes: Probes,
    request: Request<Incoming>,
    holder: &Holder,
) -> Response<AnswerBody> {
    let refused = |status| counted(worker, respond::<RateLimitResponse>(Err(status)));
    if request.uri().path().starts_with(HEALTH) {
        let (head, mut body) = request.into_parts();
        let limits = &worker.service.settings().limits;
        let bytes = match holder.collect(&mut body, limits).await {
            Ok(bytes) => bytes,
            Err(unread) => return refused(unread.into()).map(Either::Left),
        };
        let Ok(response) = probes.health.call(Request::from_parts(head, Full::new(bytes))).await;
        return response.map(Either::Right);
    }
    let Some(held) = holder.hold(PROBE_BYTES_MAX) else {
        return refused(http2::Unread::Full.into()).map(Either::Left);
    };
    let path = request.uri().path();
    let asked = probes.reflections.iter().find(|(start, _)| path.starts_with(start));
    let Some((_, reflection)) = asked else {
        let unknown = Status::new(Code::Unimplemented, format!("there is no method {path}"));
        return refused(unknown).map(Either::Left);
    };
    let response = reflection(request).await;
    response.map(|body| Either::Right(tonic::body::Body::new(Keeping { body, _kept: held })))
}

/// The answer with its place in the room, unless it is short.
fn kept(response: Response<UnaryBody>, holder: &Holder) -> Response<UnaryBody> {
    let (head, body) = response.into_parts();
    if body.len() <= UNCOUNTED_BYTES_MAX {
        return Response::from_parts(head, body);
    }
    match body.kept(holder) {
        Some(body) => Response::from_parts(head, body),
        None => {
            let full = "too much is held for answers that are not taken";
            respond::<RateLimitResponse>(Err(Status::new(Code::ResourceExhausted, full)))
        }
    }
}

fn counted(worker: &Worker, response: Response<UnaryBody>) -> Response<UnaryBody> {
    if response.headers().contains_key("grpc-status") {
        worker.service.metrics().front(Front::Grpc).rejected.add(1);
    }
    response
}

/// Health needs no token: a probe has none. A page in a browser cannot say that it sends gRPC
/// unless it is permitted to, so whoever does not say it is refused.
fn permit(worker: &Worker, peer: IpAddr, request: &Request<Incoming>) -> Result<(), Status> {
    let kind = request.headers().get(http::header::CONTENT_TYPE).map(|kind| kind.as_bytes());
    if !kind.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
        return Err(Status::new(Code::InvalidArgument, "content-type must be application/grpc"));
    }
    let auth = worker.service.auth();
    if auth.is_open() || request.uri().path().starts_with(HEALTH) {
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
