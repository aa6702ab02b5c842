//! What a failure of the database means to callers: damage, no space, or a file that is away.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, ErrorKind};

/// Does `work` with the database, which panics where a page of a damaged file makes no sense: that
/// is told as damage. What `work` owns is gone then; the file is opened anew for the next call.
pub(super) fn contained<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let message = format!("the queue file is damaged: {}", text.unwrap_or("it makes no sense"));
        Err(Error::new(ErrorKind::Corrupt, message))
    })
}

/// A commit that failed on its way to the disk may be there all the same.
pub(super) fn uncertain(error: Error) -> Error {
    if error.kind() != ErrorKind::Unavailable {
        return error;
    }
    let message = format!("{error}; what was to be stored may be stored or not");
    Error::new(ErrorKind::Unknown, message).caused_by(error)
}

/// What a failure of the database means to callers.
pub(super) fn failed(error: impl Into<redb::Error>) -> Error {
    use std::io::ErrorKind as Io;
    let error = error.into();
    let (kind, message) = match &error {
        redb::Error::Io(cause) => match cause.kind() {
            Io::StorageFull | Io::QuotaExceeded | Io::FileTooLarge => {
                (ErrorKind::NoSpace, "no space is left for the queue file")
            }
            Io::InvalidData => (ErrorKind::Corrupt, "this is not a queue file, or it is damaged"),
            _ => (ErrorKind::Unavailable, "the queue file cannot be read or written"),
        },
        redb::Error::Corrupted(_)
        | redb::Error::RepairAborted
        | redb::Error::UpgradeRequired(_)
        | redb::Error::TableTypeMismatch { .. } => {
            (ErrorKind::Corrupt, "this is not a queue file, or it is damaged")
        }
        redb::Error::DatabaseAlreadyOpen => {
            (ErrorKind::Unavailable, "the queue file is in use by another process")
        }
        _ => (ErrorKind::Unavailable, "the queue file cannot be used"),
    };
    Error::new(kind, format!("{message}: {error}")).caused_by(error)
}
