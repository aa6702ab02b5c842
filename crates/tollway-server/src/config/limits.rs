//! Bounds on connections and requests, as `[limits]` says them.

use std::time::Duration;

use super::file::inner;
use super::reader::{ConfigValue, Table};
use crate::http2::Age;
use crate::settings::Limits;

/// How long calls go on when their connection has come of age, unless that is said.
const AGE_GRACE_DEFAULT: Duration = Duration::from_secs(3_600);

/// Reads the section.
pub(super) fn read(table: &Table<'_>, limits: &mut Limits) {
    let Some(inner) = inner(table, "limits") else { return };
    inner.set("connections", &mut limits.connections_max, ConfigValue::number);
    inner.set("frame_bytes", &mut limits.frame_bytes_max, ConfigValue::bytes);
    inner.set("pipeline", &mut limits.pipeline_max, ConfigValue::number);
    inner.set("body_bytes", &mut limits.body_bytes_max, ConfigValue::bytes);
    inner.set("charges", &mut limits.charges_max, ConfigValue::number);
    inner.set("held_bytes", &mut limits.held_bytes_max, ConfigValue::bytes);
    inner.set("first_request", &mut limits.first_request_after, ConfigValue::duration);
    inner.set("slow_client", &mut limits.slow_client_after, ConfigValue::duration);
    inner.set("idle", &mut limits.idle_after, |place| place.duration().map(Some));
    inner.set("grpc_age", &mut limits.grpc_age, |place| {
        Ok(Some(Age { most: place.duration()?, grace: AGE_GRACE_DEFAULT }))
    });
    if let Some(place) = inner.get("grpc_age_grace") {
        match (&mut limits.grpc_age, place.tell(place.duration())) {
            (Some(age), Some(grace)) => age.grace = grace,
            (None, _) => place.note("goes with grpc_age"),
            _ => {}
        }
    }
    if limits.pipeline_max == 0 || limits.charges_max == 0 || limits.connections_max == 0 {
        inner.note("connections, pipeline and charges must be at least 1");
    }
    inner.finish();
}
