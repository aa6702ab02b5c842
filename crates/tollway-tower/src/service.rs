//! The service a layer wraps around another.

use std::marker::PhantomData;
use std::mem::replace;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use crate::future::{Stage, call};
use crate::gate::{Admission, Gate, Refused};
use crate::refusal::Reason;
use crate::{AnyBody, Bodies, Head, ResponseFuture};

/// A service behind a [`RateLimitLayer`](crate::RateLimitLayer). Clones share all limits.
pub struct RateLimit<S, W = AnyBody> {
    inner: S,
    gate: Arc<Gate>,
    /// Only read where load is shed: elsewhere `poll_ready` does not return before it is true.
    inner_is_ready: bool,
    bodies: PhantomData<fn() -> W>,
}

impl<S, W> RateLimit<S, W> {
    pub(crate) fn new(inner: S, gate: Arc<Gate>) -> Self {
        Self { inner, gate, inner_is_ready: false, bodies: PhantomData }
    }

    /// The service inside.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S: Clone, W> Clone for RateLimit<S, W> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.gate))
    }
}

impl<S, B, R, W> Service<Request<B>> for RateLimit<S, W>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    W: Bodies<R>,
{
    type Response = Response<W::Limited>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, W>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        let ready = self.inner.poll_ready(context)?;
        self.inner_is_ready = ready.is_ready();
        if self.gate.sheds { Poll::Ready(Ok(())) } else { ready.map(Ok) }
    }

    // Not inlined: then the future is made in the place that the caller has for it, not copied
    // there.
    #[inline(never)]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let head = Head::of(&request);
        if self.gate.sheds && !replace(&mut self.inner_is_ready, false) {
            // Asked before any limit: what cannot be served is not charged.
            let refused = Refused::from(Reason::Busy);
            return ResponseFuture::refused(self.gate.refuse(&head, &refused));
        }
        match self.gate.admit(&head) {
            // Made here and not by a function: each that the future passes through may copy it.
            Admission::Free => {
                let inner = self.inner.call(request);
                ResponseFuture { stage: Stage::Silent { inner }, bodies: PhantomData }
            }
            Admission::Pass(passage) => {
                let stage = call(&mut self.inner, request, Some(passage));
                ResponseFuture { stage, bodies: PhantomData }
            }
            Admission::Refuse(refused) => {
                ResponseFuture::refused(self.gate.refuse(&head, &refused))
            }
            Admission::Later(later) => {
                // The instance that is ready goes with the request; a clone takes its place.
                let clone = self.inner.clone();
                let ready = replace(&mut self.inner, clone);
                ResponseFuture::deciding(later, Arc::clone(&self.gate), ready, request)
            }
        }
    }
}

impl<S, W> std::fmt::Debug for RateLimit<S, W> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("RateLimit").finish_non_exhaustive()
    }
}
