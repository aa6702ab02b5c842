//! Bodies on their way through: never whole in memory, never standing still for ever.
//!
//! ```text
//!  client ─► TimedBody ─► [PeekedBody] ─► upstream        the beginning may decide about the lane
//!               └─ ReplayBuffer: the same chunks for another try, while they are few
//!  upstream ─► TimedBody ─► PeekedBody ─► TimedBody ─► client    the beginning may say why
//! ```

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

/// Why a body broke off.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Any body.
pub(super) type Body = UnsyncBoxBody<Bytes, BoxError>;
/// What comes next of a body.
type NextFrame = Option<Result<Frame<Bytes>, BoxError>>;

/// What went by of an upload, kept for another try as long as it is small.
#[derive(Clone, Debug)]
pub(super) struct ReplayBuffer(Arc<Mutex<ReplayState>>);

#[derive(Debug)]
struct ReplayState {
    chunks: Vec<Bytes>,
    bytes: usize,
    bytes_max: usize,
    /// More went by than is kept, or something that cannot be sent again.
    is_incomplete: bool,
    /// The end went by.
    is_ended: bool,
    /// When something went by last, for the timeout of the head.
    moved_at: Instant,
}

impl ReplayBuffer {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Mutex::new(ReplayState {
            chunks: Vec::new(),
            bytes: 0,
            bytes_max,
            is_incomplete: false,
            is_ended: false,
            moved_at: Instant::now(),
        })))
    }

    /// The whole body once more, if it went by and was small enough.
    pub(super) fn chunks(&self) -> Option<Vec<Bytes>> {
        let kept = self.lock();
        (kept.is_ended && !kept.is_incomplete).then(|| kept.chunks.clone())
    }

    pub(super) fn moved_at(&self) -> Instant {
        self.lock().moved_at
    }

    fn keep(&self, frame: Option<&Frame<Bytes>>, is_last: bool) {
        let mut kept = self.lock();
        kept.moved_at = Instant::now();
        kept.is_ended |= is_last || frame.is_none();
        let Some(frame) = frame.filter(|_| !kept.is_incomplete) else { return };
        match frame.data_ref() {
            Some(chunk) if kept.bytes + chunk.len() <= kept.bytes_max => {
                kept.bytes += chunk.len();
                kept.chunks.push(chunk.clone());
            }
            // Too much, or trailers: it cannot be sent again as it was.
            _ => {
                kept.is_incomplete = true;
                kept.chunks = Vec::new();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReplayState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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

    /// Reads up to about `bytes_max` bytes of `rest`.
    pub(super) async fn read(rest: B, bytes_max: usize) -> Result<Self, BoxError> {
        let mut peeked = Self { chunks: VecDeque::new(), bytes: 0, rest: Some(rest) };
        while peeked.bytes < bytes_max as u64 {
            let Some(rest) = peeked.rest.as_mut() else { break };
            let frame = std::future::poll_fn(|context| Pin::new(&mut *rest).poll_frame(context));
            match frame.await.transpose()? {
                Some(frame) => {
                    peeked.bytes += frame.data_ref().map_or(0, |chunk| chunk.len() as u64);
                    peeked.chunks.push_back(frame);
                }
                None => peeked.rest = None,
            }
        }
        Ok(peeked)
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
