//! What the configuration says of the calls that push a queue's jobs.
//!
//! ```toml
//! [queues.push]
//! url = "https://api.example.com/v1/guilds/{group}/members/{payload.user_id}"
//! method = "PUT"
//! [queues.push.headers]
//! authorization = { env = "API_TOKEN", prefix = "Bearer " }   # or { file = "/run/secrets/token" }
//! x-reason = "{payload.reason}"
//! ```
//!
//! A secret is read when the configuration is. It is in no error, no log and no answer.

use tollway_queue::push::{FieldText, Keep, Push, PushTarget, Secret, field_name, method};

use super::error::ConfigError;
use super::reader::{ConfigValue, Table};

/// A target; results are at most as long as payloads.
pub(super) fn target(place: &ConfigValue<'_>, payload_max: u32) -> Result<PushTarget, ConfigError> {
    let table = place.table()?;
    let mut target = PushTarget::new("");
    table.set("allow_target", &mut target.allow_target, ConfigValue::boolean);
    let url = match table.get("url") {
        // Every job may name its own instead.
        None if target.allow_target => Some(String::new()),
        _ => table.tell(table.need("url").and_then(|place| place.text())),
    };
    table.set("origins", &mut target.origins, ConfigValue::texts);
    table.set("method", &mut target.method, |place| told(place, method(&place.text()?)));
    table.set("body", &mut target.body, |place| place.parsed().map(Some));
    table.set("timeout", &mut target.timeout, ConfigValue::duration);
    table.set("concurrency", &mut target.concurrency, ConfigValue::number);
    table.set("content_type", &mut target.content_type, ConfigValue::text);
    table.set("keep_result", &mut target.keep, keep);
    table.set("keep_headers", &mut target.keep_fields, |place| place.all(ConfigValue::parsed));
    table.set("profile", &mut target.profile, |place| place.text().map(Some));
    table.set("roots", &mut target.roots_pem, |place| read_file(place).map(Some));
    table.set("headers", &mut target.fields, headers);
    table.finish();
    if target.concurrency == 0 {
        table.note("concurrency must be at least 1");
    }
    target.result_bytes = target.result_bytes.min(payload_max as usize);
    if let Some(url) = url {
        target.url = url;
        Push::new(&target).map_err(|error| table.wrong(error.to_string()))?;
    }
    Ok(target)
}

fn told<T>(
    place: &ConfigValue<'_>,
    result: Result<T, tollway_queue::Error>,
) -> Result<T, ConfigError> {
    result.map_err(|error| place.wrong(error.to_string()))
}

/// `true` for the body, `"answer"` for status and header fields, too.
fn keep(place: &ConfigValue<'_>) -> Result<Keep, ConfigError> {
    match &place.text()?[..] {
        "false" => Ok(Keep::Nothing),
        "true" => Ok(Keep::Body),
        "answer" => Ok(Keep::Answer),
        _ => Err(place.wrong("expected false, true or \"answer\"")),
    }
}

fn read_file(place: &ConfigValue<'_>) -> Result<String, ConfigError> {
    let path = place.text()?;
    std::fs::read_to_string(&path)
        .map_err(|error| place.wrong(format!("{path} cannot be read: {error}")))
}

/// Header fields by name: a text with places, or a table that says where a secret is.
fn headers(place: &ConfigValue<'_>) -> Result<Vec<(http::HeaderName, FieldText)>, ConfigError> {
    let read = |(name, place): (&str, ConfigValue<'_>)| {
        let name = told(&place, field_name(name))?;
        let text = match place.table() {
            Ok(table) => FieldText::Secret(secret(&table)?),
            Err(_) => FieldText::Text(place.text()?),
        };
        Ok((name, text))
    };
    let entries = place.entries()?.into_iter();
    Ok(entries.filter_map(|(name, entry)| place.tell(read((name, entry)))).collect())
}

/// A secret in the environment or in a file. What it is stands in no error.
fn secret(table: &Table<'_>) -> Result<Secret, ConfigError> {
    let prefix = table.text("prefix").unwrap_or_default();
    let (env, file) = (table.get("env"), table.get("file"));
    table.finish();
    let (place, secret) = match (env, file) {
        (Some(place), None) => {
            let name = place.text()?;
            let secret = std::env::var(&name);
            let secret = secret.map_err(|_| place.wrong(format!("{name} is not set")))?;
            (place, secret)
        }
        (None, Some(place)) => {
            let secret = read_file(&place)?;
            (place, secret)
        }
        _ => return Err(table.wrong("give either env or file")),
    };
    told(&place, Secret::new(&prefix, &secret))
}
