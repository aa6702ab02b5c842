//! Certificates, and which fronts show them, as `[tls]` says it.

use std::path::PathBuf;

use super::error::ConfigError;
use super::file::{Tls, inner};
use super::reader::{ConfigValue, Table};
use crate::front::Front;
use crate::tls;

/// Reads the section; `None` if there is none, or something is wrong with it, which is noted.
pub(super) fn read(table: &Table<'_>) -> Option<Tls> {
    let inner = inner(table, "tls")?;
    let need = |name| inner.tell(inner.need(name).and_then(|place| place.text()));
    let (certificate, key) = (need("certificate"), need("key"));
    let client_authority = inner.text("client_authority").map(PathBuf::from);
    let client_name = inner.text("client_name");
    let mut fronts = Front::ALL.to_vec();
    inner.set("fronts", &mut fronts, |place| place.all(front));
    let client_optional = inner.flag("client_optional");
    let of_clients = ["client_name", "client_optional"];
    for place in of_clients.into_iter().filter_map(|name| inner.get(name)) {
        if client_authority.is_none() {
            place.note("goes with client_authority, by which clients are certified");
        }
    }
    inner.finish();
    let (certificate, key) = (certificate?.into(), key?.into());
    let tls = Tls { certificate, key, client_authority, client_name, client_optional, fronts };
    if table.looks_at_files() {
        for (field, problem) in tls::mistakes(&tls) {
            // A field that is found wrong was read.
            inner.get(field).iter().for_each(|place| place.note(problem.clone()));
        }
    }
    Some(tls)
}

/// A front by its name.
fn front(place: &ConfigValue<'_>) -> Result<Front, ConfigError> {
    let text = place.text()?;
    let named = Front::ALL.into_iter().find(|front| front.name() == text);
    named.ok_or_else(|| place.wrong("expected http, grpc or resp"))
}
