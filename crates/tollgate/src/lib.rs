//! The library people add.
