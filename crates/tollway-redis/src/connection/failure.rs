//! What an error of a server means: one classification for everybody who asks one.
//!
//! | kind | what the server said | has it run? | what helps |
//! |---|---|---|---|
//! | [`Away`](FailureKind::Away) | nothing, or `LOADING`, `BUSY` | no | to ask again later |
//! | [`Elsewhere`](FailureKind::Elsewhere) | `READONLY`, `MASTERDOWN`, `MOVED`, `ASK`, `TRYAGAIN`, `CLUSTERDOWN` | no | another server, or this one once it is sorted out |
//! | [`Lost`](FailureKind::Lost) | it was sent, and no answer came | unknown | to ask again under the same name |
//! | [`RefusesWrites`](FailureKind::RefusesWrites) | `OOM`, `MISCONF`, `NOREPLICAS`, `NOPERM`, `NOAUTH` | no | an operator |
//! | [`NoScript`](FailureKind::NoScript) | `NOSCRIPT` | no | to send the source |
//! | [`Rejected`](FailureKind::Rejected) | anything else | no | another command |
//!
//! Before Redis 7 the refusal of a command within a script stands within the error of the script,
//! `ERR Error running script (…): @user_script: 1: -OOM command not allowed`. It is found there, so
//! that an outage of an old server is not taken for a mistake of the caller.

use std::fmt;
use std::sync::Arc;

use redis::RedisError;
use tollway_core::{ErrorKind, StoreError, explained};

use super::address::{misuse, unavailable};

/// What a failure says of the server, and of what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The server cannot be reached or is not ready yet. Nothing was done.
    Away,
    /// Another server answers, or this one once it is clear which one does. Nothing was done.
    Elsewhere,
    /// It was sent, and no answer came: nobody knows whether it was done.
    Lost,
    /// The server answers, and refuses every write. Nothing was done.
    RefusesWrites,
    /// The server does not know the script.
    NoScript,
    /// The server is well, and refuses what it was asked.
    Rejected,
}

/// Why a command has no answer.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    message: String,
    source: Option<RedisError>,
}

/// Where a cluster sends a request that was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The slot has moved for good.
    Moved { host: String, port: u16 },
    /// The slot is moving; this once.
    Ask { host: String, port: u16 },
    /// Wherever the slot is by then.
    Later,
    /// The same, once all of the request's keys are on one side of the move.
    OnceMoved,
}

impl Failure {
    /// What an error in answer to a command means.
    pub fn of(error: RedisError) -> Self {
        let (kind, message) = match (code_of(&error), error.code()) {
            (Some(code), Some(outer)) => {
                let detail = error.detail().unwrap_or_default();
                (kind_of(code), format!("the store refuses: {outer} {detail}"))
            }
            // Whatever the client library could not do with the connection.
            _ => {
                let broke = format!("the connection to the store broke: {}", explained(&error));
                (FailureKind::Lost, broke)
            }
        };
        Self { kind, message, source: Some(error) }
    }

    /// The server was not asked.
    pub(crate) fn away(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Away, message: message.into(), source: None }
    }

    /// The server was asked in vain.
    pub(crate) fn lost(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Lost, message: message.into(), source: None }
    }

    /// An answer that is none to what was asked, or a mistake that no server needs to point out.
    pub fn rejected(message: impl Into<String>) -> Self {
        Self { kind: FailureKind::Rejected, message: message.into(), source: None }
    }

    /// What the failure says of the server.
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Whether asking again may help, here or at another server.
    pub const fn is_transient(&self) -> bool {
        matches!(self.kind, FailureKind::Away | FailureKind::Elsewhere | FailureKind::Lost)
    }

    /// The first word of what the server said, also if it is hidden within the error of a script.
    pub fn code(&self) -> Option<&str> {
        self.source.as_ref().and_then(code_of)
    }

    /// What the server said after its first word.
    pub fn detail(&self) -> Option<&str> {
        self.source.as_ref().and_then(RedisError::detail)
    }

    /// Whether the connection leads to a server that does not answer, or not for this.
    pub(crate) const fn spoils_connection(&self) -> bool {
        matches!(self.kind, FailureKind::Lost | FailureKind::Elsewhere)
    }

    /// Where a cluster wants the request to go.
    pub(crate) fn redirect(&self) -> Option<Redirect> {
        // `MOVED 3999 127.0.0.1:6381`
        let named = || {
            let (host, port) = self.detail()?.split_whitespace().nth(1)?.rsplit_once(':')?;
            Some((host.to_owned(), port.parse().ok()?))
        };
        match self.code()? {
            "MOVED" => named().map(|(host, port)| Redirect::Moved { host, port }),
            "ASK" => named().map(|(host, port)| Redirect::Ask { host, port }),
            "TRYAGAIN" => Some(Redirect::OnceMoved),
            "CLUSTERDOWN" => Some(Redirect::Later),
            _ => None,
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        let kind = match failure.kind {
            FailureKind::Away | FailureKind::Elsewhere => ErrorKind::Unavailable,
            FailureKind::Lost => ErrorKind::Unknown,
            FailureKind::RefusesWrites | FailureKind::NoScript | FailureKind::Rejected => {
                ErrorKind::Refused
            }
        };
        Self::new(kind, failure.message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}

fn kind_of(code: &str) -> FailureKind {
    match code {
        "LOADING" | "BUSY" => FailureKind::Away,
        "READONLY" | "MASTERDOWN" | "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" => {
            FailureKind::Elsewhere
        }
        "OOM" | "MISCONF" | "NOREPLICAS" | "NOPERM" | "NOAUTH" => FailureKind::RefusesWrites,
        "NOSCRIPT" => FailureKind::NoScript,
        _ => FailureKind::Rejected,
    }
}

/// The first word of an error, or of the one that is hidden within the error of a script.
fn code_of(error: &RedisError) -> Option<&str> {
    let within = error.detail().filter(|detail| detail.starts_with("Error running script"));
    let hidden = within.and_then(|detail| detail.split(": -").nth(1)?.split(' ').next());
    // Scripts may say anything in lower case; codes are in capitals.
    let is_code = |word: &&str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_uppercase());
    hidden.filter(is_code).or_else(|| error.code())
}

/// Nobody knows whether the store did what it was asked.
pub(crate) fn unknown(message: &str) -> StoreError {
    StoreError::new(ErrorKind::Unknown, message)
}

/// What went wrong while connecting.
pub(crate) fn while_connecting(error: RedisError) -> StoreError {
    let refused = matches!(error.kind(), redis::ErrorKind::AuthenticationFailed)
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH" | "NOPERM"));
    if refused {
        let message = "the store refuses the user or the password";
        return StoreError::new(ErrorKind::Refused, message).caused_by(error);
    }
    if let Some(wrong) = untrusted(&error) {
        let message = format!("the store's certificate is not trusted: {wrong:?}");
        return StoreError::new(ErrorKind::Refused, message).caused_by(error);
    }
    if matches!(error.kind(), redis::ErrorKind::InvalidClientConfig) {
        return misuse("the store's URL or certificates cannot be used").caused_by(error);
    }
    unavailable("the store cannot be reached").caused_by(error)
}

/// What is wrong with a certificate that waiting does not mend. One that has expired is renewed
/// where it is, and a clock that is behind is set.
fn untrusted(error: &RedisError) -> Option<&rustls::CertificateError> {
    use rustls::CertificateError as Wrong;
    type Shared = Arc<dyn std::error::Error + Send + Sync>;
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        // Neither an error that is shared nor one of I/O names what it wraps as its source.
        let shared = error.downcast_ref::<Shared>();
        let error = shared.map_or(error, |shared| &**shared as _);
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let error = wrapped.map_or(error, |wrapped| wrapped as _);
        if let Some(rustls::Error::InvalidCertificate(wrong)) = error.downcast_ref() {
            let may_pass = matches!(
                wrong,
                Wrong::Expired
                    | Wrong::ExpiredContext { .. }
                    | Wrong::NotValidYet
                    | Wrong::NotValidYetContext { .. }
            );
            return (!may_pass).then_some(wrong);
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a server means that writes this line.
    fn said(line: &str) -> Failure {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        Failure::of(value.extract_error().unwrap_err())
    }

    #[test]
    fn every_refusal_has_one_meaning() {
        for (line, kind, error) in [
            ("LOADING Redis is loading", FailureKind::Away, ErrorKind::Unavailable),
            ("BUSY Redis is busy running a script", FailureKind::Away, ErrorKind::Unavailable),
            ("READONLY You can't write", FailureKind::Elsewhere, ErrorKind::Unavailable),
            ("MASTERDOWN Link with MASTER", FailureKind::Elsewhere, ErrorKind::Unavailable),
            ("CLUSTERDOWN Hash slot", FailureKind::Elsewhere, ErrorKind::Unavailable),
            ("TRYAGAIN Multiple keys", FailureKind::Elsewhere, ErrorKind::Unavailable),
            ("MOVED 1 h:2", FailureKind::Elsewhere, ErrorKind::Unavailable),
            ("OOM command not allowed", FailureKind::RefusesWrites, ErrorKind::Refused),
            ("MISCONF Redis is configured", FailureKind::RefusesWrites, ErrorKind::Refused),
            ("NOREPLICAS Not enough good", FailureKind::RefusesWrites, ErrorKind::Refused),
            ("NOPERM this user has no", FailureKind::RefusesWrites, ErrorKind::Refused),
            ("NOAUTH Authentication", FailureKind::RefusesWrites, ErrorKind::Refused),
            ("NOSCRIPT No matching script", FailureKind::NoScript, ErrorKind::Refused),
            ("WRONGTYPE Operation against", FailureKind::Rejected, ErrorKind::Refused),
            ("CROSSSLOT Keys in request", FailureKind::Rejected, ErrorKind::Refused),
            ("UNKNOWNQUEUE there is no", FailureKind::Rejected, ErrorKind::Refused),
            ("ERR value is not an integer", FailureKind::Rejected, ErrorKind::Refused),
        ] {
            let failure = said(line);
            assert_eq!(failure.kind(), kind, "{line}");
            assert_eq!(failure.code(), line.split(' ').next(), "{line}");
            assert!(failure.to_string().ends_with(line), "{line}: {failure}");
            assert_eq!(StoreError::from(failure).kind(), error, "{line}");
        }
    }

    #[test]
    fn a_refusal_is_found_within_the_error_of_a_script() {
        let within = |code: &str| {
            let script = "ERR Error running script (call to f_5f2a): @user_script:1: ";
            said(&format!("{script}@user_script: 1: {code} said the server"))
        };
        for (code, kind) in [
            ("-OOM", FailureKind::RefusesWrites),
            ("-MISCONF", FailureKind::RefusesWrites),
            ("-READONLY", FailureKind::Elsewhere),
            ("-WRONGTYPE", FailureKind::Rejected),
            ("attempt to index a nil value: -", FailureKind::Rejected),
            ("it is cold: -oom", FailureKind::Rejected),
        ] {
            assert_eq!(within(code).kind(), kind, "{code}");
        }
        assert_eq!(within("-OOM").code(), Some("OOM"));
        assert_eq!(said("ERR told by a client: -OOM so").kind(), FailureKind::Rejected);
    }

    #[test]
    fn what_is_no_answer_is_lost() {
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let failure = Failure::of(broken);
        assert_eq!((failure.kind(), failure.code()), (FailureKind::Lost, None));
        assert!(failure.spoils_connection());
    }

    #[test]
    fn a_cluster_names_the_server_to_ask() {
        let at = |host: &str, port| (host.to_owned(), port);
        let (host, port) = at("127.0.0.1", 6381);
        assert_eq!(
            said("MOVED 3999 127.0.0.1:6381").redirect(),
            Some(Redirect::Moved { host, port })
        );
        let (host, port) = at("::1", 7);
        assert_eq!(said("ASK 3999 ::1:7").redirect(), Some(Redirect::Ask { host, port }));
        assert_eq!(said("TRYAGAIN Multiple keys").redirect(), Some(Redirect::OnceMoved));
        assert_eq!(said("CLUSTERDOWN Hash slot").redirect(), Some(Redirect::Later));
        assert_eq!(said("MOVED nowhere").redirect(), None);
        assert_eq!(said("READONLY You can't").redirect(), None);
    }
}
