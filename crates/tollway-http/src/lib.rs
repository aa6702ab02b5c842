//! What the service and the proxy share about HTTP connections: nothing is held for ever.
//!
//! ```text
//!   client --------> FirstRequest (asks anything at all?)
//!   client --bytes--> Room (how much is held, by all together) --> answer
//!   client <--bytes-- Patient (takes anything at all?), Answers (takes of every answer?) <-- answer
//! ```
//!
//! Deliberately absent: reading and answering requests, which each of the two does in its own way.

#![forbid(unsafe_code)]

#[cfg(feature = "connect")]
pub mod connect;
mod first;
mod patient;
mod room;

pub use first::FirstRequest;
pub use patient::{Answers, Chunk, Patient, Watched};
pub use room::{Place, Room};

/// The program of the README is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
