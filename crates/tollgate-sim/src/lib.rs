//! Virtual-time world: clock, servers, clients, oracle, conformance scenarios, charts.

pub mod conformance;
