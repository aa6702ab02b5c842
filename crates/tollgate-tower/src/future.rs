//! The future of a limited request: passing, refused, or still to be decided.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::gate::{Gate, Later, Passage};
use crate::{Body, Head, ResponseHead};

pin_project! {
    /// The response to come.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the inner call. Units already taken stay taken; a reserved cost stays
    /// charged, and a permit is given back.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B>
    where
        S: Service<Request<B>>,
    {
        Passing { #[pin] inner: S::Future, passage: Option<Passage> },
        Refused { response: Option<Response<Bytes>> },
        Deciding { deferred: Box<Deferred<S, B>> },
    }
}

/// A request that waits for its decision, and the service that will get it.
struct Deferred<S, B> {
    decision: Later,
    gate: std::sync::Arc<Gate>,
    service: S,
    request: Option<Request<B>>,
}

impl<S, B> ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(crate) fn passing(inner: S::Future, passage: Option<Passage>) -> Self {
        Self { state: State::Passing { inner, passage } }
    }

    pub(crate) fn refused(response: Response<Bytes>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
    }

    pub(crate) fn deciding(
        decision: Later,
        gate: std::sync::Arc<Gate>,
        service: S,
        request: Request<B>,
    ) -> Self {
        let deferred = Box::new(Deferred { decision, gate, service, request: Some(request) });
        Self { state: State::Deciding { deferred } }
    }
}

/// Calls the inner service with a request that passed.
pub(crate) fn call<S, B>(service: &mut S, mut request: Request<B>, passage: &Passage) -> S::Future
where
    S: Service<Request<B>>,
{
    if let Some(meter) = passage.meter() {
        request.extensions_mut().insert(meter.clone());
    }
    service.call(request)
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<Body<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Passing { inner, passage } => {
                    let response = ready!(inner.poll(context))?;
                    return Poll::Ready(Ok(finish(response, passage.take())));
                }
                StateProj::Refused { response } => {
                    let response = response.take().expect("polled after it was ready");
                    return Poll::Ready(Ok(response.map(Body::refusal)));
                }
                StateProj::Deciding { deferred } => ready!(deferred.poll_decision(context)),
            };
            state.set(next);
        }
    }
}

impl<S, B> Deferred<S, B>
where
    S: Service<Request<B>>,
{
    fn poll_decision(&mut self, context: &mut Context<'_>) -> Poll<State<S, B>> {
        let decision = ready!(self.decision.as_mut().poll(context));
        let request = self.request.take().expect("decided once");
        Poll::Ready(match decision {
            Ok(passage) => {
                let inner = call(&mut self.service, request, &passage);
                State::Passing { inner, passage: Some(passage) }
            }
            Err(refused) => {
                let response = self.gate.refuse(&Head::of(&request), &refused);
                State::Refused { response: Some(response) }
            }
        })
    }
}

/// Writes the header fields of a response and settles, or arranges to settle, what it cost.
fn finish<R>(mut response: Response<R>, passage: Option<Passage>) -> Response<Body<R>> {
    let Some(Passage { gate, limits, verdict, open }) = passage else {
        return response.map(Body::plain);
    };
    if let Some(verdict) = &verdict {
        let clock = &**gate.limiter.clock();
        gate.reply.write(&gate.limits, limits, verdict, clock, response.headers_mut());
    }
    let Some(mut open) = open else { return response.map(Body::plain) };
    open.begin_response(&ResponseHead::of(&response));
    if gate.plan.until_end() {
        return response.map(|body| Body::held(body, open));
    }
    drop(open);
    response.map(Body::plain)
}
