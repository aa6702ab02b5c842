//! Waits as clients are told them: in whole milliseconds, rounded up, or to the nanosecond.

use std::time::Duration;

/// The unit in which waits are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Milliseconds, rounded up.
    #[default]
    Millis,
    /// Nanoseconds: what another Tollway passes on must be exactly what was decided.
    Nanos,
}

impl Unit {
    /// `wait` in this unit.
    pub(crate) fn of(self, wait: Duration) -> u64 {
        match self {
            Self::Millis => millis_up(wait),
            Self::Nanos => u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// Whole milliseconds, rounded up: told 0 ms for a 400 µs wait, a client is denied again.
pub(crate) fn millis_up(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
