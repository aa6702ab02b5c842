//! Budgets shared through Redis and Valkey, key-compatible with seed 003.
