//! A mistake in the command line or the environment: the exit code 2 says so, as clap's own does.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use anyhow::Result;

/// How a process ends that was called wrongly.
const EXIT_CODE: u8 = 2;

/// What whoever called has to change.
#[derive(Debug)]
struct Misuse(anyhow::Error);

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Misuse {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// A mistake of whoever called, in words.
pub(crate) fn misuse(what: impl fmt::Display) -> anyhow::Error {
    Misuse(anyhow::anyhow!("{what}")).into()
}

/// Makes failures mistakes of whoever called.
pub(crate) trait OrMisuse<T> {
    /// The value, or a mistake of whoever called.
    fn or_misuse(self) -> Result<T>;
}

impl<T, E: Into<anyhow::Error>> OrMisuse<T> for Result<T, E> {
    fn or_misuse(self) -> Result<T> {
        self.map_err(|error| Misuse(error.into()).into())
    }
}

/// The exit code of a process that failed.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(|cause| cause.is::<Misuse>()) {
        ExitCode::from(EXIT_CODE)
    } else {
        ExitCode::FAILURE
    }
}
