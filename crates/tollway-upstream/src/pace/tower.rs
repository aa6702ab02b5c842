//! The pacer as a tower layer around an HTTP client.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use tollway_core::Cost;
use tower_layer::Layer;
use tower_service::Service;

use super::Gate;

/// Makes a client wait its turn. One layer per token; clones share the pacer.
///
/// A request costs one unit unless its extensions hold a [`Cost`].
#[derive(Clone, Debug)]
pub struct PaceLayer {
    gate: Gate,
}

impl PaceLayer {
    /// A layer in front of which tasks wait at `gate`.
    #[must_use]
    pub fn new(gate: Gate) -> Self {
        Self { gate }
    }
}

impl<S> Layer<S> for PaceLayer {
    type Service = Pace<S>;

    fn layer(&self, inner: S) -> Pace<S> {
        Pace { inner, gate: self.gate.clone() }
    }
}

/// A client whose requests wait their turn.
#[derive(Clone, Debug)]
pub struct Pace<S> {
    inner: S,
    gate: Gate,
}

impl<S, B, R> Service<Request<B>> for Pace<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    /// Always ready: asking the inner client now would keep one of its slots while waiting here.
    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (gate, mut inner) = (self.gate.clone(), self.inner.clone());
        Box::pin(async move {
            let cost = request.extensions().get().copied().unwrap_or(Cost::ONE);
            let pass = gate.enter(cost).await;
            poll_fn(|context| inner.poll_ready(context)).await?;
            let response = inner.call(request).await?;
            pass.complete_with(response.status(), response.headers());
            Ok(response)
        })
    }
}
