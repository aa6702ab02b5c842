//! Enforcement in tower services; not built yet (issue 5).
