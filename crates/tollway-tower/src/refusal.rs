//! The response to a request that is refused: status, body, and the truth in header fields.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use tollway_core::fields::Problem;

use crate::guard::guarded;

pub(crate) type Rejection = Box<dyn Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync>;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// A policy denied it.
    Quota,
    /// It has no key, and a limit demands one.
    NoKey,
    /// A function that the layer was configured with panicked.
    Panicked,
    /// The store failed, and a policy denies in that case.
    Store,
    /// The inner service is busy, and the layer sheds load.
    Busy,
}

/// Why and how a request is refused, for a custom rejection body.
#[derive(Debug, Clone, Copy)]
pub struct Refusal<'a> {
    /// Why.
    pub reason: Reason,
    /// The status the layer would answer with.
    pub status: StatusCode,
    /// The names of the policies that denied.
    pub violated: &'a [&'a str],
    /// When the same request would pass, if waiting helps.
    pub retry: Option<Duration>,
}

/// How a layer refuses.
pub(crate) struct Refusals {
    pub(crate) status: StatusCode,
    pub(crate) custom: Option<Rejection>,
}

impl Refusals {
    pub(crate) fn status_of(&self, reason: Reason) -> StatusCode {
        match reason {
            Reason::Quota => self.status,
            Reason::NoKey => StatusCode::FORBIDDEN,
            Reason::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
            Reason::Store | Reason::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(crate) fn respond(&self, refusal: &Refusal<'_>, grpc: bool) -> Response<Bytes> {
        let custom = self.custom.as_ref();
        // A rejection function that panics still owes the client an answer: the default one.
        match custom.map(|custom| guarded(|| custom(refusal))) {
            Some(Ok(response)) => response,
            _ if grpc => grpc_response(refusal),
            _ => problem_response(refusal),
        }
    }
}

fn problem_response(refusal: &Refusal<'_>) -> Response<Bytes> {
    let status = refusal.status.as_u16();
    let violated = refusal.violated.iter().copied();
    let body = match refusal.reason {
        Reason::Quota => Problem::QuotaExceeded.body(status, violated),
        Reason::Store | Reason::Busy => Problem::TemporaryReducedCapacity.body(status, violated),
        Reason::NoKey => concat!(
            r#"{"type":"about:blank","title":"Forbidden","status":403,"#,
            r#""detail":"The request has nothing to limit it by."}"#,
        )
        .to_owned(),
        Reason::Panicked => {
            r#"{"type":"about:blank","title":"Internal Server Error","status":500}"#.to_owned()
        }
    };
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = refusal.status;
    let problem_json = HeaderValue::from_static(Problem::CONTENT_TYPE);
    response.headers_mut().insert(CONTENT_TYPE, problem_json);
    response
}

/// gRPC tells the outcome in `grpc-status`; without a body that may stand in the header block.
fn grpc_response(refusal: &Refusal<'_>) -> Response<Bytes> {
    let (code, message) = match refusal.reason {
        Reason::Quota => ("8", "quota exceeded"),
        Reason::NoKey => ("7", "the request has nothing to limit it by"),
        Reason::Panicked => ("13", "internal error"),
        Reason::Store | Reason::Busy => ("14", "temporarily reduced capacity"),
    };
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from_static(code));
    headers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
    response
}
