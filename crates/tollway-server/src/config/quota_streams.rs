//! `[quota_streams]`: quotas that gateways enforce by themselves.

use std::time::Duration;

use super::error::ConfigError;
use super::reader::{ConfigValue, Table};
use crate::settings::Settings;

/// Reads the section, if it is there.
pub(super) fn read(table: &Table<'_>, settings: &mut Settings) {
    let section = table.get("quota_streams").and_then(|place| place.tell(place.table()));
    let Some(section) = section else { return };
    section.set("lifetime", &mut settings.quota_lifetime, lifetime);
    section.finish();
}

/// How long a portion is good.
fn lifetime(place: &ConfigValue<'_>) -> Result<Option<Duration>, ConfigError> {
    let lifetime = place.duration()?;
    if lifetime.subsec_nanos() != 0 || !(3..=3_600).contains(&lifetime.as_secs()) {
        return Err(place.wrong("expected 3 to 3600 whole seconds"));
    }
    Ok(Some(lifetime))
}
