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
        pub(crate) stage: Stage<S::Future, Deferred<S, B>>,
        pub(crate) bodies: PhantomData<fn() -> W>,
    }
}

pin_project! {
    // No larger than the inner future, and two ways only: frameworks move futures several times,
    // and what most requests do not need is on the heap.
    #[project = StageProj]
    pub(crate) enum Stage<F, D> {
        // It passed, and nothing is to be said about it.
        Silent { #[pin] inner: F },
        Detour { detour: Pin<Box<Detour<F, D>>> },
    }
}

pin_project! {
    #[project = DetourProj]
    pub(crate) enum Detour<F, D> {
        // It passed, and the response has something to say, or to settle.
        Told { #[pin] inner: F, passage: Passage },
        Refused { response: Option<Response<Bytes>> },
        Deciding { deferred: D },
    }
}

/// A request that waits for its decision, and the service that will get it.
pub(crate) struct Deferred<S, B> {
    decision: Later,
    gate: Arc<Gate>,
    service: S,
    request: Option<Request<B>>,
}

impl<S, B, W> ResponseFuture<S, B, W>
where
    S: Service<Request<B>>,
{
    pub(crate) fn refused(response: Response<Bytes>) -> Self {
        Self { stage: Stage::refused(response), bodies: PhantomData }
    }

    pub(crate) fn deciding(
        decision: Later,
        gate: Arc<Gate>,
        service: S,
        request: Request<B>,
    ) -> Self {
        let deferred = Deferred { decision, gate, service, request: Some(request) };
        Self { stage: Stage::detour(Detour::Deciding { deferred }), bodies: PhantomData }
    }
}

impl<F, D> Stage<F, D> {
    fn refused(response: Response<Bytes>) -> Self {
        Self::detour(Detour::Refused { response: Some(response) })
    }

    fn detour(detour: Detour<F, D>) -> Self {
        Self::Detour { detour: Box::pin(detour) }
    }
}

/// Calls the inner service with a request that passed.
///
/// Not inlined: one place fewer that calls the service lets the compiler inline the service where
/// it is called most, for requests that nothing is said about.
#[inline(never)]
pub(crate) fn call<S, B, D>(
    service: &mut S,
    mut request: Request<B>,
    passage: Option<Passage>,
) -> Stage<S::Future, D>
where
    S: Service<Request<B>>,
{
    if let Some(meter) = passage.as_ref().and_then(Passage::meter) {
        request.extensions_mut().insert(meter.clone());
    }
    let inner = service.call(request);
    match passage {
        None => Stage::Silent { inner },
        Some(passage) => Stage::detour(Detour::Told { inner, passage }),
    }
}

impl<S, B, R, W> Future for ResponseFuture<S, B, W>
where
    S: Service<Request<B>, Response = Response<R>>,
    W: Bodies<R>,
{
    type Output = Result<Response<W::Limited>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            let detour = match stage.as_mut().project() {
                StageProj::Silent { inner } => return W::passed(inner.poll(context)),
                StageProj::Detour { detour } => detour.as_mut(),
            };
            let next = match detour.project() {
                DetourProj::Told { inner, passage } => {
                    let response = ready!(inner.poll(context))?;
                    return Poll::Ready(Ok(finish::<R, W>(response, passage)));
                }
                DetourProj::Refused { response } => {
                    let response = response.take().expect("polled after it was ready");
                    let limited = |bytes| W::limited(Body::refusal(bytes));
                    return Poll::Ready(Ok(response.map(limited)));
                }
                DetourProj::Deciding { deferred } => ready!(deferred.poll_decision(context)),
            };
            stage.set(next);
        }
    }
}

impl<S, B> Deferred<S, B>
where
    S: Service<Request<B>>,
{
    /// What the decision makes of the request: an inner call, or a refusal.
    fn poll_decision(&mut self, context: &mut Context<'_>) -> Poll<Stage<S::Future, Self>> {
        let decision = ready!(self.decision.as_mut().poll(context));
        let request = self.request.take().expect("decided once");
        Poll::Ready(match decision {
            Ok(passage) => call(&mut self.service, request, passage),
            Err(refused) => Stage::refused(self.gate.refuse(&Head::of(&request), &refused)),
        })
    }
}

/// Writes the header fields of a response and settles, or arranges to settle, what it cost.
fn finish<R, W: Bodies<R>>(
    mut response: Response<R>,
    passage: &mut Passage,
) -> Response<W::Limited> {
    let plain = |body| W::limited(Body::plain(body));
    let Passage { gate, limits, verdict, open } = passage;
    gate.tell(limits, verdict, None, response.headers_mut());
    let Some(mut open) = open.take() else { return response.map(plain) };
    open.begin_response(&ResponseHead::of(&response));
    if gate.charging.until_end() {
        return response.map(|body| W::limited(Body::held(body, open)));
    }
    drop(open);
    response.map(plain)
}
