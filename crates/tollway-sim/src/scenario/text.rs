//! Durations as people write them in a scenario file: `50ms`, `1h 30m`, `90s`.

use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error};

pub(crate) fn unnamed() -> String {
    "unnamed".to_owned()
}

pub(crate) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    tollway_core::parse_duration(&text)
        .map_err(|_| D::Error::custom(format!("`{text}` is no duration such as 50ms, 90s or 1h")))
}

pub(crate) fn duration_ns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    duration(deserializer).map(super::nanos)
}

pub(crate) fn some_duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}
