//! Obeying an upstream's limits; not built yet (issue 6), pacing excepted.

pub mod pace;
