//! The names of queues, groups and jobs: bounded, parsed once.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::Error;

/// The name of a queue or of a shared limit: 1 to 128 letters, digits, `.`, `_`, `-` or `:`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// The longest name, in bytes.
    pub const LEN_MAX: usize = 128;

    /// The name `text`.
    ///
    /// # Errors
    ///
    /// If it is empty, too long, or has another character: it stands in addresses and in keys.
    pub fn new(text: &str) -> Result<Self, Error> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
        if text.is_empty() || text.len() > Self::LEN_MAX || !text.bytes().all(fits) {
            let found = format_args!("{:?}", text.chars().take(64).collect::<String>());
            let expected = "1 to 128 letters, digits, '.', '_', '-' or ':'";
            return Err(Error::outside("queue name", found, expected));
        }
        Ok(Self(text.into()))
    }
}

/// Whose limit a job waits for: "this server", "this customer". Any text up to 256 bytes; the empty
/// one is the group of jobs that name none.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group(Arc<str>);

impl Group {
    /// The longest name, in bytes.
    pub const LEN_MAX: usize = 256;

    /// The group called `text`.
    ///
    /// # Errors
    ///
    /// If it is longer than [`Self::LEN_MAX`] bytes.
    pub fn new(text: &str) -> Result<Self, Error> {
        if text.len() > Self::LEN_MAX {
            let found = format_args!("{} bytes", text.len());
            return Err(Error::outside("group", found, "at most 256 bytes"));
        }
        Ok(Self(text.into()))
    }
}

impl Default for Group {
    fn default() -> Self {
        Self("".into())
    }
}

impl std::borrow::Borrow<str> for Group {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Groups are named by strangers: shown escaped, so that a log line stays one line.
        write!(f, "{:?}", &*self.0)
    }
}

macro_rules! text_of {
    ($($name:ident)*) => {$(
        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

text_of! { QueueName Group }

/// The number of a job in its queue, given in the order of enqueueing and never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let outside = |_| Error::outside("job id", format_args!("{text:?}"), "a whole number");
        text.parse().map(Self).map_err(outside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_name_that_an_address_cannot_carry_is_refused() {
        for text in ["", "a b", "a/b", "a{b}", "é", &"x".repeat(129)] {
            assert!(QueueName::new(text).is_err(), "{text:?}");
        }
        assert!(QueueName::new("discord.roles:v2_x-1").is_ok());
    }

    #[test]
    fn a_group_is_any_text_up_to_its_bound() {
        assert!(Group::new(&"é".repeat(128)).is_ok());
        assert!(Group::new(&"x".repeat(257)).is_err());
        assert_eq!(Group::new("").expect("empty"), Group::default());
    }
}
