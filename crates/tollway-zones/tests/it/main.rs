//! What `tollway-zones` promises.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]
#![allow(clippy::print_stdout, reason = "a test that lacks its oracle says so")]

/// Where windows begin, judged by Python's zoneinfo and dateutil.
mod boundaries;
/// Names of zones, right and wrong.
mod names;
