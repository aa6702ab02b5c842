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
//!
//! [[queues.recurring]]               # jobs that the queue enqueues itself
//! name = "nightly"
//! cron = "30 2 * * *"
//! zone = "Europe/Berlin"
//! group = "reports"
//! ```

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tollway_core::Quota;
use tollway_queue::{
    Cron, Group, Limit, NewJob, QueueName, QueueSettings, Recurring, Rhythm, TextDigest,
};

use super::error::{ConfigError, Finding};
use super::names::Names;
use super::push;
use super::reader::{ConfigValue, Source, Table};
use super::tree::from_json;
use crate::queues::{PlannedLimit, PlannedQueue, QueuePlan};

/// Adds what a file says about queues to `plan`; `names` are those of the queues so far.
pub(super) fn read(table: &Table<'_>, plan: &mut QueuePlan, names: &mut Names) {
    for place in table.each("shared_limits") {
        plan.shared.extend(place.tell(shared_limit(&place)).flatten());
    }
    let mut shared = HashSet::with_capacity(plan.shared.len());
    shared.extend(plan.shared.iter().map(|limit| &limit.name));
    for place in table.each("queues") {
        let Some(queue) = place.tell(queue(&place)) else { continue };
        if !names.add(queue.name.as_str()) {
            let problem = format!("a queue named {} is defined above", queue.name);
            place.note(problem);
        }
        for missing in queue.settings.shared.iter().filter(|name| !shared.contains(name)) {
            let problem =
                format!("queue {} shares {missing}, but no shared limit has this name", queue.name);
            place.note(problem);
        }
        plan.queues.push(queue);
    }
}

/// What stands for the text of a section: equal if the same fields say the same. Where jobs are
/// pushed to is no setting of the queue.
fn digest(place: &ConfigValue<'_>) -> TextDigest {
    let json = place.json();
    let fields = json.as_object().into_iter().flatten().filter(|(name, _)| *name != "push");
    let fields: BTreeMap<&String, &serde_json::Value> = fields.collect();
    let text = serde_json::to_vec(&fields).expect("texts and numbers are JSON");
    let whole = ring::digest::digest(&ring::digest::SHA256, &text);
    let mut first = TextDigest::default();
    first.copy_from_slice(&whole.as_ref()[..size_of::<TextDigest>()]);
    first
}

/// A limit that queues share; `None` if something is wrong with it, which is noted.
fn shared_limit(place: &ConfigValue<'_>) -> Result<Option<PlannedLimit>, ConfigError> {
    let table = place.table()?;
    // Both are looked at before either fails: each may be wrong.
    let (name, limit) = (table.need("name"), table.need("limit"));
    let name = table.tell(name.and_then(|place| place.parsed()));
    let limit = table.tell(limit.and_then(|place| place.parsed()));
    table.text(REVISION);
    table.finish();
    let digest = digest(place);
    Ok(name.zip(limit).map(|(name, limit)| PlannedLimit { name, limit, digest }))
}

/// Says nothing, and makes a section another text: so that one that was given before is taken
/// again.
const REVISION: &str = "revision";

fn queue(place: &ConfigValue<'_>) -> Result<PlannedQueue, ConfigError> {
    let table = place.table()?;
    let name = table.tell(table.need("name").and_then(|place| place.parsed()));
    let mut settings = QueueSettings::default();
    read_settings(&table, &mut settings);
    table.text(REVISION);
    let mut push = None;
    table.set("push", &mut push, |place| push::target(place, settings.payload_max).map(Some));
    let places = table.each("recurring");
    let recurring = places.iter().filter_map(|place| place.tell(recurring(place)));
    let recurring: Vec<Recurring> = recurring.collect();
    table.finish();
    let mut names = Names::default();
    for twice in recurring.iter().filter(|recurring| !names.add(&recurring.name)) {
        table.note(format!("a recurring job named {:?} is defined above", twice.name));
    }
    table.tell(settings.validate().map_err(|error| table.wrong(error.to_string())));
    let name = name.unwrap_or_else(|| QueueName::new("unnamed").expect("a name"));
    Ok(PlannedQueue { name, settings, push, recurring, digest: digest(place) })
}

/// Replaces in `settings` what the table says.
fn read_settings(table: &Table<'_>, settings: &mut QueueSettings) {
    let limits = |place: &ConfigValue<'_>| place.all(ConfigValue::parsed);
    table.set("group_limits", &mut settings.group_limits, limits);
    table.set("queue_limits", &mut settings.queue_limits, limits);
    table.set("shared", &mut settings.shared, |place| place.all(ConfigValue::parsed));
    table.set("lease", &mut settings.lease, ConfigValue::duration);
    table.set("attempts", &mut settings.attempts_max, ConfigValue::number);
    table.set("backoff", &mut settings.backoff.first, ConfigValue::duration);
    table.set("backoff_max", &mut settings.backoff.max, ConfigValue::duration);
    table.set("backoff_jitter", &mut settings.backoff_jitter, ConfigValue::number);
    table.set("missed_deadline", &mut settings.missed_deadline, ConfigValue::parsed);
    table.set("response_max", &mut settings.response_max, ConfigValue::duration);
    table.set("key_window", &mut settings.key_window, ConfigValue::duration);
    table.set("keys_max", &mut settings.keys_max, ConfigValue::number);
    table.set("payload_bytes", &mut settings.payload_max, ConfigValue::bytes);
    table.set("jobs_max", &mut settings.jobs_max, ConfigValue::number);
    table.set("bytes_max", &mut settings.bytes_max, ConfigValue::bytes);
    table.set("groups_max", &mut settings.groups_max, ConfigValue::number);
    let retention = &mut settings.retention;
    table.set("keep_done", &mut retention.done_age, ConfigValue::duration);
    table.set("keep_done_max", &mut retention.done_max, ConfigValue::number);
    table.set("keep_dead", &mut retention.dead_age, ConfigValue::duration);
    table.set("keep_dead_max", &mut retention.dead_max, ConfigValue::number);
}

/// `settings` with what a body says in the words of the file.
///
/// # Errors
///
/// If the body says something else, or something out of bounds; the text names the fields.
pub(crate) fn settings_of(
    body: &serde_json::Value,
    mut settings: QueueSettings,
) -> Result<QueueSettings, String> {
    let (finding, tree) = (Finding::default(), from_json(body));
    let name = &Arc::from("the body");
    let source = Source { name, finding: &finding, looks_at_files: false };
    let root = ConfigValue::root(source, &tree);
    let read = root.tell(root.table()).map(|table| {
        read_settings(&table, &mut settings);
        table.finish();
        table.tell(settings.validate().map_err(|error| table.wrong(error.to_string())));
        settings
    });
    finding.finish(read).map_err(|mistakes| mistakes.to_string())
}

/// Settings in the words of the file.
pub(crate) fn settings_json(settings: &QueueSettings) -> serde_json::Value {
    let texts = |limits: &[Limit]| limits.iter().map(ToString::to_string).collect::<Vec<_>>();
    let shared: Vec<&str> = settings.shared.iter().map(QueueName::as_str).collect();
    let retention = &settings.retention;
    serde_json::json!({
        "group_limits": texts(&settings.group_limits),
        "queue_limits": texts(&settings.queue_limits),
        "shared": shared,
        "lease": duration(settings.lease),
        "attempts": settings.attempts_max,
        "backoff": duration(settings.backoff.first),
        "backoff_max": duration(settings.backoff.max),
        "backoff_jitter": settings.backoff_jitter,
        "missed_deadline": settings.missed_deadline.name(),
        "response_max": duration(settings.response_max),
        "key_window": duration(settings.key_window),
        "keys_max": settings.keys_max,
        "payload_bytes": settings.payload_max,
        "jobs_max": settings.jobs_max,
        "bytes_max": settings.bytes_max,
        "groups_max": settings.groups_max,
        "keep_done": duration(retention.done_age),
        "keep_done_max": retention.done_max,
        "keep_dead": duration(retention.dead_age),
        "keep_dead_max": retention.dead_max,
    })
}

/// A duration as it is read: `1m30s`.
fn duration(duration: Duration) -> String {
    // A quota has a time behind its slash, in the same words.
    let quota = Quota::new(1, duration).map(|quota| quota.to_string());
    let text = quota.as_deref().ok().and_then(|text| text.strip_prefix("1/"));
    text.map_or_else(|| format!("{}ns", duration.as_nanos()), str::to_owned)
}

/// A job that the queue enqueues itself.
fn recurring(place: &ConfigValue<'_>) -> Result<Recurring, ConfigError> {
    let table = place.table()?;
    let text = |name: &'static str| table.text(name).unwrap_or_default();
    let name = table.tell(table.need("name").and_then(|place| place.text()));
    let (cron, zone, mut every) = (table.get("cron"), table.text("zone"), None);
    table.set("every", &mut every, |place| place.duration().map(Some));
    let rhythm = match (&cron, every) {
        (Some(place), None) => calendar(place, zone.as_deref())?,
        (None, Some(every)) if zone.is_none() => Rhythm::Every(every),
        (None, Some(_)) => return Err(table.wrong("a zone needs cron, not every")),
        _ => return Err(table.wrong("give cron or every")),
    };
    let group = Group::new(&text("group")).map_err(|error| table.wrong(error.to_string()))?;
    let mut job = NewJob::new(group, text("payload"));
    table.set("priority", &mut job.priority, ConfigValue::number);
    table.set("weight", &mut job.weight, ConfigValue::number);
    table.set("attempts", &mut job.attempts_max, |place| place.number().map(Some));
    table.finish();
    let recurring = Recurring { name: name.unwrap_or_default(), rhythm, job };
    recurring.validate().map_err(|error| table.wrong(error.to_string()))?;
    Ok(recurring)
}

fn calendar(place: &ConfigValue<'_>, zone: Option<&str>) -> Result<Rhythm, ConfigError> {
    let fields = place.text()?;
    let cron = match zone {
        Some(zone) => Cron::in_zone(&fields, zone),
        None => fields.parse(),
    };
    cron.map(Rhythm::Cron).map_err(|error| place.wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use tollway_queue::push::{FieldText, Keep, PushBody, PushTarget, Secret};
    use tollway_queue::{Backoff, MissedDeadline, Retention};

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
        revision = "second try"
        group_limits = ["slots 10/10s"]
        queue_limits = ["gcra 5/1s"]
        shared = ["discord"]
        lease = "31s"
        attempts = 6
        backoff = "2s"
        backoff_max = "3m"
        backoff_jitter = 25
        missed_deadline = "drop"
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
        [[queues.recurring]]
        name = "nightly"
        cron = "30 2 * * *"
        zone = "Europe/Berlin"
        group = "reports"
        payload = "all"
        priority = 2
        weight = 3
        attempts = 4
        [[queues.recurring]]
        name = "often"
        every = "90s"
    "#;

    #[test]
    fn every_key_of_a_queue_and_its_target_takes_effect() {
        let plan = load(EVERY_KEY).unwrap();
        let discord: QueueName = "discord".parse().unwrap();
        assert_eq!(plan.store.as_deref(), Some("redb:there.redb"));
        let [limit] = &plan.shared[..] else { panic!("{:?}", plan.shared) };
        assert_eq!((&limit.name, limit.limit), (&discord, "slots 50/1s".parse().unwrap()));
        let settings = QueueSettings {
            group_limits: vec!["slots 10/10s".parse().unwrap()],
            queue_limits: vec!["gcra 5/1s".parse().unwrap()],
            shared: vec![discord],
            lease: Duration::from_secs(31),
            attempts_max: 6,
            backoff: Backoff { first: Duration::from_secs(2), max: Duration::from_secs(180) },
            backoff_jitter: 25,
            missed_deadline: MissedDeadline::Drop,
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
        let reports = NewJob::new(Group::new("reports").unwrap(), "all");
        let nightly = Recurring {
            name: "nightly".to_owned(),
            rhythm: Rhythm::Cron(Cron::in_zone("30 2 * * *", "Europe/Berlin").unwrap()),
            job: reports.priority(2).weight(3).attempts_max(4),
        };
        let often = Recurring {
            name: "often".to_owned(),
            rhythm: Rhythm::Every(Duration::from_secs(90)),
            job: NewJob::new(Group::new("").unwrap(), ""),
        };
        let [queue] = &plan.queues[..] else { panic!("{plan:?}") };
        assert_eq!((queue.name.as_str(), &queue.settings), ("roles", &settings));
        assert_eq!((&queue.push, &queue.recurring), (&Some(push), &vec![nightly, often]));
        let again = settings_of(&settings_json(&settings), QueueSettings::default());
        assert_eq!(again, Ok(settings), "what is told is what is read");
    }

    #[test]
    fn what_a_queue_cannot_be_is_told_with_its_field() {
        let queue = "[[queues]]\nname = \"q\"\n";
        let push = format!("{queue}[queues.push]\nurl = \"http://127.0.0.1:9/\"\n");
        let daily_only = "[[queues.recurring]]\nname = \"r\"\ncron = \"@daily\"\n";
        let daily = format!("{queue}{daily_only}");
        let every = "[[queues.recurring]]\nname = \"r\"\nevery = \"1h\"\n";
        for (text, told) in [
            (format!("{queue}{queue}"), "is defined above"),
            (format!("{queue}shared = [\"nowhere\"]\n"), "nowhere"),
            (format!("{queue}lease = \"never\"\n"), "lease"),
            (format!("{queue}[[queues.recurring]]\nname = \"r\"\n"), "give cron or every"),
            (format!("{queue}[[queues.recurring]]\ncron = \"@daily\"\n"), "name is missing"),
            (format!("{daily}{daily_only}"), "is defined above"),
            (format!("{daily}zone = \"Europe/Nowhere\"\n"), "Europe/Nowhere"),
            (format!("{queue}{every}zone = \"UTC\"\n"), "a zone needs cron"),
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

    #[test]
    fn a_section_is_another_text_if_a_setting_is_another_and_not_if_the_target_is() {
        let digest = |fields: &str| {
            load(&format!("[[queues]]\nname = \"q\"\n{fields}")).unwrap().queues[0].digest
        };
        let first = digest("lease = \"3s\"\nattempts = 2\n");
        assert_eq!(first, digest("attempts = 2\n# a comment\nlease = \"3s\"\n"));
        let push = "[queues.push]\nurl = \"http://127.0.0.1:9/\"\n";
        assert_eq!(first, digest(&format!("lease = \"3s\"\nattempts = 2\n{push}")));
        assert_ne!(first, digest("lease = \"4s\"\nattempts = 2\n"));
        assert_ne!(first, digest("lease = \"3s\"\nattempts = 2\nrevision = \"b\"\n"));
    }

    #[test]
    fn a_body_is_read_in_the_words_of_the_file_and_what_is_wrong_is_named() {
        let body = serde_json::json!({"lease": "90s", "attempts": 7});
        let read = settings_of(&body, QueueSettings::default()).unwrap();
        let lease = Duration::from_secs(90);
        assert_eq!(read, QueueSettings { lease, attempts_max: 7, ..QueueSettings::default() });
        assert_eq!(settings_json(&read)["lease"], "1m30s");
        for (body, told) in [
            (serde_json::json!({"leese": "1s"}), "did you mean lease?"),
            (serde_json::json!({"lease": 0}), "lease"),
            (serde_json::json!({"attempts": 0}), "attempts"),
            (serde_json::json!({"group_limits": ["slots"]}), "group_limits[0]"),
            (serde_json::json!({"push": {"url": "http://127.0.0.1/"}}), "push"),
            (serde_json::json!([]), "a table"),
        ] {
            let refused = settings_of(&body, QueueSettings::default()).expect_err(told);
            assert!(refused.contains(told), "{refused}");
        }
    }
}
