//! The future of a limited request: passing, refused, or still to be decided.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::gate::{Gate, Later, Passage};
use crate::{Bodies, Body, Head, ResponseHead};

pin_project! {
    /// The response to come.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the inner call. Units already taken stay taken; a reserved cost stays
    /// charged, and a permit is given back.
    pub struct ResponseFuture<S, B, W>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B>,
        bodies: PhantomData<fn() -> W>,
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
    gate: Arc<Gate>,
    service: S,
    request: Option<Request<B>>,
}

impl<S, B, W> ResponseFuture<S, B, W>
where
    S: Service<Request<B>>,
{
    #[inline(always)]
    fn new(state: State<S, B>) -> Self {
        Self { state, bodies: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn passing(inner: S::Future, passage: Option<Passage>) -> Self {
        Self::new(State::Passing { inner, passage })
    }

    pub(crate) fn refused(response: Response<Bytes>) -> Self {
        Self::new(State::Refused { response: Some(response) })
    }

    pub(crate) fn deciding(
        decision: Later,
        gate: Arc<Gate>,
        service: S,
        request: Request<B>,
    ) -> Self {
        let deferred = Box::new(Deferred { decision, gate, service, request: Some(request) });
        Self::new(State::Deciding { deferred })
    }
}

/// Calls the inner service with a request that passed.
///
/// Inlined, like what it is used by: requests and futures are large, and each call that is not
/// copies them once more.
#[inline(always)]
pub(crate) fn call<S, B>(
    service: &mut S,
    mut request: Request<B>,
    passage: Option<&Passage>,
) -> S::Future
where
    S: Service<Request<B>>,
{
    if let Some(meter) = passage.and_then(Passage::meter) {
        request.extensions_mut().insert(meter.clone());
    }
    service.call(request)
}

impl<S, B, R, W> Future for ResponseFuture<S, B, W>
where
    S: Service<Request<B>, Response = Response<R>>,
    W: Bodies<R>,
{
    type Output = Result<Response<W::Limited>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProj::Passing { inner, passage } => {
                    let response = ready!(inner.poll(context))?;
                    return Poll::Ready(Ok(finish::<R, W>(response, passage.take())));
                }
                StateProj::Refused { response } => {
                    let response = response.take().expect("polled after it was ready");
                    let limited = |bytes| W::limited(Body::refusal(bytes));
                    return Poll::Ready(Ok(response.map(limited)));
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
                let inner = call(&mut self.service, request, passage.as_ref());
                State::Passing { inner, passage }
            }
            Err(refused) => {
                let response = self.gate.refuse(&Head::of(&request), &refused);
                State::Refused { response: Some(response) }
            }
        })
    }
}

/// Writes the header fields of a response and settles, or arranges to settle, what it cost.
fn finish<R, W: Bodies<R>>(
    mut response: Response<R>,
    passage: Option<Passage>,
) -> Response<W::Limited> {
    let plain = |body| W::limited(Body::plain(body));
    let Some(Passage { gate, limits, told, open }) = passage else {
        return response.map(plain);
    };
    gate.tell(limits, told.snapshots(), None, response.headers_mut());
    let Some(mut open) = open else { return response.map(plain) };
    open.begin_response(&ResponseHead::of(&response));
    if gate.plan.until_end() {
        return response.map(|body| W::limited(Body::held(body, open)));
    }
    drop(open);
    response.map(plain)
}
