//! Virtual-time world: clock, servers, clients, oracle, conformance scenarios, charts.
