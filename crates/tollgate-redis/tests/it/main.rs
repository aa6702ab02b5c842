//! What `tollgate-redis` promises, tried on real servers that the tests start on loopback.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall fail")]

/// Servers: started on free ports, killed when the test binary ends.
mod server;

/// The conformance file and random histories: decisions equal to the core's, charge for charge.
mod conformance;
