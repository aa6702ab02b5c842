//! Budgets as a tower layer around an HTTP client.

use std::error::Error as StdError;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::ClientSettings;
use crate::budget::Refusal;
use crate::message;

/// Makes a client keep to its budgets. One layer per credential; clones share the budgets.
///
/// Requests are told apart by method and path; a [`ClaimOptions`](super::ClaimOptions) in their
/// extensions says how long they can wait and how urgent they are.
#[derive(Clone, Debug)]
pub struct BudgetLayer<R = NoReplay> {
    settings: ClientSettings,
    replay: R,
}

/// A client that keeps to its budgets.
#[derive(Clone, Debug)]
pub struct Budgeted<S, R = NoReplay> {
    inner: S,
    settings: ClientSettings,
    replay: R,
}

/// How to send a body once more.
pub trait Replay<B> {
    /// The same body again, if it can be had.
    fn again(&self, body: &B) -> Option<B>;
}

/// No body can be sent twice: refusals go to the caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReplay;

/// Bodies are cloned, which for bytes in memory is cheap.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneBody;

/// Why a request brought no response.
#[derive(Debug)]
pub enum Error<E> {
    /// It was not sent.
    Refused(Refusal),
    /// The client failed.
    Inner(E),
}

impl BudgetLayer {
    /// A layer that never sends a request twice.
    #[must_use]
    pub const fn new(settings: ClientSettings) -> Self {
        Self { settings, replay: NoReplay }
    }

    /// A layer that sends refused requests again, with a clone of their body.
    #[must_use]
    pub fn replaying(self) -> BudgetLayer<CloneBody> {
        BudgetLayer { settings: self.settings, replay: CloneBody }
    }
}

impl<B> Replay<B> for NoReplay {
    fn again(&self, _: &B) -> Option<B> {
        None
    }
}

impl<B: Clone> Replay<B> for CloneBody {
    fn again(&self, body: &B) -> Option<B> {
        Some(body.clone())
    }
}

impl<S, R: Clone> Layer<S> for BudgetLayer<R> {
    type Service = Budgeted<S, R>;

    fn layer(&self, inner: S) -> Budgeted<S, R> {
        Budgeted { inner, settings: self.settings.clone(), replay: self.replay.clone() }
    }
}

impl<S, R, B, A> Service<Request<B>> for Budgeted<S, R>
where
    S: Service<Request<B>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    R: Replay<B> + Clone + Send + 'static,
    B: Send + 'static,
    A: Send + 'static,
{
    type Response = Response<A>;
    type Error = Error<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Response<A>, Error<S::Error>>> + Send>>;

    /// Always ready: asking the inner client now would keep one of its slots while waiting here.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let this = self.clone();
        Box::pin(this.send(request))
    }
}

impl<S, R> Budgeted<S, R> {
    async fn send<B, A>(mut self, mut request: Request<B>) -> Result<Response<A>, Error<S::Error>>
    where
        S: Service<Request<B>, Response = Response<A>>,
        R: Replay<B>,
    {
        let route = self.settings.profile.route(request.method().as_str(), target(&request));
        let attempts = self.settings.attempts(request.extensions().get(), route);
        let mut attempts = attempts.map_err(Error::Refused)?;
        loop {
            let permit = match attempts.permit().await {
                Ok(permit) => permit,
                Err(instead) => return instead.map_err(Error::Refused),
            };
            if let Err(error) = poll_fn(|context| self.inner.poll_ready(context)).await {
                permit.cancel();
                return Err(Error::Inner(error));
            }
            let spare = attempts.spare(|| copy(&request, &self.replay));
            let response = self.inner.call(request).await.map_err(Error::Inner)?;
            let status = response.status().as_u16();
            let observation =
                message::read(&self.settings.profile, status, response.headers(), &[]);
            let lines = message::lines(response.headers());
            let usage = self.settings.profile.usage_in_head(&lines);
            request = match attempts.settle(permit, (&observation, &usage), response, spare) {
                Ok(next) => next,
                Err(response) => return Ok(response),
            };
        }
    }
}

fn target<B>(request: &Request<B>) -> &str {
    request.uri().path_and_query().map_or("/", |target| target.as_str())
}

/// The same request once more, if its body can be had again.
fn copy<B, R: Replay<B>>(request: &Request<B>, replay: &R) -> Option<Request<B>> {
    let mut copy = Request::new(replay.again(request.body())?);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "not sent: {refusal}"),
            Self::Inner(error) => error.fmt(f),
        }
    }
}

impl<E: StdError + 'static> StdError for Error<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Inner(error) => Some(error),
        }
    }
}
