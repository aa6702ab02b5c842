//! The rules that budgets keep, one by one.

mod buckets;
mod desk;
mod refusals;
mod waiting;
mod windows;
