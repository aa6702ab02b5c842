//! The environment of envoyproxy/ratelimit as a configuration of ours.
//!
//! What has no meaning here is accepted and said once in the log; what would make limits other than
//! they are meant is an error.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tollway_redis::Certificates;
use tollway_server::config::{ConfigError, Given};

use super::redis_url;
use super::variables::{Lookup, Variables, wrong};
use crate::serve::{StartSettings, StoreOptions, Tracing};

/// The prefix of keys that this store has by default, before which a prefix of ratelimit's stands.
const PREFIX: &str = "tw:";

/// Variables that change nothing here, and why.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("RUNTIME_WATCH_ROOT", "files are watched whether or not a link is turned"),
    ("RUNTIME_IGNOREDOTFILES", "files whose names begin with a dot are never read"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "each key lives as long as its state needs"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "denials are always remembered in the process"),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "a denied request never takes anything"),
    ("NEAR_LIMIT_RATIO", "near is beyond four fifths of a limit"),
    ("USE_STATSD", "metrics are asked for by Prometheus: set USE_PROMETHEUS"),
    ("USE_DOG_STATSD", "metrics are asked for by Prometheus: set USE_PROMETHEUS"),
    ("STATSD_HOST", "nothing is sent to statsd"),
    ("STATSD_PORT", "nothing is sent to statsd"),
    ("EXTRA_TAGS", "Prometheus adds labels itself, by its relabelling"),
    ("STATS_FLUSH_INTERVAL", "metrics are asked for, not sent"),
    ("DISABLE_STATS", "metrics are always counted"),
    ("PROMETHEUS_PATH", "metrics are at /metrics"),
    ("PROMETHEUS_MAPPER_YAML", "metrics have the names of ratelimit's own mapping"),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "times are in seconds"),
    ("LIMIT_LIMIT_HEADER", "fields keep their names"),
    ("LIMIT_REMAINING_HEADER", "fields keep their names"),
    ("LIMIT_RESET_HEADER", "fields keep their names"),
    ("RESPONSE_DYNAMIC_METADATA", "the metadata of a rule is told wherever a rule has some"),
    ("REDIS_POOL_SIZE", "one connection carries all requests"),
    ("REDIS_PIPELINE_WINDOW", "requests that wait are sent together"),
    ("REDIS_PIPELINE_LIMIT", "requests that wait are sent together"),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "all nodes of a cluster are asked at once"),
    ("REDIS_TIMEOUT", "a call of the store takes 250 ms at most"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "there is no pool"),
    ("REDIS_STARTUP_INITIAL_INTERVAL", "the service starts without its store, and looks for it"),
    ("REDIS_STARTUP_MAX_INTERVAL", "the service starts without its store, and looks for it"),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", "the service starts without its store, and looks for it"),
    ("REDIS_PERSECOND", "all limits are counted on the Redis of REDIS_URL"),
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "names of certificates are always verified"),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "pauses have a jitter of their own"),
    ("XDS_CLIENT_BACKOFF_JITTER", "pauses have a jitter of their own"),
    ("TRACING_SERVICE_NAME", "spans name tollway"),
    ("TRACING_SERVICE_NAMESPACE", "spans name tollway"),
    ("TRACING_SERVICE_INSTANCE_ID", "spans name tollway"),
];

/// What the environment asks for.
///
/// # Errors
///
/// If a variable cannot be read, or asks for what there is not.
pub(super) fn read(lookup: Lookup<'_>) -> Result<StartSettings, ConfigError> {
    let variables = Variables(lookup);
    let backend = variables.text_or("BACKEND_TYPE", "redis");
    if backend != "redis" {
        return Err(wrong("BACKEND_TYPE", &backend, "redis: there is no store on memcached"));
    }
    let has_headers = variables.flag("LIMIT_RESPONSE_HEADERS_ENABLED")?;
    let mut notes = Vec::new();
    let mut value = json!({
        "listen": listen(variables)?,
        "without_token": "check",
        "ratelimit": {
            "needs_rules": variables.flag("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED")?,
            "needs_store": variables.flag("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION")?,
        },
        "limits": {
            "grpc_age": variables.duration("GRPC_MAX_CONNECTION_AGE", "24h")?,
            "grpc_age_grace": variables.duration("GRPC_MAX_CONNECTION_AGE_GRACE", "1h")?,
        },
        "merge_domains": variables.flag("MERGE_DOMAIN_CONFIG")?,
        "quota_mode": variables.flag("QUOTA_MODE")?,
        "shadow": variables.flag("SHADOW_MODE")?,
        "headers": if has_headers { "draft03" } else { "off" },
        "log": if variables.text_or("LOG_FORMAT", "text") == "json" { "json" } else { "text" },
    });
    match redis_url::read(variables)? {
        Some(url) => value["store"] = url.into(),
        None => notes.push("REDIS_URL is not set: counts are kept in this process".to_owned()),
    }
    if let Some(tls) = tls(variables)? {
        value["tls"] = tls;
    }
    let files = rules(variables, &mut value)?;
    let is_said = |(name, why): &(&str, &str)| {
        variables.text(name).map(|_| format!("{name} has no effect: {why}"))
    };
    notes.extend(WITHOUT_EFFECT.iter().filter_map(is_said));
    Ok(StartSettings {
        given: vec![Given { name: "environment".to_owned(), value }],
        files,
        store: store(variables)?,
        log_level: Some(log_level(variables)?),
        tracing: tracing(variables, &mut notes)?,
        notes,
    })
}

fn listen(variables: Variables<'_>) -> Result<Value, ConfigError> {
    let place = |host: &str, port: &str, default: u16| {
        let host = variables.text_or(host, "0.0.0.0");
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Ok(format!("{host}:{}", variables.port(port, default)?))
    };
    let mut more = vec![place("DEBUG_HOST", "DEBUG_PORT", 6070)?];
    if variables.flag("USE_PROMETHEUS")? {
        let address = variables.text_or("PROMETHEUS_ADDR", ":9090");
        let host = if address.starts_with(':') { "0.0.0.0" } else { "" };
        more.push(format!("{host}{address}"));
    }
    let grpc = match variables.text("GRPC_UDS") {
        Some(path) => format!("unix:{path}"),
        None => place("GRPC_HOST", "GRPC_PORT", 8081)?,
    };
    let http = place("HOST", "PORT", 8080)?;
    Ok(json!({"http": http, "grpc": grpc, "resp": "off", "public": true, "more_http": more}))
}

/// Of gRPC alone: ratelimit's other ports speak without TLS.
fn tls(variables: Variables<'_>) -> Result<Option<Value>, ConfigError> {
    if !variables.flag("GRPC_SERVER_USE_TLS")? {
        return Ok(None);
    }
    let need = |name: &str| variables.text(name).ok_or_else(|| wrong(name, "", "a file"));
    let mut tls = json!({
        "certificate": need("GRPC_SERVER_TLS_CERT")?,
        "key": need("GRPC_SERVER_TLS_KEY")?,
        "fronts": ["grpc"],
    });
    let required = variables.text("GRPC_CLIENT_TLS_CACERT");
    // Envoy Gateway sets this one, which ratelimit ignores: who comes without a certificate
    // is let in there.
    let optional = variables.text("GRPC_SERVER_TLS_CA_CERT").filter(|_| required.is_none());
    if optional.is_some() {
        tls["client_optional"] = true.into();
    }
    if let Some(authority) = required.or(optional) {
        tls["client_authority"] = authority.into();
    }
    if let Some(name) = variables.text("GRPC_CLIENT_TLS_SAN") {
        tls["client_name"] = name.into();
    }
    Ok(Some(tls))
}

/// The folder of rules, or who pushes them.
fn rules(variables: Variables<'_>, value: &mut Value) -> Result<Vec<PathBuf>, ConfigError> {
    match variables.text_or("CONFIG_TYPE", "FILE").as_str() {
        "FILE" => {
            let root = variables.text_or("RUNTIME_ROOT", "/srv/runtime_data/current");
            let folder = variables.text("RUNTIME_SUBDIRECTORY").unwrap_or_default();
            let folder = Path::new(&root).join(folder);
            let mut folder = folder.join(variables.text_or("RUNTIME_APPDIRECTORY", "config"));
            if variables.flag("FORCE_START_WITHOUT_INITIAL_CONFIG")? {
                // That ends with a slash: it may come later.
                folder.push("");
            }
            Ok(vec![folder])
        }
        "GRPC_XDS_SOTW" => {
            value["xds"] = xds(variables)?;
            Ok(Vec::new())
        }
        other => Err(wrong("CONFIG_TYPE", other, "FILE or GRPC_XDS_SOTW")),
    }
}

fn xds(variables: Variables<'_>) -> Result<Value, ConfigError> {
    let is_tls = variables.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS")?;
    let scheme = if is_tls { "https" } else { "http" };
    let server = variables.text_or("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000");
    let mut xds = json!({
        "server": format!("{scheme}://{server}"),
        "node": variables.text_or("CONFIG_GRPC_XDS_NODE_ID", "default"),
        "reconnect_after": variables.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s")?,
        "reconnect_max": variables.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s")?,
        "start_without": variables.flag("FORCE_START_WITHOUT_INITIAL_CONFIG")?,
    });
    for (variable, field) in [
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "certificate"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "key"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "authority"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "server_name"),
    ] {
        if let Some(text) = variables.text(variable).filter(|_| is_tls) {
            xds[field] = text.into();
        }
    }
    if let Some(bytes) = variables.text("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES") {
        let read = bytes.parse::<u32>();
        xds["message_bytes"] = read
            .map_err(|_| wrong("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", &bytes, "a number of bytes"))?
            .into();
    }
    for (variable, field) in [
        ("CONFIG_GRPC_XDS_NODE_METADATA", "metadata"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "headers"),
    ] {
        let pairs = variables.pairs(variable)?;
        if !pairs.is_empty() {
            let pairs = pairs.into_iter().map(|(key, value)| (key, Value::from(value)));
            xds[field] = Value::Object(pairs.collect::<Map<_, _>>());
        }
    }
    Ok(xds)
}

fn store(variables: Variables<'_>) -> Result<StoreOptions, ConfigError> {
    let read = |name: &str| match variables.text(name) {
        None => Ok(None),
        Some(file) => {
            let readable = |error: std::io::Error| wrong(name, &file, &format!("a file: {error}"));
            std::fs::read(&file).map_err(readable).map(Some)
        }
    };
    let is_tls = variables.flag("REDIS_TLS")?;
    let client = match (read("REDIS_TLS_CLIENT_CERT")?, read("REDIS_TLS_CLIENT_KEY")?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        _ => None,
    };
    let certificates = Certificates { authority: read("REDIS_TLS_CACERT")?, client };
    let prefix = variables.text("CACHE_KEY_PREFIX").map(|prefix| format!("{prefix}{PREFIX}"));
    let certificates = if is_tls { certificates } else { Certificates::default() };
    Ok(StoreOptions { certificates, prefix })
}

fn log_level(variables: Variables<'_>) -> Result<String, ConfigError> {
    let text = variables.text_or("LOG_LEVEL", "WARN");
    let known = match text.to_ascii_lowercase().as_str() {
        "trace" => "trace",
        "debug" => "debug",
        "info" => "info",
        "warn" | "warning" => "warn",
        "error" | "fatal" | "panic" => "error",
        _ => return Err(wrong("LOG_LEVEL", &text, "trace, debug, info, warn or error")),
    };
    Ok(known.to_owned())
}

fn tracing(
    variables: Variables<'_>,
    notes: &mut Vec<String>,
) -> Result<Option<Tracing>, ConfigError> {
    if !variables.flag("TRACING_ENABLED")? {
        return Ok(None);
    }
    let rate = variables.text_or("TRACING_SAMPLING_RATE", "1");
    let expected = || wrong("TRACING_SAMPLING_RATE", &rate, "a number from 0 to 1");
    let share: f64 = rate.parse().map_err(|_| expected())?;
    if !(0.0..=1.0).contains(&share) {
        return Err(expected());
    }
    let url = variables.text("OTEL_EXPORTER_OTLP_ENDPOINT");
    let Some(collector) = url.filter(|url| url.starts_with("http://")) else {
        let why = "spans go to OTEL_EXPORTER_OTLP_ENDPOINT if that is an http:// address";
        notes.push(format!("TRACING_ENABLED has no effect: {why}"));
        return Ok(None);
    };
    // One in so many; none at all is one in more than there will ever be.
    let every = if share > 0.0 { (1.0 / share).round() as u32 } else { u32::MAX };
    Ok(Some(Tracing { collector, every }))
}

#[cfg(test)]
mod tests;
