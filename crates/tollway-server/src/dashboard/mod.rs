//! The dashboard: one page at `/`, what it asks, and the events that keep it current.
//!
//! ```text
//!   counters --sample, once a second--> history --> event for everybody who watches
//!                                               \-> /dashboard/history, /dashboard/policies
//!   a key, a policy ---- asked when looked at ----> /dashboard/key
//!   reset, ban, quota -- role admin, by token ----> /dashboard/reset, /ban, /quota
//! ```
//!
//! **Invariants.** Keys travel as hexadecimal digits and are made into text by the page alone.
//! Nothing is changed without a token, not even by a service that needs none to decide. Lists are
//! paged here, not in the browser. An event is written once, however many watch.
//!
//! Deliberately absent: history on disk (that is what Prometheus is for), sessions and cookies (a
//! token in a header field cannot be sent by somebody else's page).

mod assets;
mod changes;
mod describe;
mod events;
mod history;
mod keys;
mod policies;
mod proxy;
mod sample;

use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::auth::Role;
use crate::http::{Reply, Request, Trouble, decoded};
use crate::worker::Worker;

pub(crate) use events::Events;
use history::History;
pub use proxy::ProxyAdmin;
pub(crate) use sample::sample;

/// Where the events are; answered by a stream, not by [`answer`].
pub(crate) const EVENTS: &str = "/dashboard/events";

/// What the dashboard knows between two looks.
#[derive(Debug)]
pub(crate) struct Dashboard {
    history: Mutex<History>,
    ticks: watch::Sender<sample::Tick>,
    viewers: AtomicUsize,
    proxy: Option<ProxyAdmin>,
}

impl Default for Dashboard {
    fn default() -> Self {
        Self::new(None)
    }
}

impl Dashboard {
    /// A dashboard that shows the buckets of the proxy whose administration is there, if any.
    pub(crate) fn new(proxy: Option<ProxyAdmin>) -> Self {
        let (ticks, _) = watch::channel(sample::Tick::default());
        Self { history: Mutex::default(), ticks, viewers: AtomicUsize::new(0), proxy }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The method and role that a path needs; `None` if there is nothing there. The page itself needs
/// no role: it holds no data.
pub(crate) fn needs(path: &str) -> Option<(&'static str, Option<Role>)> {
    Some(match path {
        path if assets::has(path) => ("GET", None),
        "/dashboard/session" | "/dashboard/history" | "/dashboard/policies" => {
            ("GET", Some(Role::Read))
        }
        "/dashboard/upstream" => ("GET", Some(Role::Read)),
        "/dashboard/key" => ("POST", Some(Role::Read)),
        "/dashboard/reset" | "/dashboard/ban" | "/dashboard/quota" => ("POST", Some(Role::Admin)),
        _ => return None,
    })
}

/// Answers for one of the paths.
pub(crate) async fn answer(
    worker: &Worker,
    path: &str,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    if assets::has(path) {
        assets::answer(path, request, reply);
        return Ok(());
    }
    let body = match path {
        "/dashboard/session" => session(worker, request),
        "/dashboard/history" => history_of(worker, request)?,
        "/dashboard/policies" => policies::list(&worker.service, request)?,
        "/dashboard/upstream" => proxy::buckets(worker, request).await?,
        "/dashboard/key" => keys::look_up(worker, request).await?,
        _ => changes::change(worker, path, request).await?,
    };
    // What an operator saw must not lie in a cache.
    reply.fields.push(("Cache-Control", "no-store".to_owned()));
    reply.body.extend_from_slice(body.to_string().as_bytes());
    Ok(())
}

/// Who asks, and what there is to show.
fn session(worker: &Worker, request: &Request<'_>) -> Value {
    let service = &worker.service;
    let auth = service.auth();
    let role = auth.role_of_field(request.fields.field("authorization"));
    json!({
        "role": match role {
            Some(Role::Admin) => "admin",
            Some(Role::Check) => "check",
            _ => "read",
        },
        "open": auth.is_open(),
        "version": env!("CARGO_PKG_VERSION"),
        "upstream": service.dashboard.proxy.is_some(),
    })
}

fn history_of(worker: &Worker, request: &Request<'_>) -> Result<Value, Trouble> {
    let history = worker.service.dashboard.history();
    let counts: Vec<history::Three> = match text(request, "policy")? {
        None => history.points().map(|point| point.counts).collect(),
        Some(policy) => {
            let domain = text(request, "domain")?.unwrap_or_default();
            let found = history.points_of(&(domain, policy.clone()));
            found.ok_or(Trouble::UnknownPolicy(policy))?
        }
    };
    let column = |index: usize| counts.iter().map(|three| three[index]).collect::<Vec<_>>();
    Ok(json!({
        "at_ms": history.points().map(|point| point.at_ms).collect::<Vec<_>>(),
        "allowed": column(0),
        "denied": column(1),
        "shadow": column(2),
        "p50_us": history.points().map(|point| point.latency_us[0]).collect::<Vec<_>>(),
        "p99_us": history.points().map(|point| point.latency_us[1]).collect::<Vec<_>>(),
    }))
}

/// A parameter of the query, decoded; empty as if it were left out.
fn text(request: &Request<'_>, name: &str) -> Result<Option<String>, Trouble> {
    let Some(raw) = request.parameter(name).filter(|raw| !raw.is_empty()) else { return Ok(None) };
    let broken = || Trouble::Bad(format!("{name} is not percent-encoded UTF-8"));
    Ok(Some(decoded(raw).ok_or_else(broken)?.into_owned()))
}

/// A number in the query, at most `most`.
fn number(
    request: &Request<'_>,
    name: &str,
    default: usize,
    most: usize,
) -> Result<usize, Trouble> {
    let Some(raw) = request.parameter(name).filter(|raw| !raw.is_empty()) else {
        return Ok(default);
    };
    let number = raw.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| Trouble::Bad(format!("{name} must be a number up to {most}")))
}
