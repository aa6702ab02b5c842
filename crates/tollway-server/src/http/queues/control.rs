//! What operators change: pauses, limits of single groups, dead letters, recurring jobs.

use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tollway_queue::{Cron, Group, JobId, Limit, Recurring, Rhythm};

use super::super::problem::Trouble;
use super::super::request::{Call, decoded};
use super::wire::{JobBody, SignedQueue, invalid, missing};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseBody {
    group: Option<String>,
}

/// `POST {queue}/pause` and `/resume`: a group, or without one the whole queue.
pub(crate) async fn set_paused(
    mut call: Call<'_>,
    queue: &SignedQueue,
    paused: bool,
) -> Result<(), Trouble> {
    let body: PauseBody = call.body_or_empty()?;
    let group = body.group.map(|name| Group::new(&name)).transpose()?;
    queue.pause(group.as_ref(), paused).await?;
    call.write(&json!({"paused": paused, "group": group.as_ref().map(Group::as_str)}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsBody {
    group: String,
    limits: Option<Vec<String>>,
}

/// `POST {queue}/limits`: limits of one group in place of the queue's; `null` takes them back.
pub(crate) async fn limits(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let body: LimitsBody = call.body()?;
    let group = Group::new(&body.group)?;
    let parse = |texts: &Vec<String>| texts.iter().map(|text| text.parse()).collect();
    let limits: Option<Vec<Limit>> = body.limits.as_ref().map(parse).transpose()?;
    queue.set_limits(&group, limits).await?;
    call.write(&json!({"group": body.group, "limits": body.limits}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReviveBody {
    id: u64,
}

/// `POST {queue}/dead/retry`: a dead letter goes back into its group.
pub(crate) async fn revive(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let body: ReviveBody = call.body()?;
    if !queue.revive(JobId(body.id)).await? {
        return Err(missing(format!("no dead letter {}", body.id)));
    }
    call.write(&json!({"id": body.id, "revived": true}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecurringBody<'a> {
    name: String,
    cron: Option<String>,
    zone: Option<String>,
    every_ms: Option<u64>,
    #[serde(borrow)]
    job: JobBody<'a>,
}

/// `POST {queue}/recurring`: makes or replaces a recurring job.
pub(crate) async fn put_recurring(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    let body: RecurringBody<'_> = call.body()?;
    let rhythm = match (&body.cron, body.every_ms) {
        (Some(cron), None) => Rhythm::Cron(match &body.zone {
            Some(zone) => Cron::in_zone(cron, zone)?,
            None => cron.parse()?,
        }),
        (None, Some(_)) if body.zone.is_some() => {
            return Err(invalid("a zone needs cron, not every_ms").into());
        }
        (None, Some(every_ms)) => Rhythm::Every(Duration::from_millis(every_ms)),
        _ => return Err(invalid("give cron or every_ms").into()),
    };
    let name = body.name;
    let recurring = Recurring { name: name.clone(), rhythm, job: body.job.job()? };
    recurring.validate()?;
    queue.put_recurring(recurring).await?;
    call.write(&json!({"name": name}))
}

/// `DELETE {queue}/recurring/{name}`.
pub(crate) async fn remove_recurring(
    mut call: Call<'_>,
    queue: &SignedQueue,
) -> Result<(), Trouble> {
    let name = decoded(call.parameters[1]).ok_or(Trouble::NotFound)?;
    if !queue.remove_recurring(&name).await? {
        return Err(missing(format!("no recurring job {name:?}")));
    }
    call.write(&json!({"name": name}))
}
