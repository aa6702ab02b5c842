//! The memory store judged from outside.

/// The conformance scenarios, and random histories against the oracle.
mod conformance;
