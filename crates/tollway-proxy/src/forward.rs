//! One request on its way: in line, to the upstream, and its answer back.
//!
//! ```text
//!  head ─► wish, room, credential ─► cached 401/404? ─► guard ─► claim ─► dispatch ─► head of answer
//!                                                        ▲                              │ learn
//!                                                        └── refused, replayable ◄──────┤
//!                                                                             body ◄────┘
//! ```
//!
//! Who gives up while waiting leaves the line. Who gives up while the request is under way leaves
//! it to finish by itself, up to the head of its answer, and in its place: the budget then knows what
//! was counted, and whoever asks and leaves makes no room.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, Version};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::Instant;

use crate::State;
use crate::answer::Cause;
use crate::body::{Ahead, Body, Tape, Timed};
use crate::credential::{Account, CredentialId};
use crate::exchange::{Arrived, Exchange, Finish};
use crate::fields::{self, Wish};
use tollway_http::RoomGuard;
use tollway_upstream::budget::{Claim, Priority};
use tollway_upstream::profile::Route;

/// How long the request stood in line, in seconds.
const WAITED: HeaderName = HeaderName::from_static("x-tollway-waited");
/// How much of a body is read ahead where it decides about the lane.
const LANE_BYTES_MAX: usize = 16 << 10;

/// Forwards a request, or says why not.
pub(super) async fn forward(
    state: &Arc<State>,
    peer: IpAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Cause> {
    let (mut trip, body) = Trip::prepare(state, peer, request).await?;
    let first = trip.upload(body).await?;
    trip.run(first).await
}

/// A request on its way.
struct Trip {
    state: Arc<State>,
    account: Arc<Account>,
    method: Method,
    target: String,
    /// As they are sent on.
    headers: HeaderMap,
    route: Route,
    priority: Priority,
    client: (u64, u32),
    has_credential: bool,
    deadline: Instant,
    place: Arc<RoomGuard>,
    held: u64,
    tape: Tape,
    /// There is no body at all.
    is_bare: bool,
}

impl Trip {
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
        let wish = Wish::take(&mut head.headers).map_err(Cause::BadRequest)?;
        let held = fields::head_bytes(&target, &head.headers);
        let place = state.room.enter(held).ok_or(Cause::Full)?;
        let settings = &state.settings;
        let id = CredentialId::of(&head.headers, &settings.credential_fields)
            .map_err(|_| Cause::BadRequest("a credential is shown more than once"))?;
        let patience = wish.patience.unwrap_or(settings.patience);
        let account = state.accounts.get(id, patience).await.map_err(Cause::from)?;
        let shown = |name: &HeaderName| head.headers.contains_key(name);
        let has_credential = settings.credential_fields.iter().any(shown);
        fields::forward_request(&mut head.headers, &settings.credential_fields);
        let client = wish.client.unwrap_or_else(|| peer.to_string());
        let weight = settings.weights.get(&client).copied().unwrap_or(1);
        let trip = Self {
            route: state.profile.route(head.method.as_str(), &target),
            account,
            method: head.method,
            target,
            headers: head.headers,
            priority: wish.priority,
            client: (number(&client), weight),
            has_credential,
            deadline: started + patience,
            place: Arc::new(place),
            held,
            tape: Tape::new(settings.replay_bytes_max),
            is_bare: body.is_end_stream(),
            state: Arc::clone(state),
        };
        trip.look_up()?;
        Ok((trip, body))
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
        let timed = Timed::new(body, settings.idle_timeout);
        let kept = settings.replay_bytes_max as u64;
        // Without room for a copy it is sent once only.
        let is_recorded = !self.is_bare && self.retries_max() > 0 && self.place.extend(kept);
        let tape = self.tape.clone();
        let record =
            |timed: Timed<Incoming>| if is_recorded { timed.recorded(tape) } else { timed };
        if self.is_bare || !self.state.profile.body_lanes(self.method.as_str(), &self.target) {
            return Ok(record(timed).boxed_unsync());
        }
        let ahead = Ahead::read(record(timed), LANE_BYTES_MAX).await;
        let ahead = ahead.map_err(|_| Cause::BadRequest("the body broke off"))?;
        let (method, beginning) = (self.method.as_str(), ahead.beginning());
        self.route = self.state.profile.route_with_body(method, &self.target, &beginning);
        self.held += beginning.len() as u64;
        Ok(ahead.boxed_unsync())
    }

    async fn run(self, first: Body) -> Result<Response<Body>, Cause> {
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
    async fn attempt(&self, body: Body) -> Result<Arrived, Cause> {
        let guard = self.state.guard.as_ref();
        let admit = || guard.map(|guard| guard.admit(self.priority)).transpose();
        // Before the line, not to wait in vain; after it, because only then is it up to date.
        admit().map_err(Cause::Guarded)?;
        let permit = self.account.ledger.claim(self.claim()).await.map_err(Cause::Refused)?;
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
        let exchange = Exchange {
            state: Arc::clone(&self.state),
            account: Arc::clone(&self.account),
            route: self.route.clone(),
            target: self.target.clone(),
            has_credential: self.has_credential,
            permit,
            suspect,
            tape: self.tape.clone(),
        };
        // It may go on after the client has left, and counts for as long.
        let place = Arc::clone(&self.place);
        let exchange = async move {
            let arrived = exchange.run(request).await;
            drop(place);
            arrived
        };
        Finish::new(Arc::clone(&self.state), exchange).await
    }

    fn claim(&self) -> Claim {
        let (client, weight) = self.client;
        Claim::new(self.route.clone())
            .client(client)
            .weight(weight)
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
        let chunks = if self.is_bare { Vec::new() } else { self.tape.replay()? };
        Some(Ahead::<Body>::only(chunks).boxed_unsync())
    }

    fn respond(&self, arrived: Arrived) -> Response<Body> {
        let (mut head, body) = arrived.response.into_parts();
        fields::forward_response(&mut head.headers);
        head.version = Version::HTTP_11;
        if let Ok(value) = HeaderValue::try_from(format!("{:.3}", arrived.waited.as_secs_f64())) {
            head.headers.insert(WAITED, value);
        }
        let timed = Timed::new(body, self.state.settings.idle_timeout);
        Response::from_parts(head, timed.holding(Arc::clone(&self.place)).boxed_unsync())
    }

    fn retries_max(&self) -> u32 {
        self.state.settings.retries_max
    }
}

/// A number for a client's name, the same in every process (FNV-1a).
fn number(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |number, byte| {
        (number ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
