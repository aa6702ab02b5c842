//! Why a store could not be written to a file, or read from one.

use std::fmt;
use std::io;

/// Why a store could not be written to or read from a file.
#[derive(Debug)]
pub struct DumpError {
    kind: DumpErrorKind,
    problem: String,
    source: Option<io::Error>,
}

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DumpErrorKind {
    /// The file cannot be read or written.
    Io,
    /// There is a folder, a device or a pipe where the file should be.
    NotAFile,
    /// The file is cut short, changed, or no such file at all.
    Corrupt,
    /// The file was written by another version.
    Version,
}

impl DumpError {
    pub(super) fn io(problem: String, source: io::Error) -> Self {
        Self { kind: DumpErrorKind::Io, problem, source: Some(source) }
    }

    pub(super) fn not_a_file() -> Self {
        let problem = "there is a folder, a device or a pipe where the snapshot file should be";
        Self { kind: DumpErrorKind::NotAFile, problem: problem.to_owned(), source: None }
    }

    pub(super) fn corrupt(problem: &str) -> Self {
        let problem = format!("the snapshot file {problem}");
        Self { kind: DumpErrorKind::Corrupt, problem, source: None }
    }

    pub(super) fn version(found: u64) -> Self {
        let expected = super::VERSION;
        let problem = format!(
            "the snapshot file has version {found} of the format and {expected} was expected: \
             another version of Tollway wrote it"
        );
        Self { kind: DumpErrorKind::Version, problem, source: None }
    }

    /// What is wrong.
    pub const fn kind(&self) -> DumpErrorKind {
        self.kind
    }

    /// Whether another try may succeed.
    pub fn is_transient(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, Interrupted, QuotaExceeded};
        use io::ErrorKind::{ResourceBusy, StorageFull, TimedOut};
        let is_full = |kind| matches!(kind, FileTooLarge | QuotaExceeded | StorageFull);
        let is_late = |kind| matches!(kind, Interrupted | ResourceBusy | TimedOut);
        self.source.as_ref().map(io::Error::kind).is_some_and(|kind| is_full(kind) || is_late(kind))
    }
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for DumpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
