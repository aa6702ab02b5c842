//! Looking: queues, groups, jobs, dead letters, recurring jobs. Nothing is changed.

use std::time::Duration;

use serde_json::{Value, json};
use tollway_queue::{BATCH_MAX, Cron, Group, Job, JobId, Queue, Rhythm};

use super::super::problem::Trouble;
use super::super::request::Call;
use super::leases::{WAIT_MAX, given_up};
use super::settings::put_described;
use super::shown_to;
use super::wire::{self, Shown, SignedQueue};

const PAGE_DEFAULT: usize = 100;

/// `GET /v1/queues`.
pub(crate) async fn queues(mut call: Call<'_>) -> Result<(), Trouble> {
    call.request.expect_query(&[])?;
    let mut listed = Vec::new();
    if let Some(queues) = call.service().queues() {
        queues.signer()?;
        for queue in queues.all().await? {
            listed.push(figures(&queue).await?);
        }
    }
    call.write(&json!({"queues": listed}))
}

/// `GET {queue}`: figures, and what the queue was told; `file_differs` is whether the file of this
/// service says something else, and missing if it does not name the queue.
pub(crate) async fn queue(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let (mut told, described) = (figures(queue).await?, queue.describe().await?);
    let planned = call.service().queues().and_then(|queues| queues.planned(queue.name()));
    if let Some(planned) = planned {
        told["file_differs"] = (planned.settings != described.settings).into();
    }
    put_described(&mut told, &described);
    call.write(&told)
}

async fn figures(queue: &Queue) -> Result<Value, Trouble> {
    let stats = queue.stats(None, 0).await?;
    Ok(wire::stats(queue.name().as_str(), &stats, queue.now()))
}

/// `GET {queue}/groups?cursor=…&max=…`: by name; `cursor` of the answer is that of the next page.
pub(crate) async fn groups(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let after = call.request.query_text("cursor")?.map(|name| Group::new(&name)).transpose()?;
    let stats = queue.stats(after.as_ref(), page(&call)?).await?;
    let groups: Vec<Value> = stats.groups.iter().map(wire::group).collect();
    let cursor = stats.after.as_ref().map(Group::as_str);
    call.write(&json!({
        "groups": groups, "cursor": cursor, "groups_total": stats.groups_total,
        "now_ms": wire::ms(queue.now()),
    }))
}

/// `GET {queue}/peek?group=…&max=…`: the next jobs of a group, in the order in which they start.
pub(crate) async fn peek(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let group = Group::new(&call.request.query_text("group")?.unwrap_or_default())?;
    let (shown, jobs) = (shown_to(call.role()), queue.peek(&group, page(&call)?).await?);
    let listed: Vec<Value> = jobs.iter().map(|job| wire::job(job, shown)).collect();
    call.write(&json!({"jobs": listed}))
}

/// `GET {queue}/dead?after=…&max=…`: by id; `after` of the answer is that of the next page, and
/// missing in the last one, which is empty: a page may be short because its jobs are large.
pub(crate) async fn dead(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let after: Option<JobId> = call.request.parameter("after").map(str::parse).transpose()?;
    let (shown, jobs) = (shown_to(call.role()), queue.dead(after, page(&call)?).await?);
    call.write(&paged(&jobs, shown))
}

/// `GET {queue}/running?after=…&max=…`: by id, in pages as those of dead letters.
pub(crate) async fn running(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let after: Option<JobId> = call.request.parameter("after").map(str::parse).transpose()?;
    let (shown, jobs) = (shown_to(call.role()), queue.running(after, page(&call)?).await?);
    call.write(&paged(&jobs, shown))
}

/// A page of jobs by id; `after` is that of the next page.
fn paged(jobs: &[Job], shown: Shown) -> Value {
    let next = jobs.last().map(|job| job.id.0);
    let listed: Vec<Value> = jobs.iter().map(|job| wire::job(job, shown)).collect();
    json!({"jobs": listed, "after": next})
}

/// `GET {queue}/jobs/{id}?wait_ms=…`: at once, or when the job has ended, or after so long.
pub(crate) async fn job(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let id: JobId = call.parameters[1].parse()?;
    let wait_ms = call.query_number("wait_ms", 0, 0..=WAIT_MAX.as_millis() as usize)?;
    let found = match wait_ms {
        0 => queue.job(id).await?,
        ms => {
            let give_up = given_up(&call, Duration::from_millis(ms as u64));
            queue.wait_for_end_until(id, give_up).await?
        }
    };
    let Some(job) = found else {
        return Err(wire::missing(format!("there is no job {id}")));
    };
    call.write(&wire::job(&job, shown_to(call.role())))
}

/// `GET {queue}/recurring`.
pub(crate) async fn recurring(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let (shown, now) = (shown_to(call.role()), queue.now());
    let recurring = queue.recurring().await?;
    let listed = recurring.iter().map(|recurring| {
        let (cron, every_ms) = match &recurring.rhythm {
            Rhythm::Cron(cron) => (Some(cron), None),
            Rhythm::Every(interval) => (None, Some(interval.as_millis() as u64)),
        };
        let (fields, zone) = (cron.map(Cron::fields), cron.and_then(Cron::zone));
        let mut listed = json!({
            "name": recurring.name, "cron": fields, "zone": zone, "every_ms": every_ms,
            "next_ms": recurring.rhythm.next_after(now).map(wire::ms),
        });
        if shown == Shown::Whole {
            listed["group"] = recurring.job.group.as_str().into();
        }
        listed
    });
    call.write(&json!({"recurring": listed.collect::<Vec<_>>()}))
}

fn page(call: &Call<'_>) -> Result<usize, Trouble> {
    call.query_number("max", PAGE_DEFAULT, 1..=BATCH_MAX)
}
