//! The crate from outside, with all its features.

// The line in front of a pacer, and the layers that use it.
mod pacing;
