//! Messages of the `http` crate, as profiles read them.

use std::time::{Duration, SystemTime};

use http::HeaderMap;
use tollway_core::fields::Lines;

use crate::profile::{Observation, Profile, Response};

/// The header lines of a message.
#[must_use]
pub fn lines(headers: &HeaderMap) -> Lines<'_> {
    headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect()
}

/// What a response that arrives now says about the limits.
#[must_use]
pub fn read(profile: &Profile, status: u16, headers: &HeaderMap, body: &[u8]) -> Observation {
    profile.read(&Response { status, lines: &lines(headers), body, now: now() })
}

/// The time since the Unix epoch; zero before it.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
