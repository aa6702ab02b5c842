//! Pure part.
