//! The library as those who add it see it.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

// The examples that need no server of somebody else's run to their end.
mod examples;
