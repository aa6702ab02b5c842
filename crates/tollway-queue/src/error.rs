//! Why a queue could not do what it was asked.

use std::fmt;

/// Why a queue could not do what it was asked. Nothing was changed, unless the kind is
/// [`ErrorKind::Unknown`].
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// What kind of trouble it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No queue has this name.
    UnknownQueue,
    /// The queue holds no such job, group, recurring job or shared limit.
    NotFound,
    /// The lease is over: it expired, was settled, or another attempt has begun.
    LeaseLost,
    /// Somebody else has changed it meanwhile, or what it holds forbids it.
    Conflict,
    /// A name, payload, batch, schedule or setting is outside its bounds.
    Invalid,
    /// The queue holds as many jobs, groups or recurring jobs as it may.
    Full,
    /// The disk is full: nothing was stored.
    NoSpace,
    /// What is stored cannot be read: the file is damaged, or is no queue.
    Corrupt,
    /// The backend cannot be reached or has failed; nothing was stored.
    Unavailable,
    /// The backend may or may not have done it: the connection broke in between.
    Unknown,
    /// The call cannot be answered as put, on any try.
    Misuse,
}

impl Error {
    /// An error of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// The same error with what caused it.
    #[must_use]
    pub fn caused_by(self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { source: Some(source.into()), ..self }
    }

    /// That what was given cannot be used.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// That a field of a setting, a job or a call is outside its bounds.
    pub(crate) fn outside(
        field: &str,
        found: impl fmt::Display,
        expected: impl fmt::Display,
    ) -> Self {
        Self::invalid(format!("invalid {field}: found {found}, expected {expected}"))
    }

    /// The same error once more, for another call that failed for the same reason.
    #[cfg(feature = "redb")]
    pub(crate) fn again(&self) -> Self {
        Self::new(self.kind, self.message.clone())
    }

    /// What kind of trouble it is.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether another try may succeed.
    pub const fn is_transient(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::Full | ErrorKind::NoSpace
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

#[cfg(feature = "redb")]
impl From<tollway_journal::Error> for Error {
    fn from(error: tollway_journal::Error) -> Self {
        use tollway_journal::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::NoSpace => ErrorKind::NoSpace,
            Kind::Corrupt => ErrorKind::Corrupt,
            Kind::Unavailable => ErrorKind::Unavailable,
            Kind::Unknown => ErrorKind::Unknown,
        };
        Self::new(kind, error.told_of("queue file")).caused_by(error)
    }
}
