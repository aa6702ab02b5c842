//! How much is tried: a little by default, everything if `TOLLWAY_FULL` is set.

/// `full` if `TOLLWAY_FULL=1` is in the environment, `quick` otherwise.
pub(crate) fn sized(quick: u64, full: u64) -> u64 {
    if std::env::var("TOLLWAY_FULL").is_ok_and(|value| value == "1") { full } else { quick }
}
