//! Enqueueing, cancelling, and giving jobs another time to start.

use serde::Deserialize;
use serde_json::json;
use tollway_queue::{BATCH_MAX, Cancelled, JobId, NewJob};

use super::super::problem::Trouble;
use super::super::request::Call;
use super::shown_to;
use super::wire::{self, JobBody, SignedQueue, enqueued, missing};

/// `POST {queue}/jobs`: 201, or 200 if an earlier job had the same key.
pub(crate) async fn enqueue(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let body: JobBody<'_> = call.body()?;
    let answer = queue.enqueue(body.job()?).await?;
    call.reply.status = if answer.duplicate { 200 } else { 201 };
    call.write(&enqueued(&answer))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody<'a> {
    #[serde(borrow)]
    jobs: Vec<JobBody<'a>>,
}

/// `POST {queue}/jobs/batch`: all or none.
pub(crate) async fn enqueue_batch(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let body: BatchBody<'_> = call.body()?;
    if body.jobs.len() > BATCH_MAX {
        let found = body.jobs.len();
        return Err(Trouble::bad(format!("jobs must be at most {BATCH_MAX}, not {found}")));
    }
    let jobs: Vec<NewJob> = body.jobs.into_iter().map(JobBody::job).collect::<Result<_, _>>()?;
    let answers = queue.enqueue_all(jobs).await?;
    call.reply.status = 201;
    call.write(&json!({"jobs": answers.iter().map(enqueued).collect::<Vec<_>>()}))
}

/// `DELETE {queue}/jobs/{id}`: gone, or its worker is asked to stop (202).
pub(crate) async fn cancel(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let id: JobId = call.parameters[1].parse()?;
    let cancelled = match queue.cancel(id).await? {
        Cancelled::Removed => "removed",
        Cancelled::Requested => {
            call.reply.status = 202;
            "requested"
        }
        Cancelled::NotFound => return Err(missing(format!("no job {id} to cancel"))),
    };
    call.write(&json!({"id": id.0, "cancelled": cancelled}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RescheduleBody {
    delay_ms: Option<u64>,
    start_at_ms: Option<u64>,
}

/// `POST {queue}/jobs/{id}/reschedule`: another time to start, or with an empty body now; the job
/// as it is then.
pub(crate) async fn reschedule(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let id: JobId = call.parameters[1].parse()?;
    let body: RescheduleBody = call.body_or_empty()?;
    let start = wire::start(body.delay_ms, body.start_at_ms)?;
    let Some(job) = queue.reschedule(id, start).await? else {
        return Err(missing(format!("no waiting or delayed job has the number {id}")));
    };
    call.write(&wire::job(&job, shown_to(call.role())))
}
