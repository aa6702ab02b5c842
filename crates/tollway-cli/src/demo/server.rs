//! The demo's server: the Heroku API's GCRA with the production limiter and header fields.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::net::TcpListener;
use tollway_core::fields::{Denied, Dialect, Report, Standing};
use tollway_core::gcra::{self, Gcra};
use tollway_core::{Cost, Decision, Quota, Timestamp};

/// The name of the policy in header fields.
const POLICY: &str = "demo";

/// One token's bucket.
pub(super) struct Server {
    limit: Gcra,
    state: Mutex<gcra::State>,
    start: Instant,
    delay: Duration,
}

impl Server {
    /// A server for `quota` whose bucket holds `level` units now and whose answers take `delay`.
    pub(super) fn new(quota: Quota, level: u64, delay: Duration) -> Self {
        let limit = Gcra::new(quota);
        let idle = gcra::State::default();
        let spent = Cost::new(quota.burst().saturating_sub(level));
        let state = spent.map_or(idle, |cost| limit.count(idle, cost, Timestamp::MIN).1);
        Self { limit, state: Mutex::new(state), start: Instant::now(), delay }
    }

    /// Answers requests on `listener` until the runtime ends.
    pub(super) async fn serve(self, listener: TcpListener) -> Result<()> {
        let router = Router::new().fallback(answer).with_state(Arc::new(self));
        axum::serve(listener, router).await.context("the demo server stopped")
    }

    fn decide(&self) -> Decision {
        let now = Timestamp::MIN.after(self.start.elapsed());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (decision, next) = self.limit.decide(*state, Cost::ONE, now);
        *state = next;
        decision
    }
}

async fn answer(State(server): State<Arc<Server>>) -> (StatusCode, HeaderMap) {
    if !server.delay.is_zero() {
        tokio::time::sleep(server.delay).await;
    }
    let decision = server.decide();
    let status = if decision.is_allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    (status, fields(server.limit.quota(), &decision))
}

fn fields(quota: Quota, decision: &Decision) -> HeaderMap {
    let snapshot = decision.snapshot();
    let standing = Standing {
        policy: POLICY,
        limit: quota.burst(),
        quota: quota.units(),
        window: Some(quota.period()),
        remaining: snapshot.remaining(),
        more_after: Some(snapshot.next_after()),
        full_after: snapshot.reset_after(),
    };
    let denied = decision.retry().map(|retry| Denied { by: 0, retry: retry.after() });
    let report = Report { standings: &[standing], denied, epoch: Duration::ZERO };
    let mut headers = HeaderMap::new();
    Dialect::Draft03.emit(&report, &mut String::new(), |field, value| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(field.lowercase()), value);
        }
    });
    headers
}
