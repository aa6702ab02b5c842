//! One exchange with the upstream, up to the head of its answer, and what is learned from it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use http::response::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::body::{Body, PeekedBody, TimedBody};
use crate::forward::ForwardedRequest;
use crate::guard::Suspect;
use crate::labelled::RequestRows;
use crate::refusal::Cause;
use crate::upload::LentBody;
use crate::usage::UsageBody;
use tollway_http::connect::{reason_of, was_not_sent};
use tollway_upstream::budget::{Correction, Permit};
use tollway_upstream::message;
use tollway_upstream::profile::{Observation, Usage};

/// How much of a refusal's body is read before the next try, and for how long.
const REFUSAL_BYTES_MAX: u64 = 64 << 10;
const REFUSAL_WITHIN: Duration = Duration::from_secs(1);

/// A request that may be sent now.
pub(super) struct Exchange {
    pub(super) request: Arc<ForwardedRequest>,
    pub(super) permit: Permit,
    pub(super) suspect: Option<Suspect>,
    pub(super) rows: RequestRows,
}

/// The head of an answer; its body is still to come.
pub(super) struct Arrived {
    pub(super) response: Response<Body>,
    pub(super) is_limited: bool,
    pub(super) waited: Duration,
}

impl Exchange {
    pub(super) async fn run(self, request: Request<LentBody>) -> Result<Arrived, Cause> {
        let started = Instant::now();
        let forwarded = &self.request;
        let state = &forwarded.state;
        let response = match forwarded.head(request).await {
            Ok(response) => response,
            Err(cause) => {
                // Nothing was sent: nothing was counted. Else the permit's end says it may have
                // been.
                if cause == Cause::NoConnection {
                    self.permit.cancel();
                }
                return Err(cause);
            }
        };
        state.events.upstream_answered();
        state.reachability.answered();
        let waited = self.permit.waited();
        let (head, body) = response.into_parts();
        let status = head.status.as_u16();
        let wanted = state.profile.body_wanted(status, &message::lines(&head.headers));
        let body = TimedBody::new(body, state.settings.idle_timeout);
        let peeked = PeekedBody::read(body, wanted).await;
        let beginning = peeked.as_ref().map(PeekedBody::beginning).unwrap_or_default();
        let observation = message::read(&state.profile, status, &head.headers, &beginning);
        state.metrics.answered(&observation, started.elapsed());
        let (route, id) = (&forwarded.route, forwarded.account.id);
        state.labelled.answered(route, id, &self.rows, &observation, waited);
        // Before the body has arrived: others wait for what the head says.
        self.permit.complete(&observation);
        forwarded.learn(head.status, &observation).await;
        drop(self.suspect);
        let mut body = peeked.map_err(|_| Cause::Broken)?;
        if observation.is_limited() {
            // Its connection is free for others while this request waits for its next turn.
            let small = body.fill(|bytes| bytes < REFUSAL_BYTES_MAX);
            let read = tokio::time::timeout(REFUSAL_WITHIN, small).await;
            read.unwrap_or(Ok(())).map_err(|_| Cause::Broken)?;
        }
        let body = forwarded.settled(&head, &observation, started, body);
        let response = Response::from_parts(head, body);
        Ok(Arrived { response, is_limited: observation.is_limited(), waited })
    }
}

impl ForwardedRequest {
    /// The head of the answer, in time: counted from when the upload last moved.
    async fn head(&self, request: Request<LentBody>) -> Result<Response<Incoming>, Cause> {
        let patience = self.state.settings.head_timeout;
        let started = Instant::now();
        let state = &self.state;
        let pool = if self.is_upgrade { &state.upgrade_pool } else { &state.pool };
        let answer = pool.request(request);
        tokio::pin!(answer);
        loop {
            let until = self.upload.moved_at().max(started) + patience;
            match tokio::time::timeout_at(until, &mut answer).await {
                Ok(Ok(response)) => {
                    let is_switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
                    // Nobody asked for it.
                    let is_broken = is_switched && !self.is_upgrade;
                    return if is_broken { Err(Cause::Broken) } else { Ok(response) };
                }
                Ok(Err(error)) if was_not_sent(&error) => {
                    // One that was kept and closed meanwhile says nothing about the upstream.
                    if error.is_connect() {
                        self.state.reachability.failed();
                        self.state.events.upstream_failed(&reason_of(&error));
                    }
                    return Err(Cause::NoConnection);
                }
                Ok(Err(_)) => return Err(Cause::Broken),
                Err(_) if self.upload.moved_at().max(started) + patience <= Instant::now() => {
                    return Err(Cause::Late);
                }
                Err(_) => {}
            }
        }
    }

    /// Tells the ledger what the request really took, by the head of its answer or by the end of
    /// its body, which is returned.
    fn settled(
        &self,
        head: &Parts,
        observation: &Observation,
        left: Instant,
        body: PeekedBody<TimedBody<Incoming>>,
    ) -> Body {
        if !self.state.profile.tells_usage() {
            return body.boxed_unsync();
        }
        let (profile, lines) = (Arc::clone(&self.state.profile), message::lines(&head.headers));
        let (account, claim) = (Arc::clone(&self.account), self.claim());
        let observed = observation.clone();
        let correct = move |usage: &Usage| {
            if let Some(it) = Correction::of(&claim, &observed, usage, left.elapsed()) {
                account.ledger.correct(&it);
            }
        };
        correct(&profile.usage_in_head(&lines));
        if !profile.usage_is_in_body(head.status.as_u16(), &lines, observation) {
            return body.boxed_unsync();
        }
        let tell = move |end: &[u8]| correct(&profile.usage_in_body(end));
        UsageBody::new(body, tell).boxed_unsync()
    }

    /// What an answer teaches beside the budgets.
    async fn learn(&self, status: StatusCode, observation: &Observation) {
        let settings = &self.state.settings;
        let template = self.route.template();
        let has_own_token = settings.missing_under.iter().any(|it| template.starts_with(it));
        // A token in the path, of a webhook or an interaction, says nothing about the credential.
        let is_telling = self.has_credential
            && !has_own_token
            && !self.route.is_exempt()
            && !status.is_server_error()
            && !observation.is_limited();
        if is_telling {
            let verdict = self.account.judge(status == StatusCode::UNAUTHORIZED, settings);
            self.state.events.verdict(self.account.id, verdict);
        }
        let is_missing = status == StatusCode::NOT_FOUND && has_own_token;
        if is_missing {
            let method = self.method.as_str();
            self.state.missing.remember(method, &self.target, settings.missing_for);
        }
        let counts = observation.invalid || is_missing;
        let Some(guard) = self.state.guard.as_ref().filter(|_| counts) else { return };
        if guard.count().await.is_err() {
            match self.state.store.get() {
                Some(store) => store.failed(),
                None => _ = self.state.metrics.store_errors.fetch_add(1, Ordering::Relaxed),
            }
        }
    }
}

/// A future that goes on by itself if nobody waits for it any more.
pub(super) struct Finish<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T: Send + 'static> Finish<T> {
    pub(super) fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { future: Some(Box::pin(future)) }
    }
}

impl<T: Send + 'static> Future for Finish<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(future) = self.future.as_mut() else { return Poll::Pending };
        let polled = future.as_mut().poll(context);
        if polled.is_ready() {
            self.future = None;
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Finish<T> {
    fn drop(&mut self) {
        let Some(future) = self.future.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(future);
        }
    }
}
