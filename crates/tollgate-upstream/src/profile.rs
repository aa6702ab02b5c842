//! How an API speaks of its limits, as data: routes, header fields, units, signals.
//!
//! ```text
//!  TOML ─► file (raw) ─► Profile (validated) ─┬─ route(method, target) ─► Route
//!                                             └─ read(response)        ─► Observation
//! ```
//!
//! The same field name carries different units (`RateLimit-Reset` is a delta for the IETF, an epoch
//! for GitLab and Twitch), so nothing is guessed where a profile can say it. A profile says what
//! is *told*; what it means for the next request is decided in [`crate::budget`].
//!
//! **Invariants.** No response panics. A malformed field is ignored and counted
//! ([`Observation::malformed`]). Waits are clamped to a day, and rounded up.
//!
//! Deliberately absent: code per API. What cannot be said in the file is said by no profile.

mod observation;
mod route;

pub use observation::{Observation, Reading, Scope};
pub use route::{Costs, DIMENSIONS_MAX, Route};

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::fields::Lines;

/// One response, as far as a profile reads it.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The status code.
    pub status: u16,
    /// The header lines.
    pub lines: &'a Lines<'a>,
    /// The beginning of the body, as many bytes as [`Profile::body_wanted`] said, or nothing.
    pub body: &'a [u8],
    /// The reader's time since the Unix epoch when the header lines arrived.
    pub now: Duration,
}

/// A validated description of how an API speaks of its limits.
#[derive(Clone, Debug)]
pub struct Profile {
    name: String,
}

impl Profile {
    /// Reads a profile from the text of a TOML file.
    ///
    /// # Errors
    ///
    /// Names the line and the field that is wrong, and says what would be right.
    pub fn parse(_text: &str) -> Result<Self, ProfileError> {
        Err(ProfileError { line: 1, field: String::new(), message: String::new() })
    }

    /// A profile that is shipped, by name.
    #[must_use]
    pub fn builtin(_name: &str) -> Option<Arc<Self>> {
        None
    }

    /// The names of the profiles that are shipped.
    #[must_use]
    pub fn builtins() -> Vec<&'static str> {
        Vec::new()
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where a request goes: `target` is the path, with the query if there is one.
    #[must_use]
    pub fn route(&self, method: &str, _target: &str) -> Route {
        Route::new(method, "/", "")
    }

    /// As [`Self::route`], with the beginning of the request's body where the profile has lanes
    /// that depend on it ([`Self::body_lanes`]).
    #[must_use]
    pub fn route_with_body(&self, method: &str, target: &str, _body: &[u8]) -> Route {
        self.route(method, target)
    }

    /// Whether requests of this method and target belong to different lanes by their bodies.
    #[must_use]
    pub fn body_lanes(&self, _method: &str, _target: &str) -> bool {
        false
    }

    /// Bytes of the body that [`Self::read`] needs to tell a limit from another answer; usually 0.
    #[must_use]
    pub fn body_wanted(&self, _status: u16, _lines: &Lines<'_>) -> usize {
        0
    }

    /// What a response says about the limits.
    #[must_use]
    pub fn read(&self, response: &Response<'_>) -> Observation {
        Observation { status: response.status, ..Observation::default() }
    }
}

/// Why a text is not a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileError {
    /// The line, from 1.
    pub line: usize,
    /// The field, such as `dimensions[1].reset.form`; empty if the text is not TOML at all.
    pub field: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: ", self.line)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for ProfileError {}
