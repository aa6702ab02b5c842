//! Calls to functions the user supplied: a panic there is an answer, not an outage.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Marks a call into a user's function that panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panicked;

/// The result of `call`, unless it panics.
///
/// The functions are `Fn` over shared references: whatever state they broke is their own, and the
/// next call sees it as any other thread would have.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|_| Panicked)
}
