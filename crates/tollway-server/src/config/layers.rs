//! The order of precedence: a flag beats the environment, which beats the file.

use std::fmt;

use super::error::ConfigError;

/// Settings from outside the files. `None` leaves the file's, or the default.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Where HTTP listens; `off` for nowhere.
    pub http: Option<String>,
    /// Where gRPC listens.
    pub grpc: Option<String>,
    /// Where RESP listens.
    pub resp: Option<String>,
    /// The store: `memory` or a URL.
    pub store: Option<String>,
    /// Where queues live: `memory`, `redb:PATH` or a URL.
    pub queue_store: Option<String>,
    /// A token with the role `admin`.
    pub token: Option<String>,
    /// A token with the role `read`.
    pub read_token: Option<String>,
    /// Memory for states in this process, in bytes.
    pub memory_bytes: Option<usize>,
    /// What happens to a new key when memory is full: `deny` or `forget`.
    pub when_full: Option<String>,
    /// Threads that serve.
    pub workers: Option<usize>,
    /// Whether others than this machine may connect without a token.
    pub listen_public: Option<bool>,
    /// Names by which the service answers over HTTP while it knows no token, beside this machine's.
    pub hosts: Option<Vec<String>>,
    /// Whether nothing is denied.
    pub shadow: Option<bool>,
    /// `text` or `json`.
    pub log_format: Option<String>,
}

impl Overrides {
    /// The variables that are read.
    pub const VARIABLES: [&'static str; 14] = [
        "TOLLWAY_HTTP",
        "TOLLWAY_GRPC",
        "TOLLWAY_RESP",
        "TOLLWAY_STORE",
        "TOLLWAY_QUEUE_STORE",
        "TOLLWAY_TOKEN",
        "TOLLWAY_READ_TOKEN",
        "TOLLWAY_MEMORY_BYTES",
        "TOLLWAY_WHEN_FULL",
        "TOLLWAY_WORKERS",
        "TOLLWAY_LISTEN_PUBLIC",
        "TOLLWAY_HOSTS",
        "TOLLWAY_SHADOW",
        "TOLLWAY_LOG_FORMAT",
    ];

    /// What the environment says; `lookup` gives the value of a variable.
    ///
    /// # Errors
    ///
    /// If a variable is no number or no boolean where it must be.
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let get = |name: &str| lookup(name).filter(|value| !value.is_empty());
        Ok(Self {
            http: get("TOLLWAY_HTTP"),
            grpc: get("TOLLWAY_GRPC"),
            resp: get("TOLLWAY_RESP"),
            store: get("TOLLWAY_STORE"),
            queue_store: get("TOLLWAY_QUEUE_STORE"),
            token: get("TOLLWAY_TOKEN"),
            read_token: get("TOLLWAY_READ_TOKEN"),
            memory_bytes: parsed(&get, "TOLLWAY_MEMORY_BYTES", "a number of bytes")?,
            when_full: get("TOLLWAY_WHEN_FULL"),
            workers: parsed(&get, "TOLLWAY_WORKERS", "a number of threads")?,
            listen_public: parsed(&get, "TOLLWAY_LISTEN_PUBLIC", "true or false")?,
            hosts: get("TOLLWAY_HOSTS").map(|names| listed(&names)),
            shadow: parsed(&get, "TOLLWAY_SHADOW", "true or false")?,
            log_format: get("TOLLWAY_LOG_FORMAT"),
        })
    }

    /// These settings where they say something, `lower` elsewhere.
    #[must_use]
    pub fn over(self, lower: Self) -> Self {
        Self {
            http: self.http.or(lower.http),
            grpc: self.grpc.or(lower.grpc),
            resp: self.resp.or(lower.resp),
            store: self.store.or(lower.store),
            queue_store: self.queue_store.or(lower.queue_store),
            token: self.token.or(lower.token),
            read_token: self.read_token.or(lower.read_token),
            memory_bytes: self.memory_bytes.or(lower.memory_bytes),
            when_full: self.when_full.or(lower.when_full),
            workers: self.workers.or(lower.workers),
            listen_public: self.listen_public.or(lower.listen_public),
            hosts: self.hosts.or(lower.hosts),
            shadow: self.shadow.or(lower.shadow),
            log_format: self.log_format.or(lower.log_format),
        }
    }
}

impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token is a secret, and the URLs of stores may hold one.
        f.debug_struct("Overrides").field("http", &self.http).finish_non_exhaustive()
    }
}

/// Names with commas between them.
fn listed(names: &str) -> Vec<String> {
    names.split(',').map(|name| name.trim().to_owned()).collect()
}

fn parsed<T: std::str::FromStr>(
    get: &impl Fn(&str) -> Option<String>,
    name: &str,
    expected: &str,
) -> Result<Option<T>, ConfigError> {
    let Some(text) = get(name) else { return Ok(None) };
    // The value is not repeated: a misplaced secret must not reach a log.
    let wrong = |_| ConfigError {
        source: "environment".to_owned(),
        line: 0,
        field: name.to_owned(),
        problem: format!("expected {expected}"),
    };
    text.parse().map(Some).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_never_printed() {
        let secret = || Some("redis://:s3cret@host".to_owned());
        let overrides = Overrides { token: secret(), store: secret(), ..Overrides::default() };
        assert!(!format!("{overrides:?}").contains("s3cret"));
    }
}
