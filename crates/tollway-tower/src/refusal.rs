//! The response to a request that is refused: status, body, and the truth in header fields.

use std::cmp::Reverse;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use tollway_core::fields::{Denied, Problem};

use crate::Head;
use crate::gate::{Gate, Reason, Refused};
use crate::guard::guarded;

pub(crate) type Rejection = Box<dyn Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync>;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

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

impl Gate {
    /// The response to a refused request.
    pub(crate) fn refuse(&self, head: &Head<'_>, refused: &Refused) -> Response<Bytes> {
        let violated = self.violated(refused);
        let retry = refused.verdict.as_ref().and_then(|verdict| verdict.retry()?.after());
        let status = self.refusals.status_of(refused.reason);
        let refusal = Refusal { reason: refused.reason, status, violated: &violated, retry };
        let mut response = self.refusals.respond(&refusal, head.is_grpc());
        if let Some(verdict) = &refused.verdict {
            let denied = verdict.denied_by().map(|by| Denied { by, retry });
            self.tell(refused.limits, verdict, denied, response.headers_mut());
        }
        response
    }

    /// The policies that denied, each once, the one to wait for longest first.
    fn violated(&self, refused: &Refused) -> Vec<&str> {
        let decisions = refused.verdict.iter().flat_map(|verdict| verdict.decisions());
        let decided = refused.limits.indices().zip(decisions);
        let denied = decided.filter_map(|(index, decision)| Some((decision.retry()?, index)));
        let mut denied: Vec<_> = denied.collect();
        denied.sort_by_key(|&(retry, _)| Reverse(retry));
        let mut names = Vec::new();
        for (_, index) in denied {
            let name = self.limits[index].policy.name();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

impl Refusals {
    fn status_of(&self, reason: Reason) -> StatusCode {
        match reason {
            Reason::Quota => self.status,
            Reason::NoKey => StatusCode::FORBIDDEN,
            Reason::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
            Reason::Store | Reason::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn respond(&self, refusal: &Refusal<'_>, grpc: bool) -> Response<Bytes> {
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
