//! What the service and the proxy share: HTTP connections on which nothing is held for ever, and
//! metrics.
//!
//! ```text
//!   client --------> FirstRequest (asks anything at all?)
//!   client --bytes--> Room (how much is held, by all together) --> answer
//!   client <--bytes-- WriteTimeout (reads at all?), Answers (reads each answer?) <-- answer
//! ```
//!
//! Deliberately absent: reading and answering requests, which each of the two does in its own way.

#![forbid(unsafe_code)]

#[cfg(feature = "connect")]
pub mod connect;
mod first_request;
pub mod metrics;
mod room;
mod slow_readers;

pub use first_request::FirstRequest;
pub use room::{Room, RoomGuard};
pub use slow_readers::{Answers, Chunk, Watched, WriteTimeout};

/// The colours that the pages of both have in common, as a style sheet.
pub const PALETTE: &str = include_str!("palette.css");

/// The program of the README is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
