//! What a failure of a file means: damage, no space, or a file that is away.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Where a message says which file it is.
const FILE: &str = "{file}";

/// Why a file could not be read or written.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<redb::Error>>,
}

/// What kind of trouble it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The disk is full: nothing was stored.
    NoSpace,
    /// What is stored cannot be read: the file is damaged, or is another kind of file.
    Corrupt,
    /// The file cannot be read or written; nothing was stored.
    Unavailable,
    /// What was to be stored may be stored or not.
    Unknown,
}

impl Error {
    /// An error with a message that may say `{file}` for what the file is called.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// That a row cannot be decoded.
    pub fn damaged() -> Self {
        Self::new(ErrorKind::Corrupt, format!("a row of the {FILE} is damaged"))
    }

    /// What a failure of the database means.
    pub fn of_database(error: impl Into<redb::Error>) -> Self {
        use std::io::ErrorKind as Io;
        let error = error.into();
        let (kind, message) = match &error {
            redb::Error::Io(cause) => match cause.kind() {
                Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => {
                    (ErrorKind::NoSpace, "no space is left for the {file}")
                }
                Io::InvalidData => (ErrorKind::Corrupt, "this is not a {file}, or it is damaged"),
                _ => (ErrorKind::Unavailable, "the {file} cannot be read or written"),
            },
            redb::Error::Corrupted(_)
            | redb::Error::RepairAborted
            | redb::Error::UpgradeRequired(_)
            | redb::Error::TableTypeMismatch { .. } => {
                (ErrorKind::Corrupt, "this is not a {file}, or it is damaged")
            }
            redb::Error::DatabaseAlreadyOpen => {
                (ErrorKind::Unavailable, "the {file} is in use by another process")
            }
            _ => (ErrorKind::Unavailable, "the {file} cannot be used"),
        };
        let message = format!("{message}: {error}");
        Self { kind, message, source: Some(Box::new(error)) }
    }

    /// Refuses rows of any other version than `expected`.
    ///
    /// # Errors
    ///
    /// If there is none, or another.
    pub fn check_format(format: Option<u32>, expected: u32) -> Result<(), Self> {
        let format = format.ok_or_else(Self::damaged)?;
        if format == expected {
            return Ok(());
        }
        let message = format!("the {FILE} has format {format}; this version reads {expected}");
        Err(Self::new(ErrorKind::Corrupt, message))
    }

    /// A commit that failed on its way to the disk may be there all the same.
    #[must_use]
    pub fn uncertain(self) -> Self {
        if self.kind != ErrorKind::Unavailable {
            return self;
        }
        let message = format!("{}; what was to be stored may be stored or not", self.message);
        Self { kind: ErrorKind::Unknown, message, source: self.source }
    }

    /// What kind of trouble it is.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message, for a file that is called so.
    pub fn told_of(&self, file: &str) -> String {
        self.message.replace(FILE, file)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told_of("file"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Does `work` with the database, which panics where a page of a damaged file makes no sense: that
/// is told as damage. What `work` owns is gone then; the file is opened anew for the next call.
///
/// # Errors
///
/// As `work`, and if it panics.
pub fn contained<T, E: From<Error>>(work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("it makes no sense");
        let message = format!("the {FILE} is damaged: {text}");
        Err(Error::new(ErrorKind::Corrupt, message).into())
    })
}
