//! What the tests of every crate share: exact oracle, conformance scenarios, real servers.
//!
//! | module | what it does |
//! |---|---|
//! | [`oracle`] | judges random histories in arbitrary precision, from the definitions alone |
//! | [`conformance`] | a data file of scenarios and a runner: every store and front must agree with it |
//! | [`servers`] | starts real Redis, Valkey, Sentinels and clusters on free loopback ports |
//! | [`zones`] | time zones of every kind, to try calendars in |
//!
//! It depends on `tollway-core` alone, so the tests of the core compile neither the simulator nor
//! the proxy.

#![forbid(unsafe_code)]

pub mod conformance;
pub mod disk;
pub mod oracle;
pub mod servers;
pub mod zones;
