//! Which server pushes rules, and how it is spoken to.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::Scheme;
use http::{HeaderName, HeaderValue, Uri};

use super::error::ConfigError;
use super::reader::{ConfigValue, Table};
use crate::tls;
use crate::xds::XdsSettings;

const SERVER_EXPECTED: &str = "expected http://host:port, or https://host:port for TLS";
/// What a response may at least be long: with less, next to no rules could be pushed.
const MESSAGE_BYTES_MIN: usize = 4 * 1024;
/// Longer ones take more memory than a service has to spare for rules.
const MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Shorter pauses would be an attack on the server.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// Reads the section; `None` if something is wrong with what must be there, which is noted.
pub(super) fn read(table: &Table<'_>) -> Option<XdsSettings> {
    let server = table.tell(table.need("server").and_then(|place| server(&place)));
    let node = table.tell(table.need("node").and_then(|place| not_empty(&place)));
    let mut settings = XdsSettings::new(server.clone().unwrap_or_default(), String::new());
    table.set("metadata", &mut settings.metadata, texts);
    table.set("headers", &mut settings.headers, headers);
    read_tls(table, &mut settings);
    table.set("message_bytes", &mut settings.message_bytes_max, message_bytes);
    table.set("reconnect_after", &mut settings.reconnect_after, duration);
    table.set("reconnect_max", &mut settings.reconnect_max, duration);
    table.set("keepalive", &mut settings.keepalive, duration);
    settings.start_without = table.flag("start_without");
    if let Some(place) = table.get("reconnect_max")
        && settings.reconnect_max < settings.reconnect_after
    {
        place.note("is shorter than reconnect_after, the first pause");
    }
    table.finish();
    Some(XdsSettings { server: server?, node: node?, ..settings })
}

fn read_tls(table: &Table<'_>, settings: &mut XdsSettings) {
    settings.authority = table.text("authority").map(PathBuf::from);
    settings.server_name = table.text("server_name");
    let (certificate, key) = (table.text("certificate"), table.text("key"));
    settings.identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
        (None, None) => None,
        _ => {
            table.note("certificate and key go together: give both or neither");
            None
        }
    };
    let is_plain = settings.server.scheme() == Some(&Scheme::HTTP);
    for name in ["authority", "certificate", "key", "server_name"] {
        if let Some(place) = table.get(name).filter(|_| is_plain) {
            place.note("is for TLS, and the server is http://; expected https://");
        }
    }
    if table.looks_at_files() {
        let identity = settings.identity.as_ref();
        for (field, problem) in tls::mistakes_of_client(settings.authority.as_deref(), identity) {
            table.get(field).iter().for_each(|place| place.note(problem.clone()));
        }
    }
}

/// The address is not repeated: it may hold a password, by mistake.
fn server(place: &ConfigValue<'_>) -> Result<Uri, ConfigError> {
    let wrong = || place.wrong(SERVER_EXPECTED);
    let uri: Uri = place.text()?.parse().map_err(|_| wrong())?;
    let is_known = [&Scheme::HTTP, &Scheme::HTTPS].map(Some).contains(&uri.scheme());
    let has_place = uri.authority().is_some_and(|it| !it.as_str().contains('@'));
    let has_more = uri.path_and_query().is_some_and(|path| path != "/");
    if !is_known || !has_place || has_more || uri.port_u16().is_none() {
        return Err(wrong());
    }
    Ok(uri)
}

fn not_empty(place: &ConfigValue<'_>) -> Result<String, ConfigError> {
    match place.text()? {
        text if text.is_empty() => Err(place.wrong("must not be empty")),
        text => Ok(text),
    }
}

fn message_bytes(place: &ConfigValue<'_>) -> Result<usize, ConfigError> {
    let bytes = place.bytes()?;
    if (MESSAGE_BYTES_MIN..=MESSAGE_BYTES_MAX).contains(&bytes) {
        return Ok(bytes);
    }
    let expected = format!("expected {MESSAGE_BYTES_MIN} to {MESSAGE_BYTES_MAX}");
    Err(place.wrong(format!("{bytes} bytes is out of range; {expected}")))
}

fn duration(place: &ConfigValue<'_>) -> Result<Duration, ConfigError> {
    let duration = place.duration()?;
    if duration < PAUSE_MIN {
        return Err(place.wrong(format!("is too short; expected at least {PAUSE_MIN:?}")));
    }
    Ok(duration)
}

fn texts(place: &ConfigValue<'_>) -> Result<BTreeMap<String, String>, ConfigError> {
    let entries = place.entries()?.into_iter();
    let read =
        |(name, place): (&str, ConfigValue<'_>)| Some((name.to_owned(), place.tell(place.text())?));
    Ok(entries.filter_map(read).collect())
}

fn headers(place: &ConfigValue<'_>) -> Result<Vec<(HeaderName, HeaderValue)>, ConfigError> {
    let read = |(name, place): (&str, ConfigValue<'_>)| {
        let field = name.parse().map_err(|_| place.wrong("is no name of a header field"));
        let field: HeaderName = place.tell(field)?;
        let is_grpc = ["te", "content-type"].contains(&field.as_str());
        if is_grpc || field.as_str().starts_with("grpc-") {
            place.note("is gRPC's own; expected another header field");
        }
        let value = place.text().and_then(|text| {
            text.parse().map_err(|_| place.wrong("is no value of a header field"))
        });
        let mut value: HeaderValue = place.tell(value)?;
        value.set_sensitive(true);
        Some((field, value))
    };
    Ok(place.entries()?.into_iter().filter_map(read).collect())
}
