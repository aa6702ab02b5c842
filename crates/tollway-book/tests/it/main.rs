//! The programs of the documents as their readers run them.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

// Programs that print, or that listen: each in a process of its own.
mod programs;

// The tests that the documents show.
mod tests_of_readers;
