//! What `tollway-redis` promises, tried on real servers that the tests start on loopback.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]
#![allow(clippy::print_stdout, reason = "tests of faults print what they counted")]

/// Calendar windows: the server decides when it is, and who opens a window when it ends.
mod calendars;
/// Callers: stores, policies and charges as the tests need them.
mod caller;

/// Numbers that change while keys are in use: what was used is carried.
mod changes;
/// A real 3+3 cluster: the same answers, slots, failover.
mod cluster;
/// The conformance file and random histories: decisions equal to the core's, charge for charge.
mod conformance;
/// Denials answered in process: exactly as long as they must be.
mod denials;
/// Faults with load running: no panic, no hang, the policy's outcome, the bound.
mod faults;
/// Bad input: unreachable, wrong password, somebody else's data, strange keys.
mod input;
/// Units taken in batches and spent in process, also by processes that are killed.
mod leases;
/// Plans of keys, asked of a function of the caller's.
mod plans;
/// Many clients at once: never one over.
mod races;
/// A primary found through sentinels, also after it was killed.
mod sentinel;
/// The failure runs of Sharkey, which pass here.
mod sharkey;
/// One hot key over several slots.
mod splits;
/// Requests that charge several keys at once: decisions equal to the core's.
mod spread;
/// What keys used in their windows: kept once, in order, within bounds.
mod usage;
