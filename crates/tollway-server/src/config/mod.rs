//! Configuration: files, environment and flags become rules and settings, or an error that helps.
//!
//! ```text
//!   TOML, YAML -> tree (with lines) -> reader (with fields) -> Config
//!   file < environment < flag
//! ```
//!
//! **Invariants.** Everything is validated here; nothing below sees a string that could be wrong.
//! An unknown field is an error: a misspelt limit is no limit. Every error names file, line and
//! field and says what would be right. A file of envoyproxy/ratelimit (`domain` and `descriptors`
//! at the top) is read as it is.

mod call_limit;
mod descriptors;
mod error;
mod file;
mod layers;
mod limits;
mod line_starts;
mod listen;
mod names;
mod owners;
mod policies;
mod push;
pub(crate) mod pushed;
pub(crate) mod queues;
mod quota_streams;
mod reader;
mod sources;
mod stores;
mod tls;
mod tokens;
mod tree;
mod work;
mod xds;

pub use call_limit::limit_of_call;
pub use error::{ConfigError, Mistakes};
pub use file::{Config, Drain, LogFormat, Tls};
pub use layers::Overrides;
pub use listen::Listen;
pub use sources::{Given, files_now};

/// Where a mistake is that no file makes: a flag does, or a variable that beats the files.
const OUTSIDE: &str = "settings";
/// Where a mistake in a variable is that cannot be read.
const ENVIRONMENT: &str = "environment";

#[cfg(test)]
mod tests;
