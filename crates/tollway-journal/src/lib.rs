//! Rows in a file that survive a crash: a journal, one commit for many callers, a full disk.
//!
//! ```text
//!   callers ──> Gathering (one thread) ──> Journal: one record, one sync ──> callers are answered
//!                                             `──now and then──> tables of a redb file
//!   start:  tables + records of the journal, in order
//! ```
//!
//! Who uses it says in a `Layout` which tables there are, and decides what rows hold:
//! [`bytes_codec`] writes and reads them.
//!
//! **Invariants.** A commit is there as a whole or not at all, whenever the process dies or the
//! power goes: redb counts a commit when all of its pages are whole, by their checksums. What is
//! acknowledged was synced.

#![forbid(unsafe_code)]

pub mod bytes_codec;
#[cfg(feature = "redb")]
mod error;
#[cfg(feature = "redb")]
mod gathering;
#[cfg(feature = "redb")]
mod journal;
#[cfg(feature = "redb")]
mod layout;
#[cfg(feature = "redb")]
mod options;
#[cfg(feature = "redb")]
mod reserve;

#[cfg(feature = "redb")]
pub use error::{Error, ErrorKind, contained};
#[cfg(feature = "redb")]
pub use gathering::{Gathered, Gathering, Refused};
#[cfg(feature = "redb")]
pub use journal::{Journal, Tables};
#[cfg(feature = "redb")]
pub use layout::{Layout, NamedTable, NumberedTable, Table, Written};
#[cfg(feature = "redb")]
pub use options::FileOptions;
#[cfg(feature = "redb")]
pub use reserve::{Reserve, Space, SpaceWords};
