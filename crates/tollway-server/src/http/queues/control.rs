//! What operators change: pauses, limits of single groups, dead letters, recurring jobs.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tollway_queue::{Group, JobId, Limit, Queue, Recurring, Rhythm};

use super::super::json::read;
use super::super::problem::Trouble;
use super::super::reply::Reply;
use super::super::request::{Request, decoded};
use super::wire::{JobBody, invalid, missing};

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseBody {
    group: Option<String>,
}

/// `POST {queue}/pause` and `/resume`: a group, or without one the whole queue.
pub(super) async fn pause(
    queue: &Queue,
    request: &Request<'_>,
    paused: bool,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: PauseBody =
        if request.body.is_empty() { PauseBody::default() } else { read(request.body)? };
    let group = body.group.map(|name| Group::new(&name)).transpose()?;
    queue.pause(group.as_ref(), paused).await?;
    reply.write_json(&json!({"paused": paused, "group": group.as_ref().map(Group::as_str)}));
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsBody {
    group: String,
    limits: Option<Vec<String>>,
}

/// `POST {queue}/limits`: limits of one group in place of the queue's; `null` takes them back.
pub(super) async fn limits(
    queue: &Queue,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: LimitsBody = read(request.body)?;
    let group = Group::new(&body.group)?;
    let parse = |texts: &Vec<String>| texts.iter().map(|text| text.parse()).collect();
    let limits: Option<Vec<Limit>> = body.limits.as_ref().map(parse).transpose()?;
    queue.set_limits(&group, limits).await?;
    reply.write_json(&json!({"group": body.group, "limits": body.limits}));
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReviveBody {
    id: u64,
}

/// `POST {queue}/dead/retry`: a dead letter goes back into its group.
pub(super) async fn revive(
    queue: &Queue,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: ReviveBody = read(request.body)?;
    if !queue.revive(JobId(body.id)).await? {
        return Err(missing(format!("no dead letter {}", body.id)));
    }
    reply.write_json(&json!({"id": body.id, "revived": true}));
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecurringBody<'a> {
    name: String,
    cron: Option<String>,
    every_ms: Option<u64>,
    #[serde(borrow)]
    job: JobBody<'a>,
}

/// `POST {queue}/recurring`: makes or replaces a recurring job.
pub(super) async fn put_recurring(
    queue: &Queue,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let body: RecurringBody<'_> = read(request.body)?;
    let rhythm = match (&body.cron, body.every_ms) {
        (Some(cron), None) => Rhythm::Cron(cron.parse()?),
        (None, Some(every_ms)) => Rhythm::Every(Duration::from_millis(every_ms)),
        _ => return Err(invalid("give cron or every_ms").into()),
    };
    let name = body.name;
    let recurring = Recurring { name: name.clone(), rhythm, job: body.job.job()? };
    recurring.validate()?;
    queue.put_recurring(recurring).await?;
    reply.write_json(&json!({"name": name}));
    Ok(())
}

/// `DELETE {queue}/recurring/{name}`.
pub(super) async fn remove_recurring(
    queue: &Queue,
    segment: &str,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let name = decoded(segment).ok_or(Trouble::NotFound)?;
    if !queue.remove_recurring(&name).await? {
        return Err(missing(format!("no recurring job {name:?}")));
    }
    reply.write_json(&json!({"name": name}));
    Ok(())
}
