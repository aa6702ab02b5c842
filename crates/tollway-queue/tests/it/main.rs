//! The queue's integration tests.

#![allow(clippy::unwrap_used, reason = "a test fails by unwrapping")]

// What several files need to drive a backend in virtual time.
mod world;

// Leases, retries, dead letters, cancellation, keys, calendars: one rule per test, on every
// backend.
mod rules;

// The scenarios of guild-queues.
mod guild_queues;

// Virtual time: jittered upstreams of every kind, fairness, wake-ups, estimates.
mod upstreams;

// Random histories against a naive reference, for any backend.
mod model;

// Storage that fails at every write, and processes that are killed.
#[cfg(feature = "redb")]
mod crash;

// What must be refused, with a clear error and nothing changed.
mod bad_input;

// Queues on real Redis and Valkey servers: histories, failures, clocks that differ.
#[cfg(feature = "redis")]
mod redis;

// Many who wait for few jobs: how often the backend is asked.
mod waiting;

// Waiting for jobs to end.
mod ends;

// Workers: concurrency, exact sleeping, heartbeats, how they stop.
mod worker;

// Push delivery to a target on loopback.
#[cfg(feature = "push")]
mod push;

// Calendars in time zones, judged by Python.
#[cfg(feature = "zones")]
mod zones;
