//! Jobs that wait for their group's limit; not built yet (issue 7).
