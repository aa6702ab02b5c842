//! Waits as clients are told them: in whole milliseconds, rounded up.

use std::time::Duration;

/// Whole milliseconds, rounded up: told 0 ms for a 400 µs wait, a client is denied again.
#[must_use]
pub(crate) fn millis_up(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
