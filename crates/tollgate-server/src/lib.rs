//! The service; not built yet (issue 4).
