//! Enqueueing and cancelling.

use serde::Deserialize;
use serde_json::json;
use tollway_queue::{BATCH_MAX, Cancelled, JobId, NewJob, Queue};

use super::super::json::read;
use super::super::problem::Trouble;
use super::super::reply::Reply;
use super::super::request::Request;
use super::wire::{JobBody, enqueued, missing};

/// `POST {queue}/jobs`: 201, or 200 if an earlier job had the same key.
pub(super) async fn enqueue(
    queue: &Queue,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: JobBody<'_> = read(request.body)?;
    let answer = queue.enqueue(body.job()?).await?;
    reply.status = if answer.duplicate { 200 } else { 201 };
    reply.write_json(&enqueued(&answer));
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchBody<'a> {
    #[serde(borrow)]
    jobs: Vec<JobBody<'a>>,
}

/// `POST {queue}/jobs/batch`: all or none.
pub(super) async fn enqueue_batch(
    queue: &Queue,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: BatchBody<'_> = read(request.body)?;
    if body.jobs.len() > BATCH_MAX {
        return Err(Trouble::Bad(format!("more than {BATCH_MAX} jobs in one batch")));
    }
    let jobs: Vec<NewJob> = body.jobs.into_iter().map(JobBody::job).collect::<Result<_, _>>()?;
    let answers = queue.enqueue_all(jobs).await?;
    reply.status = 201;
    reply.write_json(&json!({"jobs": answers.iter().map(enqueued).collect::<Vec<_>>()}));
    Ok(())
}

/// `DELETE {queue}/jobs/{id}`: gone, or its worker is asked to stop (202).
pub(super) async fn cancel(queue: &Queue, id: &str, reply: &mut Reply) -> Result<(), Trouble> {
    let id: JobId = id.parse()?;
    let cancelled = match queue.cancel(id).await? {
        Cancelled::Removed => "removed",
        Cancelled::Requested => {
            reply.status = 202;
            "requested"
        }
        Cancelled::NotFound => return Err(missing(format!("no job {id} to cancel"))),
    };
    reply.write_json(&json!({"id": id.0, "cancelled": cancelled}));
    Ok(())
}
