//! Header-field text: what a limit says to clients, and what other servers' limits say to us.
//!
//! ```text
//! Standing* + Denied ──► Dialect::emit ──► (Field, text)*          enforcing: tower, server
//! (name, bytes)*     ──► Lines ──► read ──► Reading                 obeying: upstream, queue
//! Host, Origin       ──► Hosts, is_foreign_page                   keeping pages out: server, proxy
//! ```
//!
//! Invariants:
//! - Nothing emitted flatters the requester: waits round up, what remains rounds down.
//! - `Retry-After` is never earlier than the truth, nor earlier than the `t` or `reset` beside it.
//! - No input panics. A malformed field is ignored as the IETF draft demands, never half read.
//! - Numbers are clamped to 15 digits, the most an RFC 9651 Integer can say.
//!
//! Deliberately absent: header maps (callers bring their own), status codes beyond the three
//! registered problem types, and named upstream profiles (`tollway-upstream` describes those as
//! data over [`Triplet`] and [`Form`]). The `sfv` crate is the independent reader in the tests and
//! not a dependency: this crate has none, and two small lists do not justify the first.

mod browser;
pub mod calendar;
mod dialect;
mod digits;
mod form;
mod forwarded;
mod lines;
mod name;
mod problem;
mod read;
pub mod sf;
mod standing;

#[cfg(test)]
use digits::INTEGER_MAX;

#[cfg(test)]
mod tests;

pub use browser::{Hosts, NotAHost, is_foreign_page};
pub use dialect::{Dialect, UnknownDialect};
pub use digits::{count, seconds_up};
pub use form::{Form, counts_per_window, http_date, used_of_size};
pub use forwarded::ForwardedBy;
pub use lines::Lines;
pub use name::Field;
pub use problem::Problem;
pub use read::{Family, Observed, Reading, Triplet, read, retry_after};
pub use standing::{Denied, Report, Standing};
