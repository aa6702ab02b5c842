//! The core judged from outside: the conformance scenarios.

/// The data file of scenarios, played on the core, and subjects that must not pass it.
mod conformance;
