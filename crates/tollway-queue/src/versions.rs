//! Versions of settings: which change wins, whoever makes it.
//!
//! ```text
//!   a call  ──────────────────────────> wins (unless it expects another version)
//!   a file: last given text             changes nothing, whatever a call has changed since
//!           text given earlier          changes nothing, unless it is an edit
//!           new text  ────────────────> wins
//! ```
//!
//! The newest change wins, and a file is a change only if it says something new: else a service
//! that merely starts would undo what others have changed. So the store remembers digests of the
//! texts that it was given, the last [`DIGESTS_MAX`] of them.

use tollway_core::Timestamp;

use crate::error::{Error, ErrorKind};
use crate::{Limit, QueueName, QueueSettings};

/// How many texts of files are remembered of a queue; beyond it the oldest is forgotten.
pub(crate) const DIGESTS_MAX: usize = 32;

/// What stands for the text of a file: equal if the text is.
pub type TextDigest = [u8; 16];

/// Who wants settings to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// Somebody who says so now.
    Call {
        /// The version that is to be changed; a call that finds another one is refused.
        expected: Option<u64>,
    },
    /// A configuration file.
    File {
        /// Of the text that says it.
        digest: TextDigest,
        /// Whether it is known that the text was edited just now: then a text that was given
        /// earlier is taken again.
        is_edit: bool,
    },
}

impl Author {
    /// Somebody who says so now, whatever the version is.
    pub const CALL: Self = Self::Call { expected: None };

    pub(crate) const fn is_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }
}

/// Which version of settings is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Counted from 1; 0 for settings of a time before versions were counted.
    pub number: u64,
    /// Whether a file said them, or a call.
    pub is_from_file: bool,
    /// When they were changed.
    pub at: Timestamp,
}

/// What came of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// Whether it was taken; if not, something newer stays in force.
    pub taken: bool,
    /// What is in force now.
    pub version: Version,
}

/// A queue's settings and their version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// The settings in force.
    pub settings: QueueSettings,
    /// Their version.
    pub version: Version,
}

/// A limit that queues share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedLimit {
    /// The limit in force.
    pub limit: Limit,
    /// Its version.
    pub version: Version,
}

/// Every shared limit, in order of names.
pub type SharedLimits = Vec<(QueueName, SharedLimit)>;

/// The version in force, and the texts of files that led to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VersionRecord {
    pub(crate) version: Version,
    /// The last one given is last.
    pub(crate) digests: Vec<TextDigest>,
}

impl VersionRecord {
    /// Notes a change at `now`; whether it is taken.
    pub(crate) fn change(&mut self, author: &Author, now: Timestamp) -> Result<bool, Error> {
        match author {
            Author::Call { expected } => self.check(*expected)?,
            Author::File { digest, is_edit } => {
                let is_last = self.digests.last() == Some(digest);
                if is_last || (!is_edit && self.digests.contains(digest)) {
                    return Ok(false);
                }
                self.digests.retain(|known| known != digest);
                if self.digests.len() >= DIGESTS_MAX {
                    self.digests.remove(0);
                }
                self.digests.push(*digest);
            }
        }
        let (number, is_from_file) = (self.version.number + 1, author.is_file());
        self.version = Version { number, is_from_file, at: now };
        Ok(true)
    }

    fn check(&self, expected: Option<u64>) -> Result<(), Error> {
        match expected {
            Some(expected) if expected != self.version.number => {
                Err(other_version(self.version.number, expected))
            }
            _ => Ok(()),
        }
    }
}

/// That somebody has changed it meanwhile.
pub(crate) fn other_version(found: u64, expected: u64) -> Error {
    let message = format!("it was changed meanwhile: found version {found}, expected {expected}");
    Error::new(ErrorKind::Conflict, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_millis(1_000);

    fn file(text: u8, is_edit: bool) -> Author {
        Author::File { digest: [text; 16], is_edit }
    }

    #[test]
    fn a_file_is_a_change_only_if_it_says_something_new() {
        let mut record = VersionRecord::default();
        let mut change = |author| record.change(&author, START).unwrap();
        assert!(change(file(b'a', false)));
        assert!(!change(file(b'a', false)), "said before");
        assert!(change(Author::CALL));
        assert!(!change(file(b'a', false)), "the call is newer");
        assert!(!change(file(b'a', true)), "another service has edited it so already");
        assert!(change(file(b'b', false)));
        assert!(!change(file(b'a', false)), "an old service starts");
        assert!(change(file(b'a', true)), "edited back");
        assert!(!change(file(b'b', false)));
        assert_eq!((record.version.number, record.version.is_from_file), (4, true));
    }

    #[test]
    fn a_call_that_expects_another_version_is_refused() {
        let mut record = VersionRecord::default();
        let call = |expected| Author::Call { expected: Some(expected) };
        assert!(record.change(&call(0), START).unwrap());
        let refused = record.change(&call(0), START).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(record.change(&call(1), START).unwrap());
        assert_eq!(record.version.number, 2);
    }

    #[test]
    fn only_so_many_texts_are_remembered() {
        let mut record = VersionRecord::default();
        for text in 0..=DIGESTS_MAX as u8 {
            assert!(record.change(&file(text, false), START).unwrap());
        }
        assert_eq!(record.digests.len(), DIGESTS_MAX);
        assert!(record.change(&file(0, false), START).unwrap(), "forgotten");
        assert!(!record.change(&file(2, false), START).unwrap());
    }
}
