//! The crate from outside, with all its features.

// Budgets against a truthful upstream in virtual time.
mod budgets;
// The line in front of a pacer, and the layers that use it.
mod pacing;
// That upstream.
mod world;
// Budgets shared through real servers.
mod shared;
