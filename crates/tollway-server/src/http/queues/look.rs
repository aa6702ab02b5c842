//! Looking: queues, groups, jobs, dead letters, recurring jobs. Nothing is changed.

use serde_json::{Value, json};
use tollway_queue::{BATCH_MAX, Group, JobId, Queue, Rhythm};

use super::super::problem::Trouble;
use super::super::reply::Reply;
use super::super::request::{Request, decoded};
use super::wire::{self, Shown};
use crate::worker::Worker;

const PAGE_DEFAULT: usize = 100;

/// `GET /v1/queues`.
pub(super) async fn queues(worker: &Worker, reply: &mut Reply) -> Result<(), Trouble> {
    let mut listed = Vec::new();
    if let Some(queues) = worker.service.queues() {
        queues.signer()?;
        for queue in queues.all().await? {
            listed.push(figures(&queue).await?);
        }
    }
    reply.write_json(&json!({"queues": listed}));
    Ok(())
}

/// `GET {queue}`.
pub(super) async fn queue(queue: &Queue, reply: &mut Reply) -> Result<(), Trouble> {
    reply.write_json(&figures(queue).await?);
    Ok(())
}

async fn figures(queue: &Queue) -> Result<Value, Trouble> {
    let stats = queue.stats(None, 0).await?;
    Ok(wire::stats(queue.name().as_str(), &stats, queue.now()))
}

/// `GET {queue}/groups?cursor=…&max=…`: by name; `cursor` of the answer is that of the next page.
pub(super) async fn groups(
    queue: &Queue,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let after = text(request, "cursor")?.map(|name| Group::new(&name)).transpose()?;
    let stats = queue.stats(after.as_ref(), page(request)?).await?;
    let groups: Vec<Value> = stats.groups.iter().map(wire::group).collect();
    let cursor = stats.after.as_ref().map(Group::as_str);
    reply.write_json(&json!({
        "groups": groups, "cursor": cursor, "groups_total": stats.groups_total,
        "now_ms": wire::ms(queue.now()),
    }));
    Ok(())
}

/// `GET {queue}/peek?group=…&max=…`: the next jobs of a group, in the order in which they start.
pub(super) async fn peek(
    queue: &Queue,
    request: &Request<'_>,
    shown: Shown,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let group = Group::new(&text(request, "group")?.unwrap_or_default())?;
    let jobs = queue.peek(&group, page(request)?).await?;
    let listed: Vec<Value> = jobs.iter().map(|job| wire::job(job, shown)).collect();
    reply.write_json(&json!({"jobs": listed}));
    Ok(())
}

/// `GET {queue}/dead?after=…&max=…`: by id; `after` of the answer is that of the next page, and
/// missing in the last one, which is empty: a page may be short because its jobs are large.
pub(super) async fn dead(
    queue: &Queue,
    request: &Request<'_>,
    shown: Shown,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let after: Option<JobId> = request.parameter("after").map(str::parse).transpose()?;
    let jobs = queue.dead(after, page(request)?).await?;
    let next = jobs.last().map(|job| job.id.0);
    let listed: Vec<Value> = jobs.iter().map(|job| wire::job(job, shown)).collect();
    reply.write_json(&json!({"jobs": listed, "after": next}));
    Ok(())
}

/// `GET {queue}/jobs/{id}`.
pub(super) async fn job(
    queue: &Queue,
    id: &str,
    shown: Shown,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let id: JobId = id.parse()?;
    let Some(job) = queue.job(id).await? else {
        return Err(wire::missing(format!("nothing is known about a job {id}")));
    };
    reply.write_json(&wire::job(&job, shown));
    Ok(())
}

/// `GET {queue}/recurring`.
pub(super) async fn recurring(
    queue: &Queue,
    shown: Shown,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let now = queue.now();
    let listed: Vec<Value> = queue
        .recurring()
        .await?
        .iter()
        .map(|recurring| {
            let (cron, every_ms) = match &recurring.rhythm {
                Rhythm::Cron(cron) => (Some(cron.to_string()), None),
                Rhythm::Every(interval) => (None, Some(interval.as_millis() as u64)),
            };
            let mut listed = json!({
                "name": recurring.name, "cron": cron, "every_ms": every_ms,
                "next_ms": recurring.rhythm.next_after(now).map(wire::ms),
            });
            if shown == Shown::Whole {
                listed["group"] = recurring.job.group.as_str().into();
            }
            listed
        })
        .collect();
    reply.write_json(&json!({"recurring": listed}));
    Ok(())
}

fn page(request: &Request<'_>) -> Result<usize, Trouble> {
    let Some(text) = request.parameter("max") else { return Ok(PAGE_DEFAULT) };
    let max = text.parse().ok().filter(|max| (1..=BATCH_MAX).contains(max));
    max.ok_or_else(|| Trouble::Bad(format!("max must be 1 to {BATCH_MAX}")))
}

/// A parameter of the query with its escapes decoded.
fn text(request: &Request<'_>, name: &str) -> Result<Option<String>, Trouble> {
    let Some(raw) = request.parameter(name) else { return Ok(None) };
    let spaced = raw.replace('+', " ");
    let wrong = || Trouble::Bad(format!("{name} has broken percent-escapes"));
    decoded(&spaced).map(|text| Some(text.into_owned())).ok_or_else(wrong)
}
