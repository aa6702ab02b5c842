//! The demo's server: the Heroku API's GCRA with the production limiter and header fields.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::net::TcpListener;
use tollway_core::fields::{Denied, Dialect, Report, Standing};
use tollway_core::gcra::Gcra;
use tollway_core::{Cost, Decision, Policy, Quota};
use tollway_memory::{Capacity, Limiter};

/// What all clients share.
const TOKEN: &str = "token";

/// One token's bucket.
pub(super) struct Server {
    limiter: Limiter,
    delay: Duration,
}

impl Server {
    /// A server for `quota` whose bucket holds `level` units now and whose answers take `delay`.
    pub(super) fn new(quota: Quota, level: u64, delay: Duration) -> Result<Self> {
        let policy = Policy::new("demo", Gcra::new(quota))?;
        let limiter = Limiter::with_policy(policy, Capacity::keys(1));
        if let Some(spent) = Cost::new(quota.burst().saturating_sub(level)) {
            let _ = limiter.take(TOKEN, spent);
        }
        Ok(Self { limiter, delay })
    }

    /// Answers requests on `listener` until the runtime ends.
    pub(super) async fn serve(self, listener: TcpListener) -> Result<()> {
        let router = Router::new().fallback(answer).with_state(Arc::new(self));
        axum::serve(listener, router).await.context("the demo server stopped")
    }
}

async fn answer(State(server): State<Arc<Server>>) -> (StatusCode, HeaderMap) {
    if !server.delay.is_zero() {
        tokio::time::sleep(server.delay).await;
    }
    let decision = server.limiter.check(TOKEN);
    let status = if decision.is_allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    (status, fields(server.limiter.policy(), &decision))
}

fn fields(policy: &Policy, decision: &Decision) -> HeaderMap {
    let standing = Standing::new(policy, decision.snapshot());
    let denied = decision.retry().map(|retry| Denied { by: 0, retry: retry.after() });
    let report = Report { standings: &[standing], denied, epoch: Duration::ZERO };
    let mut headers = HeaderMap::new();
    Dialect::Draft03.emit(&report, &mut String::new(), |field, value| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(
                HeaderName::try_from(field.name()).expect("a field's name is a token"),
                value,
            );
        }
    });
    headers
}
