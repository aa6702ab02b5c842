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
        // What most requests need and no more: frameworks move futures several times.
        #[pin]
        inner: Option<S::Future>,
        rest: Option<Box<Rest<S, B>>>,
        bodies: PhantomData<fn() -> W>,
    }
}

/// What beside the inner future there may be: something to say, or no inner future yet.
enum Rest<S, B> {
    Told(Passage),
    Refused(Response<Bytes>),
    Deciding(Deferred<S, B>),
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
    /// A request that passed, and nothing is to be said about it.
    #[inline(always)]
    pub(crate) fn silent(inner: S::Future) -> Self {
        Self { inner: Some(inner), rest: None, bodies: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn passing(inner: S::Future, passage: Passage) -> Self {
        let rest = Some(Box::new(Rest::Told(passage)));
        Self { inner: Some(inner), rest, bodies: PhantomData }
    }

    pub(crate) fn refused(response: Response<Bytes>) -> Self {
        Self { inner: None, rest: Some(Box::new(Rest::Refused(response))), bodies: PhantomData }
    }

    pub(crate) fn deciding(
        decision: Later,
        gate: Arc<Gate>,
        service: S,
        request: Request<B>,
    ) -> Self {
        let deferred = Deferred { decision, gate, service, request: Some(request) };
        Self { inner: None, rest: Some(Box::new(Rest::Deciding(deferred))), bodies: PhantomData }
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
        let mut this = self.project();
        loop {
            if let Some(inner) = this.inner.as_mut().as_pin_mut() {
                let response = ready!(inner.poll(context))?;
                let passage = match this.rest.take().map(|rest| *rest) {
                    Some(Rest::Told(passage)) => Some(passage),
                    _ => None,
                };
                return Poll::Ready(Ok(finish::<R, W>(response, passage)));
            }
            if let Some(Rest::Deciding(deferred)) = this.rest.as_deref_mut() {
                let (inner, rest) = ready!(deferred.poll_decision(context));
                this.inner.set(inner);
                *this.rest = rest.map(Box::new);
                continue;
            }
            let Some(Rest::Refused(response)) = this.rest.take().map(|rest| *rest) else {
                unreachable!("polled after it was ready");
            };
            let limited = |bytes| W::limited(Body::refusal(bytes));
            return Poll::Ready(Ok(response.map(limited)));
        }
    }
}

/// What a decision makes of a future: an inner call, or a refusal.
type Decided<F, S, B> = (Option<F>, Option<Rest<S, B>>);

impl<S, B> Deferred<S, B>
where
    S: Service<Request<B>>,
{
    fn poll_decision(&mut self, context: &mut Context<'_>) -> Poll<Decided<S::Future, S, B>> {
        let decision = ready!(self.decision.as_mut().poll(context));
        let request = self.request.take().expect("decided once");
        Poll::Ready(match decision {
            Ok(passage) => {
                let inner = call(&mut self.service, request, passage.as_ref());
                (Some(inner), passage.map(Rest::Told))
            }
            Err(refused) => {
                let response = self.gate.refuse(&Head::of(&request), &refused);
                (None, Some(Rest::Refused(response)))
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
