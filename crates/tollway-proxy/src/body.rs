//! Bodies on their way through: never whole in memory, never standing still for ever.
//!
//! ```text
//!  client ─► Upload ─► upstream          upstream ─► Download ─► client
//!              └─ Tape: the chunks again, while they are few
//! ```

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

/// What went by of an upload, kept for another try as long as it is small.
#[derive(Clone, Debug)]
pub(super) struct Tape(Arc<Mutex<Recording>>);

#[derive(Debug)]
struct Recording {
    chunks: Vec<Bytes>,
    bytes: usize,
    bytes_max: usize,
    /// More went by than is kept, or something that cannot be sent again.
    is_torn: bool,
    /// The end went by.
    is_ended: bool,
    /// When something went by last, for the timeout of the head.
    moved_at: Instant,
}

impl Tape {
    pub(super) fn new(bytes_max: usize) -> Self {
        let moved_at = Instant::now();
        let chunks = Vec::new();
        Self(Arc::new(Mutex::new(Recording {
            chunks,
            bytes: 0,
            bytes_max,
            is_torn: false,
            is_ended: false,
            moved_at,
        })))
    }

    /// The whole body once more, if it went by and was small enough.
    pub(super) fn replay(&self) -> Option<Vec<Bytes>> {
        let recording = self.lock();
        let is_whole = recording.is_ended && !recording.is_torn;
        is_whole.then(|| recording.chunks.clone())
    }

    pub(super) fn moved_at(&self) -> Instant {
        self.lock().moved_at
    }

    fn record(&self, frame: Option<&Frame<Bytes>>, is_last: bool) {
        let mut recording = self.lock();
        recording.moved_at = Instant::now();
        recording.is_ended |= is_last || frame.is_none();
        let Some(frame) = frame.filter(|_| !recording.is_torn) else { return };
        match frame.data_ref() {
            Some(chunk) if recording.bytes + chunk.len() <= recording.bytes_max => {
                recording.bytes += chunk.len();
                recording.chunks.push(chunk.clone());
            }
            // Too much, or trailers: it cannot be sent again as it was.
            _ => {
                recording.is_torn = true;
                recording.chunks = Vec::new();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body that fails when it stands still for too long.
pub(super) struct Timed<B> {
    inner: B,
    timeout: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    tape: Option<Tape>,
    /// Dropped with the body: what it holds is held until then.
    _held: Option<Box<dyn Send>>,
}

impl<B> Timed<B> {
    pub(super) fn new(inner: B, timeout: Duration) -> Self {
        Self { inner, timeout, timer: None, tape: None, _held: None }
    }

    pub(super) fn recorded(self, tape: Tape) -> Self {
        Self { tape: Some(tape), ..self }
    }

    pub(super) fn holding(self, held: impl Send + 'static) -> Self {
        Self { _held: Some(Box::new(held)), ..self }
    }
}

impl<B> HttpBody for Timed<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.inner).poll_frame(context) {
            Poll::Ready(frame) => {
                this.timer = None;
                if let (Some(tape), None | Some(Ok(_))) = (&this.tape, &frame) {
                    // Who knows the length does not ask for an end after it.
                    let is_last = this.inner.is_end_stream();
                    tape.record(frame.as_ref().and_then(|frame| frame.as_ref().ok()), is_last);
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

/// Chunks that were read ahead, then the rest.
pub(super) struct Ahead<B> {
    chunks: std::collections::VecDeque<Frame<Bytes>>,
    bytes: u64,
    rest: Option<B>,
}

impl<B> Ahead<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    /// Nothing but these chunks.
    pub(super) fn only(chunks: Vec<Bytes>) -> Self {
        let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        Self { chunks: chunks.into_iter().map(Frame::data).collect(), bytes, rest: None }
    }

    /// Reads up to about `bytes_max` bytes of `rest` ahead.
    pub(super) async fn read(rest: B, bytes_max: usize) -> Result<Self, B::Error> {
        let mut ahead = Self { chunks: Default::default(), bytes: 0, rest: Some(rest) };
        while ahead.bytes < bytes_max as u64 {
            let Some(rest) = ahead.rest.as_mut() else { break };
            let frame = std::future::poll_fn(|context| Pin::new(&mut *rest).poll_frame(context));
            match frame.await.transpose()? {
                Some(frame) => {
                    ahead.bytes += frame.data_ref().map_or(0, |chunk| chunk.len() as u64);
                    ahead.chunks.push_back(frame);
                }
                None => ahead.rest = None,
            }
        }
        Ok(ahead)
    }

    /// What was read ahead, in one piece.
    pub(super) fn beginning(&self) -> Bytes {
        let mut chunks = self.chunks.iter().filter_map(Frame::data_ref);
        match (chunks.next(), chunks.next()) {
            (None, _) => Bytes::new(),
            (Some(only), None) => only.clone(),
            (Some(first), Some(second)) => {
                let mut joined = Vec::with_capacity(self.bytes as usize);
                for chunk in [first, second].into_iter().chain(chunks) {
                    joined.extend_from_slice(chunk);
                }
                joined.into()
            }
        }
    }
}

impl<B> HttpBody for Ahead<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(frame) = self.chunks.pop_front() {
            self.bytes -= frame.data_ref().map_or(0, |chunk| chunk.len() as u64);
            return Poll::Ready(Some(Ok(frame)));
        }
        match &mut self.rest {
            Some(rest) => {
                let frame = ready!(Pin::new(rest).poll_frame(context));
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            None => Poll::Ready(None),
        }
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
