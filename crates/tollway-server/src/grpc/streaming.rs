//! Messages of a call that streams both ways: frames in, frames and a status out.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use hyper::body::{Body, Frame};
use prost::Message;
use tokio::sync::mpsc::Receiver;
use tonic::Status;

use super::unary::decode;
use crate::http2::{Held, Holder, Unread};

/// The longest message of a client.
pub(super) const MESSAGE_BYTES_MAX: usize = 4 << 20;
const PREFIX_BYTES: usize = 5;

/// What the client reads: messages, then a status.
pub(super) struct StreamBody {
    /// The messages; an error is the status.
    pub(super) messages: Receiver<Result<Bytes, Status>>,
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.messages.poll_recv(context).map(|message| {
            let frame = match message? {
                Ok(bytes) => Frame::data(bytes),
                Err(status) => {
                    let mut trailers = HeaderMap::new();
                    // Fails only for a text that is no header field's: then the code stands alone.
                    let _ = status.add_header(&mut trailers);
                    Frame::trailers(trailers)
                }
            };
            Some(Ok(frame))
        })
    }
}

/// A message with its prefix.
pub(super) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut data = BytesMut::with_capacity(PREFIX_BYTES + length);
    data.put_u8(0);
    data.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer grows as needed: encoding into it cannot fail.
    let _ = message.encode(&mut data);
    data.freeze()
}

/// What has come of messages that are not whole.
#[derive(Default)]
pub(super) struct UnreadMessages {
    bytes: BytesMut,
    held: Option<Held>,
}

impl UnreadMessages {
    /// Takes what has come.
    pub(super) fn add(&mut self, data: &[u8], holder: &Holder) -> Result<(), Status> {
        let len = self.bytes.len() + data.len();
        if len > MESSAGE_BYTES_MAX + PREFIX_BYTES {
            return Err(Unread::TooLong.into());
        }
        // Taken anew: the old place is given back when the new one is had.
        self.held = Some(holder.hold(len).ok_or(Status::from(Unread::Full))?);
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// The next whole message.
    pub(super) fn next<M: Message + Default>(&mut self) -> Result<Option<M>, Status> {
        let Some(&[_, a, b, c, d]) = self.bytes.first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > MESSAGE_BYTES_MAX {
            return Err(Unread::TooLong.into());
        }
        if self.bytes.len() < PREFIX_BYTES + len {
            return Ok(None);
        }
        let message = decode(&self.bytes.split_to(PREFIX_BYTES + len))?;
        if self.bytes.is_empty() {
            (self.bytes, self.held) = (BytesMut::new(), None);
        }
        Ok(Some(message))
    }
}
