//! Answers that the proxy gives itself: why, and the wait that would help.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, VIA};
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::json;
use tollway_core::fields::seconds_up;

use crate::body::Body;
use crate::credential::NoAccount;
use tollway_upstream::budget::{Reason, Refusal};

/// Tells the proxy's own answers from the upstream's.
const BY: HeaderName = HeaderName::from_static("x-tollway-answer");

/// Why a request was not forwarded, or brought no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    BadRequest(&'static str),
    /// A web page of another origin sent it, or one that reached this machine by a foreign name.
    CrossSite(&'static str),
    /// It carries the admin's token, and asks for none of the proxy's own pages.
    NoPage,
    /// CONNECT: tunnels are no requests that limits can be kept for.
    NoTunnel,
    /// Too many requests or bytes are held already.
    Full,
    /// The line says no.
    Refused(Refusal),
    /// The credential was refused lately, and is not tried again yet.
    Unauthorized(Duration),
    /// The resource was missing lately, and is not asked for again yet.
    Missing(Duration),
    /// Too many invalid requests: one more could bring a ban.
    Guarded(Duration),
    /// No connection to the upstream.
    NoConnection,
    /// The upstream broke off before the head of its answer.
    Broken,
    /// The upstream did not answer in time.
    Late,
}

impl Cause {
    /// A word for metrics and for the field that names the cause.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::BadRequest(_) => "bad-request",
            Self::CrossSite(_) => "cross-site",
            Self::NoPage => "no-page",
            Self::NoTunnel => "no-tunnel",
            Self::Full => "full",
            Self::Refused(refusal) => match refusal.reason {
                Reason::Patience => "deadline",
                Reason::QueueFull | Reason::BytesFull | Reason::BucketsFull => "full",
                Reason::TooCostly => "too-costly",
                Reason::Drained => "drained",
                _ => "unavailable",
            },
            Self::Unauthorized(_) => "unauthorized",
            Self::Missing(_) => "missing",
            Self::Guarded(_) => "guarded",
            Self::NoConnection => "no-connection",
            Self::Broken => "broken",
            Self::Late => "late",
        }
    }

    /// The answer. Its body is JSON that clients of chat APIs understand as well: `message`,
    /// `retry_after` and `global`.
    pub(super) fn response(self) -> Response<Body> {
        let (status, wait) = self.status_and_wait();
        let body = json!({
            "type": "about:blank",
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "message": self.message(),
            "cause": self.word(),
            "retry_after": wait.map(|wait| wait.as_secs_f64()),
            "global": false,
        });
        let mut response = json_response(status, &body);
        let headers = response.headers_mut();
        headers.insert(BY, HeaderValue::from_static(self.word()));
        headers.insert(VIA, HeaderValue::from_static("1.1 tollway"));
        if let Some(wait) = wait {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds_up(wait).max(1)));
        }
        response
    }

    fn status_and_wait(self) -> (StatusCode, Option<Duration>) {
        match self {
            Self::BadRequest(_) => (StatusCode::BAD_REQUEST, None),
            Self::CrossSite(_) => (StatusCode::FORBIDDEN, None),
            Self::NoPage => (StatusCode::NOT_FOUND, None),
            Self::NoTunnel => (StatusCode::METHOD_NOT_ALLOWED, None),
            Self::Full => (StatusCode::SERVICE_UNAVAILABLE, Some(Duration::from_secs(1))),
            Self::Refused(Refusal { reason, wait }) => match reason {
                Reason::Patience | Reason::TooCostly => (StatusCode::TOO_MANY_REQUESTS, wait),
                _ => (StatusCode::SERVICE_UNAVAILABLE, wait),
            },
            Self::Unauthorized(wait) => (StatusCode::UNAUTHORIZED, Some(wait)),
            Self::Missing(wait) => (StatusCode::NOT_FOUND, Some(wait)),
            Self::Guarded(wait) => (StatusCode::SERVICE_UNAVAILABLE, Some(wait)),
            Self::NoConnection | Self::Broken => (StatusCode::BAD_GATEWAY, None),
            Self::Late => (StatusCode::GATEWAY_TIMEOUT, None),
        }
    }

    fn message(self) -> String {
        match self {
            Self::BadRequest(what) | Self::CrossSite(what) => what.to_owned(),
            Self::NoPage => {
                "no such page of the proxy; the admin token is not sent to the upstream".to_owned()
            }
            Self::NoTunnel => "tunnels are not offered".to_owned(),
            Self::Full => "too many requests are held already".to_owned(),
            Self::Refused(refusal) => refusal.to_string(),
            Self::Unauthorized(_) => "the upstream refused this credential lately".to_owned(),
            Self::Missing(_) => "the upstream did not know this resource lately".to_owned(),
            Self::Guarded(_) => "so many invalid requests that a ban is near".to_owned(),
            Self::NoConnection => "no connection to the upstream".to_owned(),
            Self::Broken => "the upstream broke off before it answered".to_owned(),
            Self::Late => "the upstream did not answer in time".to_owned(),
        }
    }
}

impl From<NoAccount> for Cause {
    fn from(why: NoAccount) -> Self {
        let wait = Some(Duration::from_secs(1));
        match why {
            NoAccount::Full => Self::Full,
            NoAccount::Unavailable => Self::Refused(Refusal { reason: Reason::Unavailable, wait }),
        }
    }
}

/// A JSON answer.
pub(super) fn json_response(status: StatusCode, body: &serde_json::Value) -> Response<Body> {
    let mut response = text_response(status, body.to_string());
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A text answer.
pub(super) fn text_response(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(text.into()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
