//! Problems in `application/problem+json` (RFC 9457).

use std::time::Duration;

use serde_json::{Value, json};

use super::reply::Reply;
use tollway_core::fields::{Problem, seconds_up};
use tollway_core::{ErrorKind, StoreError};

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
    /// Another method is needed.
    Method(&'static str),
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
fn queue_status(error: &tollway_queue::Error) -> (u16, &'static str) {
    use tollway_queue::ErrorKind as Kind;
    match error.kind() {
        Kind::UnknownQueue | Kind::NotFound => (404, "Not Found"),
        Kind::LeaseLost => (409, "Conflict"),
        Kind::Invalid | Kind::Misuse => (400, "Bad Request"),
        Kind::Full | Kind::Unavailable => (503, "Service Unavailable"),
        Kind::NoSpace => (507, "Insufficient Storage"),
        Kind::Unknown => (504, "Gateway Timeout"),
        _ => (500, "Internal Server Error"),
    }
}

impl Trouble {
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
            Self::Method(allow) => reply.fields.push(("Allow", (*allow).to_owned())),
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

    fn parts(&self) -> (u16, &'static str, String) {
        match self {
            Self::Bad(detail) => (400, "Bad Request", detail.clone()),
            Self::Unauthorized => (401, "Unauthorized", "a bearer token is needed".to_owned()),
            Self::WrongTokens { .. } => {
                let detail = "too many wrong tokens came from this address".to_owned();
                (429, "Too Many Requests", detail)
            }
            Self::Forbidden => (403, "Forbidden", "this token does not permit it".to_owned()),
            Self::NoToken => {
                (403, "Forbidden", "changes need a token: serve with TOLLWAY_TOKEN".to_owned())
            }
            Self::TooMany => (503, "Service Unavailable", "too many are watching".to_owned()),
            Self::Full => {
                (503, "Service Unavailable", "too much is held for unfinished requests".to_owned())
            }
            Self::NoHost => (400, "Bad Request", "exactly one Host is needed".to_owned()),
            Self::UnknownHost(host) => (403, "Forbidden", unknown_host(host)),
            Self::ForeignPage => (
                403,
                "Forbidden",
                "a page of another site sent this: without a token such a page may not ask"
                    .to_owned(),
            ),
            Self::MediaType => (
                415,
                "Unsupported Media Type",
                "the body must be sent as Content-Type: application/json (curl --json, or -H)"
                    .to_owned(),
            ),
            Self::Gateway => (502, "Bad Gateway", "the proxy does not answer".to_owned()),
            Self::NotFound => (404, "Not Found", "see /openapi.json for what there is".to_owned()),
            Self::UnknownPolicy(name) => (404, "Not Found", format!("no policy is named {name:?}")),
            Self::Method(allow) => (405, "Method Not Allowed", format!("right would be {allow}")),
            Self::TooLarge => (413, "Content Too Large", "the body is too long".to_owned()),
            Self::Slow => (408, "Request Timeout", "the request took too long".to_owned()),
            // Nothing is short of capacity: the service and its store do not fit together.
            Self::Store(error) if error.kind() == ErrorKind::Misuse => {
                (500, "Internal Server Error", error.to_string())
            }
            Self::Store(error) => (503, "Service Unavailable", error.to_string()),
            Self::Reload(detail) => (409, "Conflict", detail.clone()),
            Self::Queue(error) => {
                let (status, title) = queue_status(error);
                (status, title, error.to_string())
            }
        }
    }
}

fn unknown_host(host: &str) -> String {
    format!(
        "the Host {host:?} is not known here: ask by localhost or 127.0.0.1, name it with --host \
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
