//! The core judged from outside: by the conformance scenarios, by the exact oracle, by properties.

/// Never more than the bound in any window, also when the clock jumps.
mod bounds;
/// The data file of scenarios, played on the core, and subjects that must not pass it.
mod conformance;
/// The slowest, the fastest, the largest: no drift and no panic.
mod extremes;
/// Random histories, charge for charge against the oracle.
mod histories;
/// One key under one policy, and what properties do to it.
mod key;
/// Quotas as text.
mod quota_text;
/// Several charges in one request.
mod requests;
/// Owners in trees: floors, ceilings, what is lent.
mod shares;
/// How much the tests try.
mod size;
/// Every figure of an answer is true; a denial changes nothing.
mod truth;
