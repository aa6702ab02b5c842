//! Problems in `application/problem+json` (RFC 9457).

use std::time::Duration;

use serde_json::{Value, json};

use tollway_core::fields::{Problem, seconds_up};
use tollway_core::{ErrorKind, StoreError};

use super::reply::Reply;
use crate::rls::Refusal;

/// Why a request has no ordinary answer.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The request is malformed.
    Bad(String),
    /// No token, or a wrong one.
    Unauthorized,
    /// A wrong token, after too many of them.
    WrongTokens {
        /// When there is room for another.
        wait: Duration,
    },
    /// The token does not permit it.
    Forbidden,
    /// Nothing may be changed by a service that knows no token.
    NoToken,
    /// Somebody asks for something of which there is a bounded number.
    TooMany,
    /// Whoever was asked in turn does not answer.
    Gateway,
    /// Unfinished requests hold too much already.
    Full,
    /// The request names no host, or several.
    NoHost,
    /// The host that a request names is not known here.
    UnknownHost(String),
    /// A page of another site sent the request.
    ForeignPage,
    /// The body is said to be something else than JSON.
    MediaType,
    /// There is nothing at this path.
    NotFound,
    /// A policy that does not exist.
    UnknownPolicy(String),
    /// A key has no quota of its own.
    NoOwnQuota,
    /// Another method is needed.
    Method(String),
    /// The body is too long.
    TooLarge,
    /// The client took too long.
    Slow,
    /// The store failed.
    Store(StoreError),
    /// The rules on disk are wrong; those in force stay.
    Reload(String),
    /// A queue could not do it.
    Queue(tollway_queue::Error),
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(text) => Self::Bad(text),
            Refusal::Store(error) => Self::Store(error),
        }
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<tollway_queue::Error> for Trouble {
    fn from(error: tollway_queue::Error) -> Self {
        Self::Queue(error)
    }
}

/// The status for a queue's error.
fn queue_status(error: &tollway_queue::Error) -> u16 {
    use tollway_queue::ErrorKind as Kind;
    match error.kind() {
        Kind::UnknownQueue | Kind::NotFound => 404,
        Kind::LeaseLost | Kind::Conflict => 409,
        Kind::Invalid | Kind::Misuse => 400,
        Kind::Full | Kind::Unavailable => 503,
        Kind::NoSpace => 507,
        Kind::Unknown => 504,
        _ => 500,
    }
}

impl Trouble {
    /// The request is malformed: the text names the field and what was expected.
    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self::Bad(text.into())
    }

    /// Makes this the reply.
    pub(super) fn write(self, reply: &mut Reply) {
        reply.clear();
        reply.content_type = Problem::CONTENT_TYPE;
        reply.status = self.parts().0;
        match &self {
            Self::Unauthorized => reply.fields.push(("WWW-Authenticate", "Bearer".to_owned())),
            Self::WrongTokens { wait } => {
                reply.fields.push(("Retry-After", seconds_up(*wait).max(1).to_string()));
            }
            Self::Queue(error) if error.kind() == tollway_queue::ErrorKind::Unavailable => {
                reply.fields.push(("Retry-After", "1".to_owned()));
            }
            Self::Method(allow) => reply.fields.push(("Allow", allow.clone())),
            _ => {}
        }
        reply.write_json(&self.body());
    }

    /// The problem as JSON.
    pub(super) fn body(&self) -> Value {
        let (status, title, detail) = self.parts();
        if matches!(self, Self::Store(_)) && status == 503 {
            let problem = Problem::TemporaryReducedCapacity;
            return json!({
                "type": problem.type_uri(), "title": problem.title(), "status": status,
                "detail": detail, "violated-policies": [],
            });
        }
        json!({"type": "about:blank", "title": title, "status": status, "detail": detail})
    }

    /// The status, its usual title, and what to say.
    fn parts(&self) -> (u16, &'static str, String) {
        let (status, detail) = match self {
            Self::Bad(detail) => (400, detail.clone()),
            Self::Unauthorized => (401, "a bearer token is needed".to_owned()),
            Self::WrongTokens { .. } => {
                (429, "too many wrong tokens came from this address".to_owned())
            }
            Self::Forbidden => (403, "this token does not permit it".to_owned()),
            Self::NoToken => (403, "changes need a token: serve with TOLLWAY_TOKEN".to_owned()),
            Self::TooMany => (503, "too many are watching".to_owned()),
            Self::Full => (503, "too much is held for unfinished requests".to_owned()),
            Self::NoHost => (400, "exactly one Host is needed".to_owned()),
            Self::UnknownHost(host) => (403, unknown_host(host)),
            Self::ForeignPage => (
                403,
                "a web page of another site sent this; without a token the service refuses such requests"
                    .to_owned(),
            ),
            Self::MediaType => (
                415,
                "the body must be sent as Content-Type: application/json (curl --json, or -H)"
                    .to_owned(),
            ),
            Self::Gateway => (502, "the proxy does not answer".to_owned()),
            Self::NotFound => (404, "see /openapi.json for what there is".to_owned()),
            Self::UnknownPolicy(name) => (404, format!("no policy is named {name:?}")),
            Self::NoOwnQuota => (404, "key: it has no quota of its own".to_owned()),
            Self::Method(allow) => (405, format!("the method must be one of: {allow}")),
            Self::TooLarge => (413, "the body is too long".to_owned()),
            Self::Slow => (408, "the request took too long".to_owned()),
            // Nothing is short of capacity: the service and its store do not fit together.
            Self::Store(error) if error.kind() == ErrorKind::Misuse => (500, error.to_string()),
            Self::Store(error) => (503, error.to_string()),
            Self::Reload(detail) => (409, detail.clone()),
            Self::Queue(error) => (queue_status(error), error.to_string()),
        };
        let title = http::StatusCode::from_u16(status).ok();
        let title = title.and_then(|status| status.canonical_reason()).unwrap_or("Error");
        (status, title, detail)
    }
}

fn unknown_host(host: &str) -> String {
    format!(
        "the Host {host:?} is not known here: use localhost or 127.0.0.1, name it with --host \
         or listen.hosts, or serve with a token"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_pass_is_unavailable() {
        let status = |kind| {
            let mut reply = Reply::default();
            Trouble::Store(StoreError::new(kind, "why")).write(&mut reply);
            reply.status
        };
        assert_eq!([status(ErrorKind::Unavailable), status(ErrorKind::Refused)], [503, 503]);
        assert_eq!(status(ErrorKind::Misuse), 500);
    }
}
