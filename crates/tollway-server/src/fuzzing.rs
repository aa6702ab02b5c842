//! How many random inputs a property is tried on: a hundred times as many with `TOLLWAY_FULL=1`.

use proptest::test_runner::Config;

/// A configuration with `usual` cases, or many more.
pub(crate) fn cases(usual: u32) -> Config {
    let is_full = std::env::var_os("TOLLWAY_FULL").is_some_and(|value| value == "1");
    Config::with_cases(if is_full { usual.saturating_mul(100) } else { usual })
}
