//! Bodies on their way through: never whole in memory, never standing still for ever.
//!
//! ```text
//!  client ─► TimedBody ─► PeekedBody ─► upstream    the beginning may decide about the lane
//!  upstream ─► TimedBody ─► PeekedBody ─► TimedBody ─► client    the beginning may say why
//! ```

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Sleep;

use crate::upload::ReplayBuffer;

/// Why a body broke off.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Any body.
pub(super) type Body = UnsyncBoxBody<Bytes, BoxError>;
/// What comes next of a body.
pub(super) type NextFrame = Option<Result<Frame<Bytes>, BoxError>>;

/// A body that fails when it stands still for too long.
pub(super) struct TimedBody<B> {
    inner: B,
    timeout: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    replay: Option<ReplayBuffer>,
    /// Dropped with the body: what it holds is held until then.
    _held: Option<Box<dyn Send>>,
}

impl<B> TimedBody<B> {
    pub(super) fn new(inner: B, timeout: Duration) -> Self {
        Self { inner, timeout, timer: None, replay: None, _held: None }
    }

    pub(super) fn kept_in(self, replay: Option<ReplayBuffer>) -> Self {
        Self { replay, ..self }
    }

    pub(super) fn holding(self, held: impl Send + 'static) -> Self {
        Self { _held: Some(Box::new(held)), ..self }
    }
}

impl<B> HttpBody for TimedBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NextFrame> {
        let this = &mut *self;
        match Pin::new(&mut this.inner).poll_frame(context) {
            Poll::Ready(frame) => {
                this.timer = None;
                if let (Some(replay), None | Some(Ok(_))) = (&this.replay, &frame) {
                    // Who knows the length does not ask for an end after it.
                    let is_last = this.inner.is_end_stream();
                    replay.keep(frame.as_ref().and_then(|frame| frame.as_ref().ok()), is_last);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => {
                // Only a body that makes us wait pays for a timer.
                let timeout = this.timeout;
                let start = || Box::pin(tokio::time::sleep(timeout));
                let timer = this.timer.get_or_insert_with(start);
                ready!(timer.as_mut().poll(context));
                Poll::Ready(Some(Err("the body stood still for too long".into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The beginning of a body, read before the rest is sent on, and then the rest.
pub(super) struct PeekedBody<B> {
    chunks: VecDeque<Frame<Bytes>>,
    bytes: u64,
    rest: Option<B>,
}

impl<B: HttpBody<Data = Bytes, Error = BoxError> + Unpin> PeekedBody<B> {
    /// Nothing but these chunks.
    pub(super) fn only(chunks: Vec<Bytes>) -> Self {
        let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        Self { chunks: chunks.into_iter().map(Frame::data).collect(), bytes, rest: None }
    }

    /// A body of which nothing was read yet.
    pub(super) fn before(rest: B) -> Self {
        Self { chunks: VecDeque::new(), bytes: 0, rest: Some(rest) }
    }

    /// These chunks, and then what was not yet taken out of another.
    pub(super) fn resumed(chunks: Vec<Bytes>, other: Self) -> Self {
        Self { rest: other.rest, ..Self::only(chunks) }
    }

    /// Reads up to about `bytes_max` bytes of `rest`.
    pub(super) async fn read(rest: B, bytes_max: usize) -> Result<Self, BoxError> {
        let mut peeked = Self::before(rest);
        peeked.fill(|bytes| bytes < bytes_max as u64).await?;
        Ok(peeked)
    }

    /// Reads on for as long as more is wanted than the so many bytes that are here.
    ///
    /// # Cancel safety
    ///
    /// What was read stays.
    pub(super) async fn fill(&mut self, wants: impl Fn(u64) -> bool) -> Result<(), BoxError> {
        while wants(self.bytes) {
            let Some(rest) = self.rest.as_mut() else { break };
            let frame = std::future::poll_fn(|context| Pin::new(&mut *rest).poll_frame(context));
            match frame.await.transpose()? {
                Some(frame) => {
                    self.bytes += frame.data_ref().map_or(0, |chunk| chunk.len() as u64);
                    self.chunks.push_back(frame);
                }
                None => self.rest = None,
            }
        }
        Ok(())
    }

    /// Reads to the end, and keeps nothing of it.
    pub(super) async fn discard(mut self) {
        self.chunks.clear();
        let Some(rest) = self.rest.as_mut() else { return };
        let mut next =
            async || std::future::poll_fn(|context| Pin::new(&mut *rest).poll_frame(context)).await;
        while let Some(Ok(_)) = next().await {}
    }

    /// All pieces, if nothing is left to be read.
    pub(super) fn whole(&self) -> Option<Vec<Bytes>> {
        let pieces = self.chunks.iter().filter_map(Frame::data_ref).cloned();
        self.rest.is_none().then(|| pieces.collect())
    }

    /// What was read, in one piece.
    pub(super) fn beginning(&self) -> Bytes {
        let mut chunks = self.chunks.iter().filter_map(Frame::data_ref);
        match (chunks.next(), chunks.next()) {
            (None, _) => Bytes::new(),
            // The usual case: one chunk is shared, not copied.
            (Some(only), None) => only.clone(),
            (Some(first), Some(second)) => {
                let all: Vec<&[u8]> =
                    [first, second].into_iter().chain(chunks).map(AsRef::as_ref).collect();
                all.concat().into()
            }
        }
    }
}

impl<B: HttpBody<Data = Bytes, Error = BoxError> + Unpin> HttpBody for PeekedBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NextFrame> {
        if let Some(frame) = self.chunks.pop_front() {
            self.bytes -= frame.data_ref().map_or(0, |chunk| chunk.len() as u64);
            return Poll::Ready(Some(Ok(frame)));
        }
        self.rest.as_mut().map_or(Poll::Ready(None), |rest| Pin::new(rest).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.chunks.is_empty() && self.rest.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.rest.as_ref().map_or(SizeHint::with_exact(0), HttpBody::size_hint);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(self.bytes));
        }
        hint.set_lower(hint.lower().saturating_add(self.bytes));
        hint
    }
}
