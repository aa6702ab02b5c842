//! Queues in the configuration: their limits, leases, retries and bounds.
//!
//! ```toml
//! queue_store = "redb:/var/lib/tollgate/queue.redb"   # memory, redb:PATH, redis://…
//!
//! [[shared_limits]]
//! name = "discord"
//! limit = "slots 50/1s"
//!
//! [[queues]]
//! name = "roles"
//! group_limits = ["slots 10/10s"]
//! shared = ["discord"]
//! lease = "30s"
//!
//! [queues.push]                      # instead of workers that lease
//! url = "http://127.0.0.1:9000/roles"
//! ```

use tollgate_queue::push::{Push, PushTarget};
use tollgate_queue::{QueueName, QueueSettings};

use super::error::ConfigError;
use super::reader::{Place, Table};
use crate::queues::{PlannedQueue, QueuePlan};

/// Adds what a file says about queues to `plan`.
pub(super) fn read(table: &Table<'_>, plan: &mut QueuePlan) -> Result<(), ConfigError> {
    if let Some(limits) = table.get("shared_limits") {
        for place in limits.list()? {
            let inner = place.table()?;
            let name: QueueName = inner.need("name")?.parsed()?;
            plan.shared.push((name, inner.need("limit")?.parsed()?));
            inner.finish()?;
        }
    }
    if let Some(queues) = table.get("queues") {
        for place in queues.list()? {
            let queue = queue(&place)?;
            if plan.queues.iter().any(|known| known.name == queue.name) {
                return Err(place.wrong(format!("a queue named {} stands above", queue.name)));
            }
            plan.queues.push(queue);
        }
    }
    for queue in &plan.queues {
        let is_known = |name: &QueueName| plan.shared.iter().any(|(known, _)| known == name);
        if let Some(missing) = queue.settings.shared.iter().find(|name| !is_known(name)) {
            let name = &queue.name;
            return Err(table.wrong(format!("queue {name} shares {missing}, which is no limit")));
        }
    }
    Ok(())
}

fn queue(place: &Place<'_>) -> Result<PlannedQueue, ConfigError> {
    let table = place.table()?;
    let name = table.need("name")?.parsed()?;
    let mut settings = QueueSettings::default();
    let limits = |place: &Place<'_>| place.list()?.iter().map(Place::parsed).collect();
    table.set("group_limits", &mut settings.group_limits, limits)?;
    table.set("queue_limits", &mut settings.queue_limits, limits)?;
    table.set("shared", &mut settings.shared, |place| {
        place.list()?.iter().map(Place::parsed).collect()
    })?;
    table.set("lease", &mut settings.lease, |place| place.duration())?;
    table.set("attempts", &mut settings.attempts_max, |place| place.number())?;
    table.set("backoff", &mut settings.backoff.first, |place| place.duration())?;
    table.set("backoff_max", &mut settings.backoff.max, |place| place.duration())?;
    table.set("response_max", &mut settings.response_max, |place| place.duration())?;
    table.set("key_window", &mut settings.key_window, |place| place.duration())?;
    table.set("keys_max", &mut settings.keys_max, |place| place.number())?;
    table.set("payload_bytes", &mut settings.payload_max, |place| place.number())?;
    table.set("jobs_max", &mut settings.jobs_max, |place| place.number())?;
    table.set("groups_max", &mut settings.groups_max, |place| place.number())?;
    let retention = &mut settings.retention;
    table.set("keep_done", &mut retention.done_age, |place| place.duration())?;
    table.set("keep_done_max", &mut retention.done_max, |place| place.number())?;
    table.set("keep_dead", &mut retention.dead_age, |place| place.duration())?;
    table.set("keep_dead_max", &mut retention.dead_max, |place| place.number())?;
    settings.validate().map_err(|error| table.wrong(error.to_string()))?;
    let push = table.get("push").map(|place| push(&place)).transpose()?;
    table.finish()?;
    Ok(PlannedQueue { name, settings, push })
}

/// The certificates in a file.
fn roots(place: &Place<'_>) -> Result<String, ConfigError> {
    let path = place.text()?;
    std::fs::read_to_string(&path)
        .map_err(|error| place.wrong(format!("{path} cannot be read: {error}")))
}

fn push(place: &Place<'_>) -> Result<PushTarget, ConfigError> {
    let table = place.table()?;
    let mut target = PushTarget::new(table.need("url")?.text()?);
    table.set("timeout", &mut target.timeout, |place| place.duration())?;
    table.set("concurrency", &mut target.concurrency, |place| place.number())?;
    table.set("content_type", &mut target.content_type, |place| place.text())?;
    table.set("keep_result", &mut target.keep_result, |place| place.boolean())?;
    table.set("profile", &mut target.profile, |place| place.text().map(Some))?;
    table.set("roots", &mut target.roots_pem, |place| roots(place).map(Some))?;
    if target.concurrency == 0 {
        return Err(table.wrong("concurrency must be at least 1"));
    }
    Push::new(&target).map_err(|error| table.wrong(error.to_string()))?;
    table.finish()?;
    Ok(target)
}
