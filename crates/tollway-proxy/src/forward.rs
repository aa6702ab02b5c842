//! One request on its way: its wait for a permit, the exchange with the upstream, and the answer.
//!
//! ```text
//!  RequestOptions, room, credential ─► cached 401/404? ─► guard ─► claim ─► Exchange ─► head
//!                                                           ▲                            │ learn
//!                                                           ├── refused, replayable ◄────┤
//!                                 Reachability::wait ───────┴── not sent ◄───────────────┤
//!                                                                               body ◄───┘
//! ```
//!
//! **Again and again.** A refused request is sent again, and so is one of which nothing was sent,
//! as long as its turn comes within its patience. Each further try waits for a permit of its own.
//!
//! A client that leaves while its request waits leaves the queue. If it leaves while the request is
//! under way, the exchange goes on up to the head of the answer and keeps its place: the budget
//! then knows what was counted, and clients that ask and leave at once cannot exceed the bound on
//! requests.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::header::{ACCEPT_ENCODING, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::State;
use crate::body::{Body, TimedBody};
use crate::credential::{Account, CredentialId};
use crate::exchange::{Arrived, Exchange, Finish};
use crate::fields::{self, RequestOptions};
use crate::models::{self, Call, Form, Hold, ModelBudgets};
use crate::refusal::Cause;
use crate::tunnel::{self, Wish};
use crate::upload::{LentBody, ReplayBuffer, Upload};
use tollway_http::RoomGuard;
use tollway_upstream::budget::{Claim, Permit, Priority, Reason};
use tollway_upstream::profile::Route;

/// How long the request stood in line, in seconds.
const WAITED: HeaderName = HeaderName::from_static("x-tollway-waited");
/// How much of a body is read peeked where it decides about the lane.
const LANE_BYTES_MAX: usize = 16 << 10;
/// What a client is told that stops sending in the middle.
const BROKEN_OFF: Cause = Cause::BadRequest(Cow::Borrowed("the body broke off"));

/// Forwards a request, or says why not.
pub(super) async fn forward(
    state: &Arc<State>,
    peer: IpAddr,
    request: Request<Incoming>,
) -> Result<Response<Body>, Cause> {
    let mut departure = Departure(Some(state));
    let outcome = async {
        let mut forwarded = ForwardedRequest::prepare(state, peer, request).await?;
        let first = forwarded.first_body().await?;
        Arc::new(forwarded).run(first).await
    };
    let outcome = outcome.await;
    departure.0 = None;
    outcome
}

/// Counts a client that leaves before its request is answered: then nobody polls any more.
struct Departure<'s>(Option<&'s State>);

impl Drop for Departure<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.0 {
            state.metrics.client_gone();
        }
    }
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
    /// What it says that it takes, by dimensions.
    costs: Vec<(usize, u32)>,
    client: String,
    weight: u32,
    pub(super) has_credential: bool,
    started: Instant,
    deadline: Instant,
    place: Arc<RoomGuard>,
    held: u64,
    pub(super) upload: Upload,
    /// Whether it asks to go on with another protocol.
    pub(super) is_upgrade: bool,
    wish: Mutex<Option<Wish>>,
    /// What a call of a model holds of its budgets.
    hold: Mutex<Option<Hold>>,
}

impl ForwardedRequest {
    async fn prepare(
        state: &Arc<State>,
        peer: IpAddr,
        mut request: Request<Incoming>,
    ) -> Result<Self, Cause> {
        let started = Instant::now();
        let wish = Wish::of(&mut request, &state.tunnels).map_err(|_| Cause::Full)?;
        let (mut head, body) = request.into_parts();
        if head.method == Method::CONNECT {
            return Err(Cause::NoTunnel);
        }
        // Two would be read differently by the upstream than here, and none is no HTTP/1.1.
        let hosts = head.headers.get_all(HOST).iter().count();
        if hosts > 1 || (hosts == 0 && head.version == Version::HTTP_11) {
            return Err(Cause::BadRequest("one Host field is needed".into()));
        }
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        if !target.starts_with('/') {
            return Err(Cause::BadRequest("the target is no path".into()));
        }
        let options =
            RequestOptions::take(&mut head.headers, &state.profile).map_err(Cause::BadRequest)?;
        let held = fields::head_bytes(&target, &head.headers);
        let place = state.room.enter(held).ok_or(Cause::Full)?;
        let settings = &state.settings;
        let id = CredentialId::of(&head.headers, &settings.credential_fields)
            .map_err(|_| Cause::BadRequest("a credential is shown more than once".into()))?;
        let patience = options.patience.unwrap_or(settings.patience);
        let account = state.accounts.get(id, patience).await.map_err(Cause::from)?;
        let shown = |name: &HeaderName| head.headers.contains_key(name);
        let has_credential = settings.credential_fields.iter().any(shown);
        fields::forward_request(&mut head.headers, &settings.credential_fields);
        let client = options.client.unwrap_or_else(|| peer.to_string());
        let weight = settings.weights.get(&client).copied().unwrap_or(1);
        let is_on_demand = head.headers.contains_key(EXPECT);
        let place = Arc::new(place);
        let replay = ReplayBuffer::new(settings.replay_bytes_max, Arc::clone(&place));
        let idle = settings.idle_timeout;
        let upload = Upload::new(body, idle, replay, is_on_demand, &state.discards);
        let forwarded = Self {
            route: state.profile.route(head.method.as_str(), &target),
            account,
            method: head.method,
            target,
            headers: head.headers,
            priority: options.priority,
            costs: options.costs,
            client,
            weight,
            has_credential,
            started,
            deadline: started + patience,
            place,
            held,
            upload,
            is_upgrade: wish.is_some(),
            wish: Mutex::new(wish),
            hold: Mutex::new(None),
            state: Arc::clone(state),
        };
        forwarded.look_up()?;
        Ok(forwarded)
    }

    /// What is known to fail is not sent.
    fn look_up(&self) -> Result<(), Cause> {
        if let Err(wait) = self.account.admit(self.state.settings.head_timeout) {
            return Err(Cause::Unauthorized(wait));
        }
        let missing = self.state.missing.left(self.method.as_str(), &self.target);
        missing.map_or(Ok(()), |left| Err(Cause::Missing(left)))
    }

    /// The body as it is sent first; its beginning decides about lanes.
    async fn first_body(&mut self) -> Result<LentBody, Cause> {
        let mut body = self.upload.lend().ok_or(Cause::Broken)?;
        let (profile, method) = (&self.state.profile, self.method.as_str());
        if profile.body_lanes(method, &self.target) {
            let beginning = body.peek(LANE_BYTES_MAX).await.map_err(|_| BROKEN_OFF)?;
            self.route = profile.route_with_body(method, &self.target, &beginning);
            self.held += beginning.len() as u64;
        }
        if let Some(models) = self.state.models.clone() {
            self.admit_call(&models, &mut body).await?;
        }
        Ok(body)
    }

    /// Reserves what a call of a model is expected to use.
    async fn admit_call(
        &mut self,
        models: &Arc<ModelBudgets>,
        body: &mut LentBody,
    ) -> Result<(), Cause> {
        let Some((form, model)) = Form::of(self.method.as_str(), &self.target) else {
            return Ok(());
        };
        let whole = body.peek_whole(models.body_bytes_max()).await.map_err(|_| BROKEN_OFF)?;
        let pieces = whole.ok_or(Cause::TooLarge)?;
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        // What is kept for another try is counted already.
        let is_counted = bytes <= self.state.settings.replay_bytes_max as u64;
        if !is_counted && !self.place.extend(bytes) {
            return Err(Cause::Full);
        }
        let call = Call::read(form, model, &pieces);
        let call = call.map_err(|wrong| Cause::BadRequest(wrong.0.into()))?;
        let hold = models.admit(call, &self.headers, self.account.id, self.deadline).await;
        let hold = hold.map_err(|denial| Cause::Budget(form, Box::new(denial)))?;
        if hold.is_some() {
            // What is packed cannot be counted.
            self.headers.remove(ACCEPT_ENCODING);
        }
        *self.hold.get_mut().unwrap_or_else(PoisonError::into_inner) = hold;
        Ok(())
    }

    fn hold(&self) -> MutexGuard<'_, Option<Hold>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self: Arc<Self>, first: LentBody) -> Result<Response<Body>, Cause> {
        let mut body = first;
        let mut refused: Option<Arrived> = None;
        for tries in 1.. {
            let outcome = self.attempt(body).await;
            let next = if self.may_try_again(&outcome, tries) { self.upload.lend() } else { None };
            body = match (outcome, next) {
                (Ok(arrived), None) => return Ok(self.respond(arrived)),
                (Ok(arrived), Some(next)) => {
                    self.state.metrics.retries.fetch_add(1, Ordering::Relaxed);
                    refused = Some(arrived);
                    next
                }
                // The upstream's own words say more than ours.
                (Err(cause), None) => {
                    return refused.map_or(Err(cause), |arrived| Ok(self.respond(arrived)));
                }
                (Err(_), Some(next)) => next,
            };
        }
        Err(Cause::Broken)
    }

    /// Whether another try could end otherwise, and there is time for one.
    fn may_try_again(&self, outcome: &Result<Arrived, Cause>, tries: u32) -> bool {
        let is_worthwhile = match outcome {
            Ok(arrived) => arrived.is_limited,
            Err(cause) => *cause == Cause::NoConnection && Instant::now() < self.deadline,
        };
        let seconds = u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX);
        let tries_max = self.state.settings.retries_max.saturating_add(seconds);
        is_worthwhile && tries <= tries_max
    }

    /// Waits in line, sends, and waits for the head of the answer.
    async fn attempt(self: &Arc<Self>, mut body: LentBody) -> Result<Arrived, Cause> {
        let guard = self.state.guard.as_ref();
        let admit = || guard.map(|guard| guard.admit(self.priority)).transpose();
        // Before the line, not to wait in vain; after it, because only then is it up to date.
        admit().map_err(Cause::Guarded)?;
        let rows = self.state.labelled.rows(&self.route, self.account.id);
        let waiting = rows.wait();
        let permit = self.permit(&mut body).await?;
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
            return Err(Cause::BadRequest("the target is no path".into()));
        };
        // It may go on after the client has left, and counts for as long: it holds the place.
        let exchange = Exchange { request: Arc::clone(self), permit, suspect, rows };
        let Some(()) = self.hold().as_mut().map(|hold| hold.sent(true)) else {
            return Finish::new(exchange.run(request)).await;
        };
        // A model that nobody listens to would go on at somebody's cost: it ends with its client.
        let outcome = exchange.run(request).await;
        if matches!(outcome, Err(Cause::NoConnection)) {
            let _ = self.hold().as_mut().map(|hold| hold.sent(false));
        }
        outcome
    }

    /// Waits for the upstream to be there, and for a permit, while the client sends its body.
    async fn permit(&self, body: &mut LentBody) -> Result<Permit, Cause> {
        let reachability = &self.state.reachability;
        let waiting = async {
            loop {
                if !reachability.wait(self.deadline).await {
                    return Err(Cause::NoConnection);
                }
                let permit = self.account.ledger.claim(self.claim()).await;
                let permit = permit.map_err(|refusal| {
                    let is_late = refusal.reason == Reason::Patience;
                    // Its turn would have come, were the upstream there.
                    let is_away = is_late && !reachability.is_up();
                    if is_away { Cause::NoConnection } else { Cause::Refused(refusal) }
                })?;
                if reachability.is_up() {
                    return Ok(permit);
                }
                permit.cancel();
            }
        };
        tokio::pin!(waiting);
        tokio::select! {
            biased;
            permit = &mut waiting => permit,
            read = body.read_ahead() => match read {
                Ok(()) => waiting.await,
                Err(_) => Err(BROKEN_OFF),
            },
        }
    }

    pub(super) fn claim(&self) -> Claim {
        let claim = Claim::new(self.route.clone());
        let costs = self.costs.iter();
        costs
            .fold(claim, |claim, (dimension, units)| claim.cost(*dimension, *units))
            .client_named(&self.client)
            .weight(self.weight)
            .priority(self.priority)
            .bytes(self.held)
            .patience(self.deadline.saturating_duration_since(Instant::now()))
    }

    fn request(&self, body: LentBody) -> Option<Request<LentBody>> {
        let mut request = Request::new(body);
        *request.uri_mut() = self.state.upstream.join(&self.target)?;
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = self.headers.clone();
        if self.is_upgrade {
            tunnel::insert_fields(request.headers_mut());
        }
        Some(request)
    }

    /// Goes on with what the client asked for; the tunnel keeps the request's place.
    fn tunnel(&self, upstream: hyper::upgrade::OnUpgrade) {
        let wish = self.wish.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(wish) = wish else { return };
        let (place, stopping) = (Arc::clone(&self.place), self.state.stopping.clone());
        let idle = self.state.settings.tunnel_idle;
        tokio::spawn(async move {
            wish.run(upstream, idle, stopping).await;
            drop(place);
        });
    }

    fn respond(&self, arrived: Arrived) -> Response<Body> {
        self.upload.forget();
        let mut response = arrived.response;
        let is_switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if is_switched {
            self.tunnel(hyper::upgrade::on(&mut response));
        }
        let (mut head, body) = response.into_parts();
        fields::forward_response(&mut head.headers);
        if is_switched {
            tunnel::insert_fields(&mut head.headers);
        }
        head.version = Version::HTTP_11;
        if let Ok(value) = HeaderValue::try_from(format!("{:.3}", arrived.waited.as_secs_f64())) {
            head.headers.insert(WAITED, value);
        }
        let body = match self.hold().take() {
            Some(hold) => models::metered(hold, &head, body),
            None => body,
        };
        let timed = TimedBody::new(body, self.state.settings.idle_timeout);
        Response::from_parts(head, timed.holding(Arc::clone(&self.place)).boxed_unsync())
    }
}
