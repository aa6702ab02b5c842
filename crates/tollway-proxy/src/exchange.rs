//! One exchange with the upstream, up to the head of its answer, and what is learned from it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::State;
use crate::answer::Cause;
use crate::body::{Ahead, Body, Tape, Timed};
use crate::credential::{Account, LockTerms};
use crate::guard::Suspect;
use tollway_http::connect::was_not_sent;
use tollway_upstream::budget::Permit;
use tollway_upstream::message;
use tollway_upstream::profile::{Observation, Route};

/// A request that may be sent now.
pub(super) struct Exchange {
    pub(super) state: Arc<State>,
    pub(super) account: Arc<Account>,
    pub(super) route: Route,
    /// With its query: what a query asks for may be missing while the path is not.
    pub(super) target: String,
    pub(super) has_credential: bool,
    pub(super) permit: Permit,
    pub(super) suspect: Option<Suspect>,
    pub(super) tape: Tape,
}

/// The head of an answer; its body is still to come.
pub(super) struct Arrived {
    pub(super) response: Response<Body>,
    pub(super) is_limited: bool,
    pub(super) waited: Duration,
}

impl Exchange {
    pub(super) async fn run(self, request: Request<Body>) -> Result<Arrived, Cause> {
        let started = Instant::now();
        let method = request.method().clone();
        let response = match self.head(request).await {
            Ok(response) => response,
            Err(cause) => {
                // Nothing was sent: nothing was counted. Else the permit's end says it may have been.
                if cause == Cause::NoConnection {
                    self.permit.cancel();
                }
                return Err(cause);
            }
        };
        let waited = self.permit.waited();
        let (head, body) = response.into_parts();
        let profile = &self.state.profile;
        let wanted = profile.body_wanted(head.status.as_u16(), &message::lines(&head.headers));
        let ahead = Ahead::read(Timed::new(body, self.state.settings.idle_timeout), wanted).await;
        let beginning = ahead.as_ref().map(Ahead::beginning).unwrap_or_default();
        let observation = message::read(profile, head.status.as_u16(), &head.headers, &beginning);
        self.state.metrics.answered(&observation, started.elapsed());
        self.permit.complete(&observation);
        let lessons = Lessons {
            state: &self.state,
            account: &self.account,
            route: &self.route,
            target: &self.target,
            has_credential: self.has_credential,
        };
        lessons.learn(method.as_str(), head.status, &observation).await;
        drop(self.suspect);
        let body = ahead.map_err(|_| Cause::Broken)?;
        let response = Response::from_parts(head, body.boxed_unsync());
        Ok(Arrived { response, is_limited: observation.is_limited(), waited })
    }

    /// The head of the answer, in time: counted from when the upload last moved.
    async fn head(&self, request: Request<Body>) -> Result<Response<Incoming>, Cause> {
        let patience = self.state.settings.head_timeout;
        let started = Instant::now();
        let answer = self.state.pool.request(request);
        tokio::pin!(answer);
        loop {
            let until = self.tape.moved_at().max(started) + patience;
            match tokio::time::timeout_at(until, &mut answer).await {
                Ok(Ok(response)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    return Err(Cause::Broken);
                }
                Ok(Ok(response)) => return Ok(response),
                Ok(Err(error)) if was_not_sent(&error) => return Err(Cause::NoConnection),
                Ok(Err(_)) => return Err(Cause::Broken),
                Err(_) if self.tape.moved_at().max(started) + patience <= Instant::now() => {
                    return Err(Cause::Late);
                }
                Err(_) => {}
            }
        }
    }
}

/// What an answer teaches beside the budgets.
struct Lessons<'a> {
    state: &'a State,
    account: &'a Account,
    route: &'a Route,
    target: &'a str,
    has_credential: bool,
}

impl Lessons<'_> {
    async fn learn(&self, method: &str, status: StatusCode, observation: &Observation) {
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
            let terms = LockTerms {
                strikes_max: settings.unauthorized_max,
                lasting: settings.unauthorized_for,
            };
            self.account.judge(status == StatusCode::UNAUTHORIZED, terms);
        }
        let is_missing = status == StatusCode::NOT_FOUND && has_own_token;
        if is_missing {
            self.state.missing.remember(method, self.target, settings.missing_for);
        }
        let counts = observation.invalid || is_missing;
        let Some(guard) = self.state.guard.as_ref().filter(|_| counts) else { return };
        if guard.count().await.is_err() {
            self.state.metrics.store_errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A future that goes on by itself if nobody waits for it any more.
pub(super) struct Finish<T: Send + 'static> {
    state: Arc<State>,
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T: Send + 'static> Finish<T> {
    pub(super) fn new(state: Arc<State>, future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { state, future: Some(Box::pin(future)) }
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
        self.state.metrics.client_gone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(future);
        }
    }
}
