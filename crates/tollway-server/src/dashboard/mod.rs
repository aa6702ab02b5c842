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

pub(crate) mod assets;
pub(crate) mod changes;
mod describe;
mod events;
mod history;
pub(crate) mod keys;
pub(crate) mod policies;
pub(crate) mod proxy;
mod sample;
mod troubles;

use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::auth::Role;
use crate::http::{Call, Trouble};
use crate::queues::Queues;
use crate::service::Service;

pub(crate) use events::events;
use history::History;
pub use proxy::ProxyAdmin;
pub(crate) use sample::sample;

/// Where the events are; answered by a stream, not by [`answer`].
pub(crate) const EVENTS: &str = "/dashboard/events";

/// What the dashboard knows between two looks.
#[derive(Debug)]
pub(crate) struct Dashboard {
    history: Mutex<History>,
    troubles: Mutex<troubles::Watch>,
    ticks: watch::Sender<sample::Tick>,
    /// Who watches, this page or the events of a queue.
    pub(crate) viewers: AtomicUsize,
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
        let (history, troubles, viewers) = Default::default();
        Self { history, troubles, ticks, viewers, proxy }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers with what an operator sees, which must not lie in a cache.
fn reply(mut call: Call<'_>, json: &Value) -> Result<(), Trouble> {
    call.reply.fields.push(("Cache-Control", "no-store".to_owned()));
    call.write(json)
}

/// `GET /dashboard/session`: who asks, and what there is to show.
pub(crate) fn session(call: Call<'_>) -> Result<(), Trouble> {
    let json = json!({
        "role": call.role().unwrap_or(Role::Read).name(),
        "open": call.service().auth().is_open(),
        "shared_store": call.service().enforcer.memory().is_none(),
        "own_quotas": call.service().own_quotas().kept(),
        "version": env!("CARGO_PKG_VERSION"),
        "upstream": call.service().dashboard.proxy.is_some(),
        "queues": call.service().queues().is_some_and(Queues::is_used),
        "policies": has_policies(call.service()),
    });
    reply(call, &json)
}

/// Whether there is anything to decide: a service may have queues alone.
fn has_policies(service: &Service) -> bool {
    let rules = service.enforcer.rules();
    !rules.rules().is_empty() || rules.domains().next().is_some()
}

/// `GET /dashboard/history`: the last five minutes, of everything or of one policy.
pub(crate) fn history(call: Call<'_>) -> Result<(), Trouble> {
    let history = call.service().dashboard.history();
    let counts: Vec<history::Three> = match text(&call, "policy")? {
        None => history.points().map(|point| point.counts).collect(),
        Some(policy) => {
            let domain = text(&call, "domain")?.unwrap_or_default();
            let found = history.points_of(&(domain, policy.clone()));
            found.ok_or(Trouble::UnknownPolicy(policy))?
        }
    };
    let column = |index: usize| counts.iter().map(|three| three[index]).collect::<Vec<_>>();
    let json = json!({
        "at_ms": history.points().map(|point| point.at_ms).collect::<Vec<_>>(),
        "allowed": column(0),
        "denied": column(1),
        "shadow": column(2),
        "p50_us": history.points().map(|point| point.latency_us[0]).collect::<Vec<_>>(),
        "p99_us": history.points().map(|point| point.latency_us[1]).collect::<Vec<_>>(),
    });
    reply(call, &json)
}

/// `GET /dashboard/queue?queue=…`: the last five minutes of a queue.
pub(crate) fn queue(call: Call<'_>) -> Result<(), Trouble> {
    let name = text(&call, "queue")?.unwrap_or_default();
    let past = call.service().queues().and_then(|queues| queues.watch().history(&name));
    reply(call, &past.ok_or(Trouble::NotFound)?)
}

/// A parameter of the query; empty as if it were left out.
fn text(call: &Call<'_>, name: &str) -> Result<Option<String>, Trouble> {
    Ok(call.request.query_text(name)?.filter(|text| !text.is_empty()))
}
