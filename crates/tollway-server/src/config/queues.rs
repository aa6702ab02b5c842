//! Queues in the configuration: their limits, leases, retries and bounds.
//!
//! ```toml
//! queue_store = "redb:/var/lib/tollway/queue.redb"   # memory, redb:PATH, redis://…
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

use std::collections::HashSet;

use tollway_queue::{Limit, QueueName, QueueSettings};

use super::error::ConfigError;
use super::names::Names;
use super::push;
use super::reader::{ConfigValue, Table};
use crate::queues::{PlannedQueue, QueuePlan};

/// Adds what a file says about queues to `plan`; `names` are those of the queues so far.
pub(super) fn read(table: &Table<'_>, plan: &mut QueuePlan, names: &mut Names) {
    for place in table.each("shared_limits") {
        plan.shared.extend(place.tell(shared_limit(&place)).flatten());
    }
    let mut shared = HashSet::with_capacity(plan.shared.len());
    shared.extend(plan.shared.iter().map(|(name, _)| name));
    for place in table.each("queues") {
        let Some(queue) = place.tell(queue(&place)) else { continue };
        if !names.add(queue.name.as_str()) {
            let problem = format!("a queue named {} stands above", queue.name);
            place.note(problem);
        }
        for missing in queue.settings.shared.iter().filter(|name| !shared.contains(name)) {
            let problem = format!("queue {} shares {missing}, which is no limit", queue.name);
            place.note(problem);
        }
        plan.queues.push(queue);
    }
}

/// A limit that queues share; `None` if something is wrong with it, which is noted.
fn shared_limit(place: &ConfigValue<'_>) -> Result<Option<(QueueName, Limit)>, ConfigError> {
    let table = place.table()?;
    // Both are looked at before either fails: each may be wrong.
    let (name, limit) = (table.need("name"), table.need("limit"));
    let name = table.tell(name.and_then(|place| place.parsed()));
    let limit = table.tell(limit.and_then(|place| place.parsed()));
    table.finish();
    Ok(name.zip(limit))
}

fn queue(place: &ConfigValue<'_>) -> Result<PlannedQueue, ConfigError> {
    let table = place.table()?;
    let name = table.tell(table.need("name").and_then(|place| place.parsed()));
    let mut settings = QueueSettings::default();
    let limits = |place: &ConfigValue<'_>| place.all(ConfigValue::parsed);
    table.set("group_limits", &mut settings.group_limits, limits);
    table.set("queue_limits", &mut settings.queue_limits, limits);
    table.set("shared", &mut settings.shared, |place| place.all(ConfigValue::parsed));
    table.set("lease", &mut settings.lease, ConfigValue::duration);
    table.set("attempts", &mut settings.attempts_max, ConfigValue::number);
    table.set("backoff", &mut settings.backoff.first, ConfigValue::duration);
    table.set("backoff_max", &mut settings.backoff.max, ConfigValue::duration);
    table.set("response_max", &mut settings.response_max, ConfigValue::duration);
    table.set("key_window", &mut settings.key_window, ConfigValue::duration);
    table.set("keys_max", &mut settings.keys_max, ConfigValue::number);
    table.set("payload_bytes", &mut settings.payload_max, ConfigValue::number);
    table.set("jobs_max", &mut settings.jobs_max, ConfigValue::number);
    table.set("bytes_max", &mut settings.bytes_max, ConfigValue::number);
    table.set("groups_max", &mut settings.groups_max, ConfigValue::number);
    let retention = &mut settings.retention;
    table.set("keep_done", &mut retention.done_age, ConfigValue::duration);
    table.set("keep_done_max", &mut retention.done_max, ConfigValue::number);
    table.set("keep_dead", &mut retention.dead_age, ConfigValue::duration);
    table.set("keep_dead_max", &mut retention.dead_max, ConfigValue::number);
    let mut push = None;
    table.set("push", &mut push, |place| push::target(place, settings.payload_max).map(Some));
    table.finish();
    table.tell(settings.validate().map_err(|error| table.wrong(error.to_string())));
    let name = name.unwrap_or_else(|| QueueName::new("unnamed").expect("a name"));
    Ok(PlannedQueue { name, settings, push })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollway_queue::push::{FieldText, Keep, PushBody, PushTarget, Secret};
    use tollway_queue::{Backoff, Retention};

    use super::*;
    use crate::config::{Config, Overrides};
    use crate::metrics::Metrics;

    fn load(text: &str) -> Result<QueuePlan, String> {
        let files = [("t.toml".to_owned(), text.to_owned())];
        let config = Config::from_texts(&files, &Overrides::default(), &Metrics::default());
        config.map(|config| config.queues).map_err(|error| error.to_string())
    }

    const EVERY_KEY: &str = r#"
        queue_store = "redb:there.redb"
        [[shared_limits]]
        name = "discord"
        limit = "slots 50/1s"
        [[queues]]
        name = "roles"
        group_limits = ["slots 10/10s"]
        queue_limits = ["gcra 5/1s"]
        shared = ["discord"]
        lease = "31s"
        attempts = 6
        backoff = "2s"
        backoff_max = "3m"
        response_max = "7s"
        key_window = "4h"
        keys_max = 11
        payload_bytes = 1234
        jobs_max = 12
        bytes_max = 16
        groups_max = 13
        keep_done = "5m"
        keep_done_max = 14
        keep_dead = "6d"
        keep_dead_max = 15
        [queues.push]
        url = "http://127.0.0.1:9/hook/{group}"
        method = "PUT"
        body = "payload.data"
        timeout = "8s"
        concurrency = 3
        content_type = "text/plain"
        keep_result = "answer"
        keep_headers = ["x-request-id"]
        profile = "discord"
        allow_target = true
        origins = ["https://api.example.com"]
        [queues.push.headers]
        x-reason = "{payload.why}"
        authorization = { env = "CARGO_PKG_NAME", prefix = "Bot " }
    "#;

    #[test]
    fn every_key_of_a_queue_and_its_target_takes_effect() {
        let plan = load(EVERY_KEY).unwrap();
        let discord: QueueName = "discord".parse().unwrap();
        assert_eq!(plan.store.as_deref(), Some("redb:there.redb"));
        assert_eq!(plan.shared, [(discord.clone(), "slots 50/1s".parse().unwrap())]);
        let settings = QueueSettings {
            group_limits: vec!["slots 10/10s".parse().unwrap()],
            queue_limits: vec!["gcra 5/1s".parse().unwrap()],
            shared: vec![discord],
            lease: Duration::from_secs(31),
            attempts_max: 6,
            backoff: Backoff { first: Duration::from_secs(2), max: Duration::from_secs(180) },
            response_max: Duration::from_secs(7),
            key_window: Duration::from_secs(4 * 3_600),
            keys_max: 11,
            payload_max: 1_234,
            jobs_max: 12,
            bytes_max: 16,
            groups_max: 13,
            retention: Retention {
                done_age: Duration::from_secs(300),
                done_max: 14,
                dead_age: Duration::from_secs(6 * 86_400),
                dead_max: 15,
            },
        };
        let secret = Secret::new("Bot ", env!("CARGO_PKG_NAME")).unwrap();
        let push = PushTarget {
            url: "http://127.0.0.1:9/hook/{group}".to_owned(),
            method: "PUT".parse().unwrap(),
            fields: vec![
                ("x-reason".parse().unwrap(), FieldText::Text("{payload.why}".to_owned())),
                ("authorization".parse().unwrap(), FieldText::Secret(secret)),
            ],
            body: Some(PushBody::Field("data".to_owned())),
            allow_target: true,
            origins: vec!["https://api.example.com".to_owned()],
            profile: Some("discord".to_owned()),
            roots_pem: None,
            timeout: Duration::from_secs(8),
            concurrency: 3,
            content_type: "text/plain".to_owned(),
            keep: Keep::Answer,
            keep_fields: vec!["x-request-id".parse().unwrap()],
            // What is kept of an answer is at most as long as a payload.
            result_bytes: 1_234,
        };
        let name = "roles".parse().unwrap();
        assert_eq!(plan.queues, [PlannedQueue { name, settings, push: Some(push) }]);
    }

    #[test]
    fn what_a_queue_cannot_be_is_told_with_its_field() {
        let queue = "[[queues]]\nname = \"q\"\n";
        let push = format!("{queue}[queues.push]\nurl = \"http://127.0.0.1:9/\"\n");
        for (text, told) in [
            (format!("{queue}{queue}"), "stands above"),
            (format!("{queue}shared = [\"nowhere\"]\n"), "nowhere"),
            (format!("{queue}lease = \"never\"\n"), "lease"),
            (format!("{queue}group_limits = [\"slots 0/1s\"]\n"), "group_limits"),
            (format!("{queue}atempts = 3\n"), "atempts"),
            (format!("{queue}[queues.push]\ntimeout = \"1s\"\n"), "url"),
            (format!("{queue}[queues.push]\nurl = \"ftp://127.0.0.1/\"\n"), "http"),
            (format!("{push}concurrency = 0\n"), "concurrency"),
            (format!("{push}profile = \"nobody\"\n"), "nobody"),
            (format!("{push}content_type = \"a\\nb\"\n"), "media type"),
            (format!("{push}keep_result = \"yes\"\n"), "keep_result"),
            (format!("{push}method = \"CONNECT\"\n"), "CONNECT"),
            (format!("{push}body = \"all\"\n"), "payload.FIELD"),
            (format!("{push}keep_headers = [\"a b\"]\n"), "keep_headers"),
            (format!("{push}allow_target = true\n"), "origins"),
            (format!("{push}[queues.push.headers]\nhost = \"h\"\n"), "host"),
            (format!("{push}[queues.push.headers]\nx = \"{{nobody}}\"\n"), "{nobody}"),
            (format!("{push}[queues.push.headers]\nx = {{ env = \"NO_SUCH\" }}\n"), "NO_SUCH"),
            (
                format!("{push}[queues.push.headers]\nx = {{ file = \"/nowhere/x\" }}\n"),
                "/nowhere/x",
            ),
            (
                format!("{push}[queues.push.headers]\nx = {{ prefix = \"a\" }}\n"),
                "either env or file",
            ),
            (format!("{push}roots = \"/nowhere/ca.pem\"\n"), "/nowhere/ca.pem"),
            (format!("{push}redirects = true\n"), "redirects"),
        ] {
            let error = load(&text).expect_err(&text);
            assert!(error.contains(told), "{text}: {error}");
            assert!(error.contains("t.toml"), "{text}: {error}");
        }
    }
}
