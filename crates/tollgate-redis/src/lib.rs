//! Shared store on Redis and Valkey; not built yet (issue 3).
