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
//! figures: jobs without their payloads, results, groups, reasons and workers, and no list of groups.

mod control;
mod jobs;
mod leases;
mod look;
mod wire;

use tollway_queue::{Queue, QueueName};

use super::problem::Trouble;
use super::reply::Reply;
use super::request::{Request, decoded};
use super::routes::permit;
use crate::auth::Role;
use crate::worker::Worker;
use wire::Shown;

/// Answers for what stands after `/v1/queues` in the path.
pub(super) async fn route(
    worker: &Worker,
    rest: &str,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let segments: Vec<&str> = rest.split('/').skip(1).collect();
    let (name, verb) = match segments[..] {
        [] if rest.is_empty() => {
            permit(worker, request, "GET", Role::Read)?;
            return look::queues(worker, reply).await;
        }
        [name, ref verb @ ..] => (name, verb),
        [] => return Err(Trouble::NotFound),
    };
    let (method, role) = needs(verb, request.method).ok_or(Trouble::NotFound)?;
    permit(worker, request, method, role).map_err(|trouble| both_methods(trouble, verb))?;
    let queue = queue(worker, name)?;
    let answer = answer(worker, &queue, verb, request, reply).await;
    answer.map_err(|trouble| match (trouble, worker.service.queues()) {
        (Trouble::Queue(error), Some(queues)) => Trouble::Queue(queues.told(queue.name(), error)),
        (trouble, _) => trouble,
    })
}

async fn answer(
    worker: &Worker,
    queue: &Queue,
    verb: &[&str],
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    match (verb, request.method) {
        ([], _) => look::queue(queue, reply).await,
        (["jobs"], _) => jobs::enqueue(queue, request, reply).await,
        (["jobs", "batch"], _) => jobs::enqueue_batch(queue, request, reply).await,
        (["jobs", id], "DELETE") => jobs::cancel(queue, id, reply).await,
        (["jobs", id], _) => look::job(queue, id, shown_to(worker, request), reply).await,
        (["groups"], _) => look::groups(queue, request, reply).await,
        (["peek"], _) => look::peek(queue, request, shown_to(worker, request), reply).await,
        (["dead"], _) => look::dead(queue, request, shown_to(worker, request), reply).await,
        (["recurring"], "POST") => control::put_recurring(queue, request, reply).await,
        (["recurring"], _) => look::recurring(queue, shown_to(worker, request), reply).await,
        (["recurring", name], _) => control::remove_recurring(queue, name, reply).await,
        (["dead", "retry"], _) => control::revive(queue, request, reply).await,
        (["pause"], _) => control::pause(queue, request, true, reply).await,
        (["resume"], _) => control::pause(queue, request, false, reply).await,
        (["limits"], _) => control::limits(queue, request, reply).await,
        ([verb], _) => leases::route(worker, queue, verb, request, reply).await,
        _ => Err(Trouble::NotFound),
    }
}

/// The method and role that a verb needs; `None` if there is none such.
fn needs(verb: &[&str], method: &str) -> Option<(&'static str, Role)> {
    Some(match verb {
        [] | ["peek" | "dead"] => ("GET", Role::Read),
        // Groups are named after customers: a list of them is one of keys.
        ["groups"] => ("GET", Role::Check),
        ["jobs", id] if *id != "batch" => match method {
            "DELETE" => ("DELETE", Role::Check),
            _ => ("GET", Role::Read),
        },
        ["jobs" | "lease" | "heartbeat" | "progress" | "ack" | "fail" | "retry-later"]
        | ["release"]
        | ["jobs", "batch"] => ("POST", Role::Check),
        ["pause" | "resume" | "limits"] | ["dead", "retry"] => ("POST", Role::Admin),
        ["recurring"] => match method {
            "POST" => ("POST", Role::Admin),
            _ => ("GET", Role::Read),
        },
        ["recurring", _] => ("DELETE", Role::Admin),
        _ => return None,
    })
}

/// Whether payloads, results and names may be shown: to those who may work on them. Who only reads
/// figures, as Prometheus does, has no business with what customers send, nor with who they are.
fn shown_to(worker: &Worker, request: &Request<'_>) -> Shown {
    let auth = worker.service.auth();
    match auth.role_of_field(request.fields.field("authorization")) >= Some(Role::Check) {
        true => Shown::Whole,
        false => Shown::Figures,
    }
}

/// Where a path takes two methods, both are told.
fn both_methods(trouble: Trouble, verb: &[&str]) -> Trouble {
    match (trouble, verb) {
        (Trouble::Method(_), ["jobs", id]) if *id != "batch" => Trouble::Method("GET, DELETE"),
        (Trouble::Method(_), ["recurring"]) => Trouble::Method("GET, POST"),
        (other, _) => other,
    }
}

fn queue(worker: &Worker, segment: &str) -> Result<Queue, Trouble> {
    let name = decoded(segment).ok_or(Trouble::NotFound)?;
    let queues = worker.service.queues().ok_or(Trouble::NotFound)?;
    queues.signer()?;
    Ok(queues.queue(QueueName::new(&name)?))
}
