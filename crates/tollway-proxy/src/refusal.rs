//! Answers that the proxy gives itself: why, and the wait that would help.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, VIA};
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::json;
use tollway_core::fields::seconds_up;

use crate::body::Body;
use crate::credential::NoAccount;
use crate::models::{Denial, Form};
use tollway_upstream::budget::{Reason, Refusal};

/// The budget that has no room.
const BUDGET: HeaderName = HeaderName::from_static("x-tollway-budget");
/// What libraries of model APIs look at.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// Tells the proxy's own answers from the upstream's.
const BY: HeaderName = HeaderName::from_static("x-tollway-answer");

/// Why a request was not forwarded, or brought no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    BadRequest(Cow<'static, str>),
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
    /// A budget of models has no room.
    Budget(Form, Box<Denial>),
    /// The body of a call is larger than can be read.
    TooLarge,
    /// No connection to the upstream.
    NoConnection,
    /// The upstream broke off before the head of its answer.
    Broken,
    /// The upstream did not answer in time.
    Late,
}

/// A word, the status, the wait that would help, and what people are told.
type Facts<'a> = (&'static str, u16, Option<Duration>, &'a str);

impl Cause {
    /// A word for metrics and for the field that names the cause.
    pub(super) fn word(&self) -> &'static str {
        self.facts().0
    }

    /// The answer. Its body is JSON that clients of chat APIs understand as well: `message`,
    /// `retry_after` and `global`.
    pub(super) fn response(&self) -> Response<Body> {
        let (word, status, wait, message) = self.facts();
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let message = match self {
            Self::Refused(refusal) => refusal.to_string(),
            _ => message.to_owned(),
        };
        if let Self::Budget(form, denial) = self {
            return budget_response(*form, denial);
        }
        let body = json!({
            "type": "about:blank",
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "message": message,
            "cause": word,
            "retry_after": wait.map(|wait| wait.as_secs_f64()),
            "global": false,
        });
        let mut response = json_response(status, &body);
        let headers = response.headers_mut();
        headers.insert(BY, HeaderValue::from_static(word));
        headers.insert(VIA, HeaderValue::from_static("1.1 tollway"));
        if let Some(wait) = wait {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds_up(wait).max(1)));
        }
        response
    }

    fn facts(&self) -> Facts<'_> {
        const NO_PAGE: &str =
            "the proxy has no such page, and it does not send the admin token to the upstream";
        const NO_TUNNEL: &str =
            "CONNECT is not supported; open a WebSocket with Upgrade over HTTP/1.1";
        let (soon, missing) = (
            Some(Duration::from_secs(1)),
            "the upstream answered in the last five minutes that this resource does not exist",
        );
        match self {
            Self::BadRequest(what) => ("bad-request", 400, None, what),
            Self::CrossSite(what) => ("cross-site", 403, None, what),
            Self::NoPage => ("no-page", 404, None, NO_PAGE),
            Self::NoTunnel => ("no-tunnel", 405, None, NO_TUNNEL),
            Self::Full => ("full", 503, soon, "too many requests are held already"),
            Self::Refused(refusal) => {
                let (word, status) = match refusal.reason {
                    Reason::Patience => ("deadline", 429),
                    Reason::TooCostly => ("too-costly", 429),
                    Reason::QueueFull | Reason::BytesFull | Reason::BucketsFull => ("full", 503),
                    Reason::Drained => ("drained", 503),
                    _ => ("unavailable", 503),
                };
                (word, status, refusal.wait, "")
            }
            Self::Unauthorized(wait) => {
                ("unauthorized", 401, Some(*wait), "the upstream refused this credential lately")
            }
            Self::Missing(wait) => ("missing", 404, Some(*wait), missing),
            Self::Guarded(wait) => (
                "guarded",
                503,
                Some(*wait),
                "so many invalid requests that one more could cause a ban",
            ),
            Self::Budget(_, denial) => ("budget", denial.status, denial.wait, &denial.message),
            Self::TooLarge => ("too-large", 413, None, "the body is too large to be read"),
            Self::NoConnection => ("no-connection", 502, None, "no connection to the upstream"),
            Self::Broken => ("broken", 502, None, "the upstream broke off before it answered"),
            Self::Late => ("late", 504, None, "the upstream did not answer in time"),
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

/// A refusal in the words of the API, with all that its libraries look at.
fn budget_response(form: Form, denial: &Denial) -> Response<Body> {
    let status = StatusCode::from_u16(denial.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    let mut response = json_response(status, &denial.body(form));
    let headers = response.headers_mut();
    headers.insert(BY, HeaderValue::from_static("budget"));
    headers.insert(VIA, HeaderValue::from_static("1.1 tollway"));
    if let Some(Ok(name)) = denial.budget.as_deref().map(HeaderValue::from_str) {
        headers.insert(BUDGET, name);
    }
    match denial.wait {
        Some(wait) => {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds_up(wait).max(1)));
            let millis = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
            headers.insert(RETRY_AFTER_MS, HeaderValue::from(millis.max(1)));
        }
        // No wait helps.
        None => {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
    }
    response
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
