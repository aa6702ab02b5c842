//! The memory store judged from outside.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

/// Numbers that change while keys are in use.
mod changes;

/// The conformance scenarios, and random histories against the oracle.
mod conformance;

/// Many threads on the same keys: never one too many, and proof that they did meet.
mod contention;

/// The store as a file, whole and damaged.
mod dump;

/// Callers who read the clock and arrive any time later.
mod late;

/// Threads and processes that are stopped between reading the clock and asking, by the real clock.
mod stopped;

/// What a flood of keys does, and batches beside single checks.
mod load;

/// Memory as keys come, in processes of their own.
#[cfg(target_os = "linux")]
mod resident;

/// Room belongs to policies: who pays for a flood, and who does not.
mod room;

/// Waiting for a limit, in paused time.
#[cfg(feature = "tokio")]
mod acquire;
