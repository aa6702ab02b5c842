//! One unary call: a frame in, a frame and a status out.
//!
//! ```text
//!   | 0 | length, 4 bytes big-endian | message |        flag 1 would mean compressed: refused
//! ```

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, HeaderName, Response};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use prost::Message;
use tollway_core::ErrorKind;
use tonic::{Code, Status};

use crate::http2::{Holder, Unread};
use crate::rls::Refusal;
use crate::worker::Worker;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const OK: HeaderValue = HeaderValue::from_static("0");
const PREFIX_BYTES: usize = 5;

/// The body of an answer: at most one frame of data, then the trailers.
#[derive(Debug, Default)]
pub(super) struct UnaryBody {
    data: Option<Bytes>,
    is_trailed: bool,
}

impl UnaryBody {
    /// How many bytes it has.
    pub(super) fn len(&self) -> usize {
        self.data.as_ref().map_or(0, Bytes::len)
    }

    /// The same body, whose bytes are held until they are sent; `None` if there is no room.
    pub(super) fn kept(self, holder: &Holder) -> Option<Self> {
        let data = match self.data {
            Some(data) => Some(holder.keep(data)?),
            None => None,
        };
        Some(Self { data, ..self })
    }
}

impl Body for UnaryBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(data) = self.data.take() {
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if !self.is_trailed {
            return Poll::Ready(None);
        }
        self.is_trailed = false;
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(GRPC_STATUS, OK);
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none() && !self.is_trailed
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Reads the message of a call.
pub(super) async fn receive<M: Message + Default>(
    worker: &Worker,
    body: &mut Incoming,
    holder: &Holder,
) -> Result<M, Status> {
    let bytes = holder.collect(body, &worker.service.settings().limits).await;
    decode(&bytes?)
}

impl From<Unread> for Status {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::TooLong => Self::new(Code::ResourceExhausted, "the message is too long"),
            Unread::Full => {
                Self::new(Code::ResourceExhausted, "too much is held for unfinished requests")
            }
            Unread::Slow => Self::new(Code::DeadlineExceeded, "the request took too long"),
            Unread::Broken(why) => Self::new(Code::InvalidArgument, why),
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(text) => Self::new(Code::InvalidArgument, text),
            // The service and its store do not fit together.
            Refusal::Store(error) if error.kind() == ErrorKind::Misuse => {
                Self::new(Code::Internal, error.to_string())
            }
            // The proxy's failure mode decides.
            Refusal::Store(error) => Self::new(Code::Unavailable, error.to_string()),
        }
    }
}

/// Reads the one frame that a unary request is.
pub(super) fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, Status> {
    let broken = |text: &str| Status::new(Code::InvalidArgument, text);
    let Some((&[flag, a, b, c, d], message)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(broken("the frame has no prefix"));
    };
    if flag != 0 {
        return Err(Status::new(Code::Unimplemented, "compressed messages are not read"));
    }
    if u32::from_be_bytes([a, b, c, d]) as usize != message.len() {
        return Err(broken("the frame does not have the length that it states"));
    }
    M::decode(message).map_err(|error| broken(&error.to_string()))
}

/// The answer to a call.
pub(super) fn respond<M: Message>(outcome: Result<M, Status>) -> Response<UnaryBody> {
    let message = match outcome {
        Ok(message) => message,
        Err(status) => return status.into_http(),
    };
    let length = message.encoded_len();
    let mut data = BytesMut::with_capacity(PREFIX_BYTES + length);
    data.put_u8(0);
    data.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer grows as needed: encoding into it cannot fail.
    let _ = message.encode(&mut data);
    let mut response = Response::new(UnaryBody { data: Some(data.freeze()), is_trailed: true });
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

#[cfg(test)]
mod tests {
    use super::super::messages::UInt64Value;
    use super::*;

    #[test]
    fn a_frame_must_be_whole_and_plain() {
        let decoded = |bytes: &[u8]| decode::<UInt64Value>(bytes).map_err(|status| status.code());
        assert_eq!(decoded(&[0, 0, 0, 0, 2, 8, 7]), Ok(UInt64Value { value: 7 }));
        assert_eq!(decoded(&[0, 0, 0, 0, 0]), Ok(UInt64Value { value: 0 }));
        assert_eq!(decoded(&[]), Err(Code::InvalidArgument));
        assert_eq!(decoded(&[0, 0, 0, 0, 9, 8, 7]), Err(Code::InvalidArgument));
        assert_eq!(decoded(&[0, 0, 0, 0, 2, 255, 255]), Err(Code::InvalidArgument));
        assert_eq!(decoded(&[1, 0, 0, 0, 2, 8, 7]), Err(Code::Unimplemented));
    }

    #[test]
    fn messages_are_percent_encoded() {
        let status = Status::new(Code::Unavailable, "50 % off\né");
        let response = respond::<UInt64Value>(Err(status));
        assert_eq!(response.headers()["grpc-status"], "14");
        assert_eq!(response.headers()["grpc-message"], "50%20%25%20off%0A%C3%A9");
    }
}
