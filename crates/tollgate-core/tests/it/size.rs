//! How much is tried: a little by default, everything if `TOLLGATE_FULL` is set.

/// `full` if `TOLLGATE_FULL=1` is in the environment, `quick` otherwise.
pub(crate) fn sized(quick: u64, full: u64) -> u64 {
    if std::env::var("TOLLGATE_FULL").is_ok_and(|value| value == "1") { full } else { quick }
}
