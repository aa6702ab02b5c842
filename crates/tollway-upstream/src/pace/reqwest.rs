//! The pacer as a middleware for reqwest clients.

use http::Extensions;
use reqwest::{Request, Response};
use reqwest_middleware::{Middleware, Next, Result};
use tollway_core::Cost;

use super::Gate;

/// Makes a client wait its turn. One per token; clones share the pacer.
///
/// A request costs one unit unless its extensions hold a [`Cost`]. Put it after a middleware that
/// retries, so that every attempt waits its turn.
///
/// ```no_run
/// use reqwest_middleware::ClientBuilder;
/// use tollway_upstream::pace::{Gate, Settings, reqwest::PaceMiddleware};
///
/// let gate = Gate::new(Settings::default());
/// let client = ClientBuilder::new(reqwest::Client::new()).with(PaceMiddleware::new(gate)).build();
/// ```
#[derive(Clone, Debug)]
pub struct PaceMiddleware {
    gate: Gate,
}

impl PaceMiddleware {
    /// A middleware in front of which tasks wait at `gate`.
    #[must_use]
    pub fn new(gate: Gate) -> Self {
        Self { gate }
    }
}

#[async_trait::async_trait]
impl Middleware for PaceMiddleware {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let cost = extensions.get().copied().unwrap_or(Cost::ONE);
        let pass = self.gate.enter(cost).await;
        let response = next.run(request, extensions).await?;
        pass.complete_with(response.status(), response.headers());
        Ok(response)
    }
}
