//! The programs of the documents, compiled and run as tests.
//!
//! Blocks of Rust with `file=NAME.rs` are whole programs: `build.rs` writes them to files, and
//! `tests/it` runs them and compares what they print. All other blocks are doctests, below.
//!
//! A crate of its own, which is not published: the documents lie outside of every package, so a
//! published crate cannot include them.

#![forbid(unsafe_code)]

#[cfg(doctest)]
mod programs {
    #[doc = include_str!("../../../docs/how-to/in-process.md")]
    struct InProcess;
    #[doc = include_str!("../../../docs/how-to/calendar-windows.md")]
    struct CalendarWindows;
    #[doc = include_str!("../../../docs/middleware.md")]
    struct Middleware;
    #[doc = include_str!("../../../docs/migrating.md")]
    struct Migrating;
    #[doc = include_str!("../../../docs/pacing.md")]
    struct Pacing;
    #[doc = include_str!("../../../docs/queue.md")]
    struct Queue;
    #[doc = include_str!("../../../docs/upstream.md")]
    struct Upstream;
    #[doc = include_str!("../../../docs/upstream-redis.md")]
    struct UpstreamRedis;
}
