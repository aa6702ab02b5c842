//! In-process store.
