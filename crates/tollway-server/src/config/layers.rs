//! The order of precedence: a flag beats the environment, which beats the file.

use std::fmt;

use tollway_core::parse_size;

use super::error::ConfigError;
use crate::front::{Front, with_fronts};

/// Declares the settings: where each front listens, and the others, each with its variable, how
/// that reads, and what is expected of it.
macro_rules! overrides {
    ({ $(
        $front:ident $place:ident $name:literal $title:literal $place_in:literal $port:literal,
    )* } $(
        $(#[$doc:meta])*
        $field:ident: $type:ty = $variable:literal $read:ident $expected:literal;
    )*) => {
        /// Settings from outside the files. `None` leaves the file's, or the default.
        #[derive(Clone, Default, PartialEq, Eq)]
        pub struct Overrides {
            $(#[doc = concat!("Where ", $title, " listens; `off` for nowhere.")]
            pub $place: Option<String>,)*
            $($(#[$doc])* pub $field: Option<$type>,)*
        }

        impl Overrides {
            /// What the environment says; `lookup` gives the value of a variable.
            ///
            /// # Errors
            ///
            /// If a variable is no number or no boolean where it must be.
            pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
                let get = |name: &str| lookup(name).filter(|value| !value.is_empty());
                Ok(Self {
                    $($place: get($place_in),)*
                    $($field: {
                        let expected = || wrong($variable, $expected);
                        get($variable).map(|text| $read(&text).ok_or_else(expected)).transpose()?
                    },)*
                })
            }

            /// These settings where they say something, `lower` elsewhere.
            #[must_use]
            pub fn over(self, lower: Self) -> Self {
                Self {
                    $($place: self.$place.or(lower.$place),)*
                    $($field: self.$field.or(lower.$field),)*
                }
            }

            /// Where a front listens.
            pub fn place(&self, front: Front) -> Option<&str> {
                match front { $(Front::$front => self.$place.as_deref(),)* }
            }

            /// The setting that says where a front listens.
            pub const fn place_mut(&mut self, front: Front) -> &mut Option<String> {
                match front { $(Front::$front => &mut self.$place,)* }
            }
        }
    };
}

with_fronts!(overrides! {
    /// The store: `memory` or a URL.
    store: String = "TOLLWAY_STORE" parsed "text";
    /// Where queues live: `memory`, `redb:PATH` or a URL.
    queue_store: String = "TOLLWAY_QUEUE_STORE" parsed "text";
    /// The file of durable counts.
    durable_file: String = "TOLLWAY_DURABLE_FILE" parsed "text";
    /// A token with the role `admin`.
    token: String = "TOLLWAY_TOKEN" parsed "text";
    /// A token with the role `read`.
    read_token: String = "TOLLWAY_READ_TOKEN" parsed "text";
    /// Memory for states in this process, in bytes.
    memory_bytes: usize = "TOLLWAY_MEMORY_BYTES" sized "a size such as 256MiB, or a number of bytes";
    /// What happens to a new key when memory is full: `deny` or `forget`.
    when_full: String = "TOLLWAY_WHEN_FULL" parsed "text";
    /// Threads that serve.
    workers: usize = "TOLLWAY_WORKERS" parsed "a number of threads";
    /// Whether others than this machine may connect without a token.
    listen_public: bool = "TOLLWAY_LISTEN_PUBLIC" parsed "true or false";
    /// Names by which the service answers over HTTP while it knows no token, beside this machine's.
    hosts: Vec<String> = "TOLLWAY_HOSTS" listed "names with commas between them";
    /// Whether nothing is denied.
    shadow: bool = "TOLLWAY_SHADOW" parsed "true or false";
    /// `text` or `json`.
    log_format: String = "TOLLWAY_LOG_FORMAT" parsed "text";
});

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is a secret, and the URLs of stores may hold one.
        f.debug_struct("Overrides").field("http", &self.http).finish_non_exhaustive()
    }
}

fn listed(names: &str) -> Option<Vec<String>> {
    Some(names.split(',').map(|name| name.trim().to_owned()).collect())
}

fn sized(text: &str) -> Option<usize> {
    text.parse().ok().or_else(|| parse_size(text).ok()?.try_into().ok())
}

fn parsed<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// An error about a variable. Its value is not repeated: a misplaced secret must not reach a log.
fn wrong(variable: &str, expected: &str) -> ConfigError {
    ConfigError {
        source: super::ENVIRONMENT.to_owned(),
        line: 0,
        field: variable.to_owned(),
        problem: format!("expected {expected}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_size_or_a_number_of_bytes() {
        let read = |text: &str| {
            Overrides::from_env(|name| (name == "TOLLWAY_MEMORY_BYTES").then(|| text.to_owned()))
        };
        for text in ["268435456", "256MiB", "262144 KiB"] {
            assert_eq!(read(text).map(|read| read.memory_bytes), Ok(Some(256 << 20)), "{text}");
        }
        let wrong = read("256M").map(drop).unwrap_err().to_string();
        let told = "environment: TOLLWAY_MEMORY_BYTES: expected a size such as 256MiB, or a number of bytes";
        assert_eq!(wrong, told);
    }

    #[test]
    fn secrets_are_never_printed() {
        let secret = || Some("redis://:s3cret@host".to_owned());
        let overrides = Overrides { token: secret(), store: secret(), ..Overrides::default() };
        assert!(!format!("{overrides:?}").contains("s3cret"));
    }
}
