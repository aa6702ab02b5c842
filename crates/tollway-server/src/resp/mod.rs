//! RESP2 and RESP3: any Redis client can ask.
//!
//! ```text
//!   bytes -> parse -> commands -> runs of single checks, decided as one batch -> replies -> write
//! ```
//!
//! **Invariants.** Replies are in the order of the commands. Everything read at once is answered in
//! one write, up to a bound on commands and bytes. A malformed command is answered with an error of
//! its own and nothing is charged for it; malformed framing ends the connection after the error,
//! because no one knows where the next command would start.

mod batch;
mod connection;
pub(crate) mod encode;
mod operations;
mod own_quotas;
pub(crate) mod parse;
mod session;
mod throttle;
mod transaction;

pub(crate) use connection::serve;

#[cfg(test)]
mod tests;
