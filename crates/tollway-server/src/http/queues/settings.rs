//! Settings: queues and shared limits made, changed and removed while everything runs.
//!
//! Bodies are in the words of the file. `version` in a body, if it is there, is the one that is to
//! be changed: who has read settings and writes them back overwrites nobody's. Each change is
//! logged, and needs a token, whoever may ask otherwise.

use serde::Deserialize;
use serde_json::{Value, json};
use tollway_queue::{
    Author, Changed, Described, ErrorKind, Limit, QueueName, QueueSettings, SharedLimit, Version,
};
use tracing::info;

use super::super::problem::Trouble;
use super::super::request::{Call, decoded};
use super::super::routes::permit_change;
use super::wire::{self, SignedQueue, missing};
use crate::config::queues::{settings_json, settings_of};
use crate::queues::Queues;

/// Who reads, changes and writes back begins again this often if others change it meanwhile.
const TRIES: usize = 8;

/// What the path's queue is told to be: the settings in the words of the file, and the version that
/// is expected.
fn read_body(call: &Call<'_>) -> Result<(Value, Option<u64>), Trouble> {
    let mut body: Value = call.body_or_empty()?;
    let Some(fields) = body.as_object_mut() else {
        return Err(Trouble::bad("the body: expected an object"));
    };
    let expected = match fields.remove("version") {
        None => None,
        Some(version) => {
            let wrong = || Trouble::bad("version: expected a whole number");
            Some(version.as_u64().ok_or_else(wrong)?)
        }
    };
    Ok((body, expected))
}

/// `PUT {queue}`: makes the queue (201), or replaces its settings: those that the body leaves out
/// are the defaults.
pub(crate) async fn put(call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    permit_change(&call)?;
    let (body, expected) = read_body(&call)?;
    let settings = settings_of(&body, QueueSettings::default()).map_err(Trouble::Bad)?;
    let changed = queue.change(settings.clone(), Author::Call { expected }).await?;
    call.reply.status = if changed.version.number == 1 { 201 } else { 200 };
    answer(call, queue, settings, changed)
}

/// `PATCH {queue}`: changes the settings that the body names, and leaves the others as they are.
pub(crate) async fn patch(call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    permit_change(&call)?;
    let (body, expected) = read_body(&call)?;
    for _ in 0..TRIES {
        let Described { settings, version } = queue.describe().await?;
        let settings = settings_of(&body, settings).map_err(Trouble::Bad)?;
        let author = Author::Call { expected: Some(expected.unwrap_or(version.number)) };
        match queue.change(settings.clone(), author).await {
            Err(error) if error.kind() == ErrorKind::Conflict && expected.is_none() => {}
            changed => return answer(call, queue, settings, changed?),
        }
    }
    Err(Trouble::Queue(tollway_queue::Error::new(
        ErrorKind::Conflict,
        "others change it all the time: try again",
    )))
}

fn answer(
    mut call: Call<'_>,
    queue: &SignedQueue,
    settings: QueueSettings,
    changed: Changed,
) -> Result<(), Trouble> {
    let name = queue.name().as_str();
    if let Some(queues) = call.service().queues() {
        queues.note_use();
    }
    info!(queue = name, version = changed.version.number, "queue changed by a call");
    let mut told = json!({"name": name});
    put_described(&mut told, &Described { settings, version: changed.version });
    call.write(&told)
}

/// Adds settings and their version to what is told of a queue.
pub(super) fn put_described(told: &mut Value, described: &Described) {
    told["settings"] = settings_json(&described.settings);
    put_version(told, described.version);
}

fn put_version(told: &mut Value, version: Version) {
    told["version"] = version.number.into();
    told["changed_by"] = if version.is_from_file { "file" } else { "call" }.into();
    // Nobody knows when settings were given that are older than versions.
    let at = (version.number > 0).then(|| wire::ms(version.at));
    told["changed_at_ms"] = at.into();
}

/// `DELETE {queue}`: only one without jobs and dead letters, and not one of this service's files.
pub(crate) async fn remove(mut call: Call<'_>, queue: &SignedQueue) -> Result<(), Trouble> {
    permit_change(&call)?;
    let queues = call.service().queues().ok_or(Trouble::NotFound)?;
    let name = queue.name().as_str();
    if queues.planned(queue.name()).is_some() {
        return Err(named_by_file(&format!("queue {name}")));
    }
    if !queue.remove_empty().await? {
        return Err(missing(format!("there is no queue {name}")));
    }
    info!(queue = name, "queue removed by a call");
    call.write(&json!({"name": name, "removed": true}))
}

fn named_by_file(what: &str) -> Trouble {
    let message = format!("{what} is in this service's file: remove it there first");
    Trouble::Queue(tollway_queue::Error::new(ErrorKind::Conflict, message))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SharedLimitBody {
    limit: String,
    version: Option<u64>,
}

/// The queues, and the shared limit that the path names.
fn shared_limit<'a>(call: &Call<'a>) -> Result<(&'a Queues, QueueName), Trouble> {
    call.request.expect_query(&[])?;
    let queues = call.service().queues().ok_or(Trouble::NotFound)?;
    // Not before the store's place is known: it may be about to be made.
    queues.signer()?;
    let name = decoded(call.parameters[0]).ok_or(Trouble::NotFound)?;
    Ok((queues, QueueName::new(&name)?))
}

fn shown(name: &QueueName, limit: &SharedLimit) -> Value {
    let mut told = json!({"name": name.as_str(), "limit": limit.limit.to_string()});
    put_version(&mut told, limit.version);
    told
}

/// `GET /v1/shared-limits`.
pub(crate) async fn list_shared(mut call: Call<'_>) -> Result<(), Trouble> {
    call.request.expect_query(&[])?;
    let mut listed = Vec::new();
    if let Some(queues) = call.service().queues() {
        queues.signer()?;
        listed = queues.backend().shared().await?;
    }
    let listed: Vec<Value> = listed.iter().map(|(name, limit)| shown(name, limit)).collect();
    call.write(&json!({"shared_limits": listed}))
}

/// `PUT /v1/shared-limits/{name}`: makes a limit that queues may share (201), or changes it.
pub(crate) async fn put_shared(mut call: Call<'_>) -> Result<(), Trouble> {
    permit_change(&call)?;
    let (queues, name) = shared_limit(&call)?;
    let body: SharedLimitBody = call.body()?;
    let limit: Limit = body.limit.parse()?;
    let author = Author::Call { expected: body.version };
    let now = queues.clock().now();
    let changed = queues.backend().change_shared(&name, limit, author, now).await?;
    queues.note_use();
    let version = changed.version;
    let (who, what) = (call.who(), limit.to_string());
    info!(who, shared_limit = name.as_str(), action = "set", what, "an operator's change");
    call.reply.status = if version.number == 1 { 201 } else { 200 };
    call.write(&shown(&name, &SharedLimit { limit, version }))
}

/// `DELETE /v1/shared-limits/{name}`: only one that no queue and no file of this service names.
pub(crate) async fn remove_shared(mut call: Call<'_>) -> Result<(), Trouble> {
    permit_change(&call)?;
    let (queues, name) = shared_limit(&call)?;
    if queues.plans_limit(&name) {
        return Err(named_by_file(&format!("shared limit {name}")));
    }
    if !queues.backend().remove_shared(&name).await? {
        return Err(missing(format!("there is no shared limit {name}")));
    }
    let who = call.who();
    info!(who, shared_limit = name.as_str(), action = "remove", "an operator's change");
    call.write(&json!({"name": name.as_str(), "removed": true}))
}
