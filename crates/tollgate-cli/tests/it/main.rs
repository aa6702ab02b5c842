//! The binary as a user meets it: its own process, its own output.

// The demos over real HTTP with real processes.
mod demo;
// What `simulate` prints and writes.
mod simulate;
// Runs the binary within a bound.
mod tool;
