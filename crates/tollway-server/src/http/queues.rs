//! `/v1/queues/…`: jobs that wait for their group's limit, over HTTP.
//!
//! ```text
//!   producer   POST {queue}/jobs, {queue}/jobs/batch
//!   worker     POST {queue}/lease (waits), heartbeat, progress, ack, fail, retry-later, release;
//!              GET  {queue}/groups
//!   anybody    GET  /v1/queues, {queue}, {queue}/peek, {queue}/dead, {queue}/jobs/{id}
//!   operator   POST {queue}/pause, resume, limits, dead/retry, recurring; DELETE {queue}/jobs/{id}
//! ```
//!
//! Names are segments of the path, percent-encoded where need be; groups stand in bodies and in the
//! query. Moments are milliseconds since the epoch, waits milliseconds. The role `read` is shown
//! figures: jobs without their payloads, results, groups, reasons and workers, and no list of
//! groups.

pub(super) mod control;
pub(super) mod jobs;
pub(super) mod leases;
pub(super) mod look;
mod wire;

pub(super) use look::queues as list_queues;
use tollway_queue::QueueName;

use super::problem::Trouble;
use super::request::{Call, decoded};
use crate::auth::Role;
use wire::{Shown, SignedQueue};

/// Answers for the queue that the path names.
pub(super) async fn on_queue(
    call: Call<'_>,
    handler: impl AsyncFnOnce(Call<'_>, &SignedQueue) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let name = decoded(call.parameters[0]).ok_or(Trouble::NotFound)?;
    let queues = call.service().queues().ok_or(Trouble::NotFound)?;
    let signer = queues.signer()?;
    let queue = SignedQueue { queue: queues.queue(QueueName::new(&name)?), signer };
    handler(call, &queue).await.map_err(|trouble| match trouble {
        Trouble::Queue(error) => Trouble::Queue(queues.told(queue.name(), error)),
        trouble => trouble,
    })
}

/// Whether payloads, results and names may be shown: to those who may work on them. Who only reads
/// figures, as Prometheus does, has no business with what customers send, nor with who they are.
fn shown_to(call: &Call<'_>) -> Shown {
    if call.role() >= Some(Role::Check) { Shown::Whole } else { Shown::Figures }
}
