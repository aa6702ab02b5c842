//! What a request really took, read from the end of its answer's body as it goes by.
//!
//! Only where the profile says that a body tells it, and the head did not tell what is left. A body
//! that breaks off, or that nobody reads to its end, tells nothing: the estimate stands.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, SizeHint};
use tollway_upstream::profile::USAGE_BYTES_MAX;

use crate::body::{BoxError, NextFrame};

/// What is done with the last bytes of a body.
type Tell = Box<dyn FnOnce(&[u8]) + Send>;

/// A body whose last bytes are looked at when it ends.
pub(super) struct UsageBody<B> {
    inner: B,
    end: Vec<u8>,
    tell: Option<Tell>,
}

impl<B> UsageBody<B> {
    pub(super) fn new(inner: B, tell: impl FnOnce(&[u8]) + Send + 'static) -> Self {
        Self { inner, end: Vec::new(), tell: Some(Box::new(tell)) }
    }

    fn keep(&mut self, chunk: &[u8]) {
        let kept = &chunk[chunk.len().saturating_sub(USAGE_BYTES_MAX)..];
        let over = (self.end.len() + kept.len()).saturating_sub(USAGE_BYTES_MAX);
        self.end.drain(..over);
        self.end.extend_from_slice(kept);
    }
}

impl<B> HttpBody for UsageBody<B>
where
    B: HttpBody<Data = Bytes, Error = BoxError> + Unpin,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NextFrame> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(chunk) = frame.data_ref()
        {
            this.keep(chunk);
        }
        // Who knows the length does not ask for an end after it.
        let is_last = matches!(&polled, Poll::Ready(Some(Ok(_)))) && this.inner.is_end_stream();
        if let Some(tell) = this.tell.take_if(|_| is_last || matches!(polled, Poll::Ready(None))) {
            tell(&this.end);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
