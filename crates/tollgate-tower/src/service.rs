//! The service a layer wraps around another.

use std::mem::replace;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use crate::future::call;
use crate::gate::{Admission, Gate, Reason, Refused};
use crate::{Body, Head, ResponseFuture};

/// A service behind a [`RateLimitLayer`](crate::RateLimitLayer). Clones share all limits.
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    gate: Arc<Gate>,
    /// Only read where load is shed: elsewhere `poll_ready` does not return before it is true.
    inner_is_ready: bool,
}

impl<S> RateLimit<S> {
    pub(crate) fn new(inner: S, gate: Arc<Gate>) -> Self {
        Self { inner, gate, inner_is_ready: false }
    }

    /// The service inside.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<Body<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        let ready = self.inner.poll_ready(context)?;
        self.inner_is_ready = ready.is_ready();
        if self.gate.sheds { Poll::Ready(Ok(())) } else { ready.map(Ok) }
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let head = Head::of(&request);
        if self.gate.sheds && !replace(&mut self.inner_is_ready, false) {
            // Asked before any limit: what cannot be served is not charged.
            let refused = Refused::from(Reason::Busy);
            return ResponseFuture::refused(self.gate.refuse(&head, &refused));
        }
        match self.gate.admit(&head) {
            Admission::Pass(passage) => {
                ResponseFuture::passing(call(&mut self.inner, request, &passage), Some(passage))
            }
            Admission::Exempt => ResponseFuture::passing(self.inner.call(request), None),
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

impl<S> std::fmt::Debug for RateLimit<S> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("RateLimit").finish_non_exhaustive()
    }
}
