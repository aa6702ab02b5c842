//! One request on its way: its wait for a permit, the exchange with the upstream, and the answer.
//!
//! ```text
//!  RequestOptions, room, credential ─► cached 401/404? ─► guard ─► claim ─► Exchange ─► head
//!                                                           ▲                            │ learn
//!                                                           └── refused, replayable ◄────┤
//!                                                                               body ◄───┘
//! ```
//!
//! A client that leaves while its request waits leaves the queue. If it leaves while the request is
//! under way, the exchange goes on up to the head of the answer and keeps its place: the budget
//! then knows what was counted, and clients that ask and leave at once cannot exceed the bound on
//! requests.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, Version};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::Instant;

use crate::State;
use crate::body::{Body, PeekedBody, ReplayBuffer, TimedBody};
use crate::credential::{Account, CredentialId};
use crate::exchange::{Arrived, Exchange, Finish};
use crate::fields::{self, RequestOptions};
use crate::refusal::Cause;
use tollway_http::RoomGuard;
use tollway_upstream::budget::{Claim, Priority};
use tollway_upstream::profile::Route;

/// How long the request stood in line, in seconds.
const WAITED: HeaderName = HeaderName::from_static("x-tollway-waited");
/// How much of a body is read peeked where it decides about the lane.
const LANE_BYTES_MAX: usize = 16 << 10;

/// Forwards a request, or says why not.
pub(super) async fn forward(
    state: &Arc<State>,
    peer: IpAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Cause> {
    let (mut forwarded, body) = ForwardedRequest::prepare(state, peer, request).await?;
    let first = forwarded.upload(body).await?;
    Arc::new(forwarded).run(first).await
}

/// A request on its way.
pub(super) struct ForwardedRequest {
    pub(super) state: Arc<State>,
    pub(super) account: Arc<Account>,
    pub(super) method: Method,
    /// With its query: what a query asks for may be missing while the path is not.
    pub(super) target: String,
    /// As they are sent on.
    headers: HeaderMap,
    pub(super) route: Route,
    priority: Priority,
    client: String,
    weight: u32,
    pub(super) has_credential: bool,
    deadline: Instant,
    place: Arc<RoomGuard>,
    held: u64,
    pub(super) replay: ReplayBuffer,
    /// There is no body at all.
    is_bare: bool,
}

impl ForwardedRequest {
    async fn prepare(
        state: &Arc<State>,
        peer: IpAddr,
        request: Request<Incoming>,
    ) -> Result<(Self, Incoming), Cause> {
        let started = Instant::now();
        let (mut head, body) = request.into_parts();
        if head.method == Method::CONNECT {
            return Err(Cause::NoTunnel);
        }
        // Two would be read differently by the upstream than here, and none is no HTTP/1.1.
        let hosts = head.headers.get_all(HOST).iter().count();
        if hosts > 1 || (hosts == 0 && head.version == Version::HTTP_11) {
            return Err(Cause::BadRequest("one Host field is needed"));
        }
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        if !target.starts_with('/') {
            return Err(Cause::BadRequest("the target is no path"));
        }
        let options = RequestOptions::take(&mut head.headers).map_err(Cause::BadRequest)?;
        let held = fields::head_bytes(&target, &head.headers);
        let place = state.room.enter(held).ok_or(Cause::Full)?;
        let settings = &state.settings;
        let id = CredentialId::of(&head.headers, &settings.credential_fields)
            .map_err(|_| Cause::BadRequest("a credential is shown more than once"))?;
        let patience = options.patience.unwrap_or(settings.patience);
        let account = state.accounts.get(id, patience).await.map_err(Cause::from)?;
        let shown = |name: &HeaderName| head.headers.contains_key(name);
        let has_credential = settings.credential_fields.iter().any(shown);
        fields::forward_request(&mut head.headers, &settings.credential_fields);
        let client = options.client.unwrap_or_else(|| peer.to_string());
        let weight = settings.weights.get(&client).copied().unwrap_or(1);
        let forwarded = Self {
            route: state.profile.route(head.method.as_str(), &target),
            account,
            method: head.method,
            target,
            headers: head.headers,
            priority: options.priority,
            client,
            weight,
            has_credential,
            deadline: started + patience,
            place: Arc::new(place),
            held,
            replay: ReplayBuffer::new(settings.replay_bytes_max),
            is_bare: body.is_end_stream(),
            state: Arc::clone(state),
        };
        forwarded.look_up()?;
        Ok((forwarded, body))
    }

    /// What is known to fail is not sent.
    fn look_up(&self) -> Result<(), Cause> {
        if let Err(wait) = self.account.admit(self.state.settings.head_timeout) {
            return Err(Cause::Unauthorized(wait));
        }
        let missing = self.state.missing.left(self.method.as_str(), &self.target);
        missing.map_or(Ok(()), |left| Err(Cause::Missing(left)))
    }

    /// The body as it is sent first, recorded for another try; its beginning decides about lanes.
    async fn upload(&mut self, body: Incoming) -> Result<Body, Cause> {
        let settings = &self.state.settings;
        let timed = TimedBody::new(body, settings.idle_timeout);
        let kept = settings.replay_bytes_max as u64;
        // Without room for a copy it is sent once only.
        let is_recorded = !self.is_bare && self.retries_max() > 0 && self.place.extend(kept);
        let timed = timed.kept_in(is_recorded.then(|| self.replay.clone()));
        if self.is_bare || !self.state.profile.body_lanes(self.method.as_str(), &self.target) {
            return Ok(timed.boxed_unsync());
        }
        let peeked = PeekedBody::read(timed, LANE_BYTES_MAX).await;
        let peeked = peeked.map_err(|_| Cause::BadRequest("the body broke off"))?;
        let (method, beginning) = (self.method.as_str(), peeked.beginning());
        self.route = self.state.profile.route_with_body(method, &self.target, &beginning);
        self.held += beginning.len() as u64;
        Ok(peeked.boxed_unsync())
    }

    async fn run(self: Arc<Self>, first: Body) -> Result<Response<Body>, Cause> {
        let mut body = first;
        let mut retries = self.retries_max();
        let mut refused: Option<Arrived> = None;
        loop {
            let arrived = match self.attempt(body).await {
                Ok(arrived) => arrived,
                // The upstream's own words say more than ours.
                Err(cause) => {
                    return refused.map_or(Err(cause), |arrived| Ok(self.respond(arrived)));
                }
            };
            let again = if arrived.is_limited && retries > 0 { self.again() } else { None };
            let Some(next) = again else { return Ok(self.respond(arrived)) };
            retries -= 1;
            self.state.metrics.retries.fetch_add(1, Ordering::Relaxed);
            body = next;
            refused = Some(arrived);
        }
    }

    /// Waits in line, sends, and waits for the head of the answer.
    async fn attempt(self: &Arc<Self>, body: Body) -> Result<Arrived, Cause> {
        let guard = self.state.guard.as_ref();
        let admit = || guard.map(|guard| guard.admit(self.priority)).transpose();
        // Before the line, not to wait in vain; after it, because only then is it up to date.
        admit().map_err(Cause::Guarded)?;
        let waiting = self.state.labelled.waits(&self.route, self.account.id);
        let permit = self.account.ledger.claim(self.claim()).await.map_err(Cause::Refused)?;
        drop(waiting);
        let suspect = match admit() {
            Ok(suspect) => suspect,
            Err(wait) => {
                permit.cancel();
                return Err(Cause::Guarded(wait));
            }
        };
        self.state.metrics.waited(permit.waited());
        let Some(request) = self.request(body) else {
            permit.cancel();
            return Err(Cause::BadRequest("the target is no path"));
        };
        // It may go on after the client has left, and counts for as long: it holds the place.
        let exchange = Exchange { request: Arc::clone(self), permit, suspect };
        Finish::new(Arc::clone(&self.state), exchange.run(request)).await
    }

    fn claim(&self) -> Claim {
        Claim::new(self.route.clone())
            .client_named(&self.client)
            .weight(self.weight)
            .priority(self.priority)
            .bytes(self.held)
            .patience(self.deadline.saturating_duration_since(Instant::now()))
    }

    fn request(&self, body: Body) -> Option<Request<Body>> {
        let mut request = Request::new(body);
        *request.uri_mut() = self.state.upstream.join(&self.target)?;
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = self.headers.clone();
        Some(request)
    }

    /// The body once more, if it could be kept.
    fn again(&self) -> Option<Body> {
        let chunks = if self.is_bare { Vec::new() } else { self.replay.chunks()? };
        Some(PeekedBody::<Body>::only(chunks).boxed_unsync())
    }

    fn respond(&self, arrived: Arrived) -> Response<Body> {
        let (mut head, body) = arrived.response.into_parts();
        fields::forward_response(&mut head.headers);
        head.version = Version::HTTP_11;
        if let Ok(value) = HeaderValue::try_from(format!("{:.3}", arrived.waited.as_secs_f64())) {
            head.headers.insert(WAITED, value);
        }
        let timed = TimedBody::new(body, self.state.settings.idle_timeout);
        Response::from_parts(head, timed.holding(Arc::clone(&self.place)).boxed_unsync())
    }

    fn retries_max(&self) -> u32 {
        self.state.settings.retries_max
    }
}
