//! The rules that budgets keep, one by one.

mod buckets;
mod changes;
mod costs;
mod desk;
mod pacing;
mod refusals;
mod waiting;
mod windows;
