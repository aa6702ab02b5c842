//! Budgets shared through real servers, Redis and Valkey.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]
#![allow(clippy::print_stdout, reason = "tests say what they skip")]

/// The quick and the short way of a claim beside old clients.
mod beside;
/// Crashes, restarts, renames, late answers: no stall beyond one lease, one 429 per cause.
mod chaos;
/// A real 3+3 cluster.
mod cluster;
/// A store behind a slow line.
mod far_away;
/// Several processes on one bucket: order, wake-ups, windows, the limit over all routes.
mod fleet;
/// The interleavings in which the Spectacles script fails, each by its letter.
mod interleavings;
/// Messages, names, answers and ends that come late or in the wrong order.
mod late;
/// Several limits at once: tokens, a longer window, the credential's; costs other than one.
mod meters;
/// What old clients write at the wrong time, and the quickest way of a claim without them.
mod mixed;
/// What processes say of themselves to each other.
mod peers;
/// The order of service, with and without a store.
mod priorities;
/// Random histories of a fleet, beside one process with all the requests.
mod random;
/// The fleet of real Spectacles clients and ours.
mod spectacles;
/// Ledgers, raw keys and a truthful upstream, as the tests need them.
pub(crate) mod stage;
/// Limits that only the documentation states.
mod stated;
