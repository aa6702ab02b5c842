//! `/v1/queues/…`: jobs that wait for their group's limit, over HTTP.
//!
//! ```text
//!   producer   POST {queue}/jobs, {queue}/jobs/batch
//!   worker     POST {queue}/lease (waits), heartbeat, progress, ack, fail, retry-later, release;
//!              GET  {queue}/groups
//!   anybody    GET  /v1/queues, {queue}, {queue}/peek, {queue}/running, {queue}/dead,
//!              {queue}/jobs/{id}, {queue}/events (as jobs end)
//!   operator   PUT, PATCH, DELETE {queue}; GET, PUT, DELETE /v1/shared-limits;
//!              POST {queue}/pause, resume, limits, dead/retry, recurring;
//!              POST {queue}/jobs/{id}/reschedule; DELETE {queue}/jobs/{id}
//! ```
//!
//! Names are segments of the path, percent-encoded where need be; groups stand in bodies and in the
//! query. Moments are milliseconds since the epoch, waits milliseconds. The role `read` is shown
//! figures: jobs without their payloads, results, groups, reasons and workers, and no list of
//! groups.

pub(super) mod control;
mod events;
pub(super) mod jobs;
pub(super) mod leases;
pub(super) mod look;
pub(super) mod settings;
mod wire;

pub(super) use events::events;
pub(super) use look::queues as list_queues;
use tollway_queue::QueueName;

use super::problem::Trouble;
use super::request::{Call, decoded};
use crate::auth::Role;
use crate::logs::escaped;
use wire::{Shown, SignedQueue};

/// Answers for the queue that the path names; a query is refused.
pub(super) async fn on_queue(
    call: Call<'_>,
    handler: impl AsyncFnOnce(Call<'_>, &SignedQueue) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    on_queue_with(call, &[], handler).await
}

/// Answers for the queue that the path names; the query may have these parameters.
pub(super) async fn on_queue_with(
    call: Call<'_>,
    parameters: &[&str],
    handler: impl AsyncFnOnce(Call<'_>, &SignedQueue) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    call.request.expect_query(parameters)?;
    let name = decoded(call.parameters[0]).ok_or(Trouble::NotFound)?;
    let queues = call.service().queues().ok_or(Trouble::NotFound)?;
    let signer = queues.signer()?;
    let queue = SignedQueue { queue: queues.queue(QueueName::new(&name)?), signer };
    match handler(call, &queue).await {
        Err(Trouble::Queue(error)) => Err(Trouble::Queue(queues.told(queue.name(), error).await)),
        answered => answered,
    }
}

/// As [`on_queue`], for what operators change: it is logged with the name of whose token it was.
/// Names in the path and the body are strangers' text, so they are escaped, and cut.
pub(super) async fn operate(
    call: Call<'_>,
    action: &str,
    handler: impl AsyncFnOnce(Call<'_>, &SignedQueue) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let (request, [_, named]) = (call.request, call.parameters);
    let queue = decoded(call.parameters[0]).ok_or(Trouble::NotFound)?.into_owned();
    let who = call.who();
    on_queue(call, handler).await?;
    // A recurring job's body has a payload, which is nobody's to log; its name says enough.
    let what = match (action, named) {
        ("recurring", _) => name_in(request.body),
        (_, "") => escaped(request.body),
        (_, named) => escaped(named.as_bytes()),
    };
    tracing::info!(who, queue = escaped(queue.as_bytes()), action, what, "an operator's change");
    Ok(())
}

fn name_in(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        name: std::borrow::Cow<'a, str>,
    }
    let named: Option<Named<'_>> = serde_json::from_slice(body).ok();
    named.map_or_else(String::new, |named| escaped(named.name.as_bytes()))
}

/// Whether payloads, results and names may be shown: to those who may work on them. Who only reads
/// figures, as Prometheus does, has no business with what customers send, nor with who they are.
fn shown_to(role: Option<Role>) -> Shown {
    if role >= Some(Role::Check) { Shown::Whole } else { Shown::Figures }
}
