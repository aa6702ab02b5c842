//! What of a request or response a limit may look at: everything but the body.

use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, Uri};

/// The head of a request, as key, cost and exemption functions see it.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// The method.
    pub method: &'a Method,
    /// The target.
    pub uri: &'a Uri,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// What outer layers and the server attached: peer address, matched route, claims.
    pub extensions: &'a Extensions,
}

impl<'a> Head<'a> {
    /// The head of `request`.
    pub fn of<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }

    /// Whether this is a CORS preflight: `OPTIONS` that names an origin and a method to come.
    pub fn is_preflight(&self) -> bool {
        self.method == Method::OPTIONS
            && self.headers.contains_key(http::header::ORIGIN)
            && self.headers.contains_key(http::header::ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Whether this is a gRPC call, which hears of a refusal by `grpc-status` and not by status.
    pub fn is_grpc(&self) -> bool {
        let content_type = self.headers.get(http::header::CONTENT_TYPE);
        content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
    }
}

/// The head of a response, as settling functions see it.
#[derive(Debug, Clone, Copy)]
pub struct ResponseHead<'a> {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// What the handler attached.
    pub extensions: &'a Extensions,
}

impl<'a> ResponseHead<'a> {
    /// The head of `response`.
    pub fn of<B>(response: &'a Response<B>) -> Self {
        Self {
            status: response.status(),
            headers: response.headers(),
            extensions: response.extensions(),
        }
    }
}
