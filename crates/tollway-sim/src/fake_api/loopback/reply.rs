//! Answers of the loopback server as HTTP messages, whole or broken off.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::{Frame, Incoming, SizeHint};
use serde::Serialize;
use tokio::time::Sleep;

use super::Delivery;
use crate::fake_api::{Ending, Piece, Response};

pub(super) type Body = BoxBody<Bytes, io::Error>;

/// How much of a big body is handed over at once.
const CHUNK: usize = 64 << 10;

/// The answer with its ending. What becomes of it is told to `delivery`.
pub(super) fn of(response: Response, delivery: Delivery) -> http::Response<Body> {
    let Response { status, fields, body, ending, every, .. } = response;
    let mut built = http::Response::builder().status(status);
    for (name, value) in fields {
        built = built.header(name, value);
    }
    if ending == Ending::Whole && response.pieces.is_empty() {
        delivery.sent(response.tokens);
        delivery.done();
        return built.body(full(body)).unwrap_or_else(|error| text(500, &error.to_string()));
    }
    if response.pieces.is_empty() {
        built = built.header(CONTENT_LENGTH, body.len());
    }
    let until = if ending == Ending::Whole { body.len() } else { body.len() / 2 };
    let parts = parts(&body, &response.pieces, until);
    let delivery = Some(delivery);
    let paced = PacedBody { parts, every, timer: None, ending, rested: false, delivery };
    built.body(paced.boxed()).unwrap_or_else(|error| text(500, &error.to_string()))
}

/// The first `until` bytes of a body in its pieces, with the tokens of each. The cut may be
/// anywhere.
fn parts(body: &str, pieces: &[Piece], until: usize) -> VecDeque<(Bytes, u64)> {
    let mut ends: Vec<(usize, u64)> = pieces
        .iter()
        .map(|piece| (piece.end, piece.tokens))
        .filter(|(end, _)| *end <= until)
        .collect();
    if ends.last().is_none_or(|(end, _)| *end < until) {
        ends.push((until, 0));
    }
    let mut start = 0;
    let part = |(end, tokens)| {
        let part = Bytes::copy_from_slice(&body.as_bytes()[start..end]);
        start = end;
        (part, tokens)
    };
    ends.into_iter().map(part).collect()
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

/// A body in parts with pauses between them; then its end, an error or nothing at all.
struct PacedBody {
    parts: VecDeque<(Bytes, u64)>,
    every: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    ending: Ending,
    /// Whether what came so far was given time to leave.
    rested: bool,
    delivery: Option<Delivery>,
}

impl PacedBody {
    fn end(&mut self) {
        if let Some(delivery) = self.delivery.take() {
            delivery.done();
        }
    }
}

impl hyper::body::Body for PacedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if !self.every.is_zero() && !self.parts.is_empty() {
            let every = self.every;
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(every)));
            ready!(timer.as_mut().poll(context));
            self.timer = None;
        }
        match self.parts.pop_front() {
            Some((part, tokens)) => {
                if let Some(delivery) = &self.delivery {
                    delivery.sent(tokens);
                }
                Poll::Ready(Some(Ok(Frame::data(part))))
            }
            None if self.ending == Ending::Whole => {
                self.end();
                Poll::Ready(None)
            }
            // Nobody wakes it again: the client must give up by itself.
            None if self.ending == Ending::StallBody => Poll::Pending,
            None if !self.rested => {
                // Without a rest the head would be dropped with the connection, unsent.
                self.rested = true;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            None => {
                self.end();
                Poll::Ready(Some(Err(io::ErrorKind::ConnectionReset.into())))
            }
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
