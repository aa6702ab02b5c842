//! Answers of the loopback server as HTTP messages, whole or broken off.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::{Frame, Incoming, SizeHint};
use serde::Serialize;

use crate::fake_api::{Ending, Response};

pub(super) type Body = BoxBody<Bytes, io::Error>;

/// How much of a big body is handed over at once.
const CHUNK: usize = 64 << 10;

/// The answer with its ending.
pub(super) fn of(response: Response) -> http::Response<Body> {
    let Response { status, fields, body, ending, .. } = response;
    let mut built = http::Response::builder().status(status);
    for (name, value) in fields {
        built = built.header(name, value);
    }
    if ending == Ending::Whole {
        return built.body(full(body)).unwrap_or_else(|error| text(500, &error.to_string()));
    }
    let half = Bytes::copy_from_slice(&body.as_bytes()[..body.len() / 2]);
    let broken =
        Broken { half: VecDeque::from([half]), stalls: ending == Ending::StallBody, rested: false };
    let built = built.header(CONTENT_LENGTH, body.len()).body(broken.boxed());
    built.unwrap_or_else(|error| text(500, &error.to_string()))
}

pub(super) fn text(status: u16, text: &str) -> http::Response<Body> {
    let mut response = http::Response::new(full(text.to_owned()));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    response
}

pub(super) fn json(value: &impl Serialize) -> http::Response<Body> {
    let body = serde_json::to_string(value).unwrap_or_default();
    let mut response = http::Response::new(full(body));
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

pub(super) fn echo(request: http::Request<Incoming>) -> http::Response<Body> {
    http::Response::new(request.into_body().map_err(io::Error::other).boxed())
}

pub(super) fn big(count: u64) -> http::Response<Body> {
    http::Response::new(Zeros { left: count }.boxed())
}

fn full(text: String) -> Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed()
}

/// Half a body, then an error or nothing at all.
struct Broken {
    half: VecDeque<Bytes>,
    stalls: bool,
    /// Whether what came so far was given time to leave.
    rested: bool,
}

impl hyper::body::Body for Broken {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.half.pop_front() {
            Some(half) => Poll::Ready(Some(Ok(Frame::data(half)))),
            // Nobody wakes it again: the client must give up by itself.
            None if self.stalls => Poll::Pending,
            None if !self.rested => {
                // Without a rest the head would be dropped with the connection, unsent.
                self.rested = true;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            None => Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into()))),
        }
    }
}

/// Bytes that cost nothing to make.
struct Zeros {
    left: u64,
}

impl hyper::body::Body for Zeros {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        static CHUNK_OF_ZEROS: [u8; CHUNK] = [0; CHUNK];
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let count = self.left.min(CHUNK as u64);
        self.left -= count;
        let chunk = Bytes::from_static(&CHUNK_OF_ZEROS[..count as usize]);
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
