//! The body of a request on its way to the upstream, perhaps more than once.
//!
//! ```text
//!  client ─► TimedBody ─► PeekedBody ─► LentBody ─► upstream
//!               │                          └─ dropped before its end: back home
//!               └─ ReplayBuffer: what went by, while it is little
//! ```
//!
//! **Sent again** is what was not sent at all (no connection was made), or what went by and was
//! kept, with the rest after it. What is too large to be kept goes by once.
//!
//! **What nobody wants** is read and thrown away for a while: an upstream may answer before the
//! upload is over, and a client that reads its answer only after it has sent everything would
//! otherwise see a broken connection in place of the answer.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tollway_http::RoomGuard;

use crate::body::{BoxError, NextFrame, PeekedBody, TimedBody};

/// How long the rest of an upload is thrown away after its answer.
const DISCARD_FOR: Duration = Duration::from_secs(30);
/// Uploads that are thrown away at once; the connections of further ones are closed.
pub(super) const DISCARDS_MAX: usize = 256;

/// What comes from the client, its beginning perhaps read already.
type Source = PeekedBody<TimedBody<Incoming>>;

/// The body of a request.
#[derive(Debug)]
pub(super) struct Upload(Arc<Home>);

/// Where a body comes back to that was lent for sending.
struct Home {
    replay: ReplayBuffer,
    rest: Mutex<Option<Rest>>,
    /// When something of it was taken last, for the timeout of the head.
    moved_at: Mutex<Instant>,
    /// The client sends its body only when it is asked for.
    is_on_demand: bool,
    discards: Arc<Semaphore>,
}

/// What is left of a body.
struct Rest {
    source: Source,
    /// Some of it was taken: what went by must come before it.
    is_begun: bool,
}

/// A body that is being sent. Dropped before its end, it comes back.
pub(super) struct LentBody {
    rest: Option<Rest>,
    home: Arc<Home>,
}

impl Upload {
    pub(super) fn new(
        body: Incoming,
        idle_timeout: Duration,
        replay: ReplayBuffer,
        is_on_demand: bool,
        discards: &Arc<Semaphore>,
    ) -> Self {
        let is_bare = body.is_end_stream();
        if is_bare {
            replay.keep(None, true);
        } else if body.size_hint().lower() > replay.bytes_max() {
            replay.forget();
        }
        let timed = TimedBody::new(body, idle_timeout).kept_in(Some(replay.clone()));
        let source = if is_bare { Source::only(Vec::new()) } else { Source::before(timed) };
        Self(Arc::new(Home {
            replay,
            rest: Mutex::new(Some(Rest { source, is_begun: false })),
            moved_at: Mutex::new(Instant::now()),
            is_on_demand,
            discards: Arc::clone(discards),
        }))
    }

    /// The body to send now; none if some of it is gone and was not kept.
    pub(super) fn lend(&self) -> Option<LentBody> {
        let source = match lock(&self.0.rest).take() {
            Some(rest) if !rest.is_begun => rest.source,
            rest => {
                let (chunks, is_ended) = self.0.replay.chunks()?;
                match (is_ended, rest) {
                    (true, _) => Source::only(chunks),
                    (false, rest) => Source::resumed(chunks, rest?.source),
                }
            }
        };
        let rest = Some(Rest { source, is_begun: false });
        Some(LentBody { rest, home: Arc::clone(&self.0) })
    }

    pub(super) fn moved_at(&self) -> Instant {
        *lock(&self.0.moved_at)
    }

    /// Gives up what is kept for another try: there will be none.
    pub(super) fn forget(&self) {
        self.0.replay.forget();
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.forget();
    }
}

impl LentBody {
    /// Reads the beginning, up to about `bytes_max` bytes.
    pub(super) async fn peek(&mut self, bytes_max: usize) -> Result<Bytes, BoxError> {
        let Some(rest) = self.rest.as_mut() else { return Ok(Bytes::new()) };
        rest.source.fill(|bytes| bytes < bytes_max as u64).await?;
        Ok(rest.source.beginning())
    }

    /// Reads all of it, if it is no more than `bytes_max`; none if it is more.
    pub(super) async fn peek_whole(
        &mut self,
        bytes_max: u64,
    ) -> Result<Option<Vec<Bytes>>, BoxError> {
        let Some(rest) = self.rest.as_mut() else { return Ok(Some(Vec::new())) };
        rest.source.fill(|bytes| bytes <= bytes_max).await?;
        Ok(rest.source.whole())
    }

    /// Reads all of it that can be kept, so that a client that leaves meanwhile is noticed: what
    /// is not read hides the end of the connection behind it.
    ///
    /// # Cancel safety
    ///
    /// What was read stays in the body.
    pub(super) async fn read_ahead(&mut self) -> Result<(), BoxError> {
        let (Some(rest), false) = (self.rest.as_mut(), self.home.is_on_demand) else {
            return Ok(());
        };
        let replay = &self.home.replay;
        rest.source.fill(|_| replay.is_keeping()).await
    }
}

impl HttpBody for LentBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<NextFrame> {
        let this = &mut *self;
        let Some(rest) = this.rest.as_mut() else { return Poll::Ready(None) };
        rest.is_begun = true;
        let polled = Pin::new(&mut rest.source).poll_frame(context);
        if polled.is_ready() {
            *lock(&this.home.moved_at) = Instant::now();
        }
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            this.rest = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.as_ref().is_none_or(|rest| rest.source.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.rest.as_ref().map_or(SizeHint::with_exact(0), |rest| rest.source.size_hint())
    }
}

impl Drop for LentBody {
    fn drop(&mut self) {
        // One that is at its end may be wanted once more where it was never sent.
        let rest = self.rest.take().filter(|rest| !rest.is_begun || !rest.source.is_end_stream());
        if rest.is_some() {
            *lock(&self.home.rest) = rest;
        }
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let rest = self.rest.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // A client that is to be asked for its body is not asked in vain.
        let Some(rest) = rest.filter(|rest| rest.is_begun || !self.is_on_demand) else { return };
        let place = Arc::clone(&self.discards).try_acquire_owned();
        let (Ok(place), Ok(runtime)) = (place, tokio::runtime::Handle::try_current()) else {
            return;
        };
        if rest.source.is_end_stream() {
            return;
        }
        runtime.spawn(async move {
            let _ = tokio::time::timeout(DISCARD_FOR, rest.source.discard()).await;
            drop(place);
        });
    }
}

/// What went by of an upload, kept for another try as long as it is little.
#[derive(Clone)]
pub(super) struct ReplayBuffer(Arc<Mutex<Kept>>);

struct Kept {
    chunks: Vec<Bytes>,
    bytes: usize,
    bytes_max: usize,
    /// Where the bytes are counted, over all requests.
    place: Option<Arc<RoomGuard>>,
    /// More went by than is kept, or something that cannot be sent again.
    is_incomplete: bool,
    /// The end went by.
    is_ended: bool,
}

impl ReplayBuffer {
    /// Keeps up to so many bytes as long as there is room for them in `place`.
    pub(super) fn new(bytes_max: usize, place: Arc<RoomGuard>) -> Self {
        Self(Arc::new(Mutex::new(Kept {
            chunks: Vec::new(),
            bytes: 0,
            bytes_max,
            place: Some(place),
            is_incomplete: false,
            is_ended: false,
        })))
    }

    /// Takes note of what goes by; none is the end.
    pub(super) fn keep(&self, frame: Option<&Frame<Bytes>>, is_last: bool) {
        let mut kept = lock(&self.0);
        kept.is_ended |= is_last || frame.is_none();
        let Some(frame) = frame.filter(|_| !kept.is_incomplete) else { return };
        let chunk = frame.data_ref().filter(|chunk| kept.bytes + chunk.len() <= kept.bytes_max);
        match chunk {
            Some(chunk) if kept.has_room(chunk.len()) => {
                kept.bytes += chunk.len();
                kept.chunks.push(chunk.clone());
            }
            // Too much, or trailers: it cannot be sent again as it was. What was read ahead is
            // still here, so its room is given back only with the request.
            _ => {
                kept.is_incomplete = true;
                kept.chunks = Vec::new();
            }
        }
    }

    /// Keeps nothing of this upload, and gives back its room.
    pub(super) fn forget(&self) {
        let mut kept = lock(&self.0);
        kept.is_incomplete = true;
        kept.chunks = Vec::new();
        if let Some(place) = kept.place.take() {
            place.shrink(std::mem::take(&mut kept.bytes) as u64);
        }
    }

    fn bytes_max(&self) -> u64 {
        lock(&self.0).bytes_max as u64
    }

    fn is_keeping(&self) -> bool {
        !lock(&self.0).is_incomplete
    }

    /// All that went by, and whether that was the whole body; none if not all was kept.
    fn chunks(&self) -> Option<(Vec<Bytes>, bool)> {
        let kept = lock(&self.0);
        (!kept.is_incomplete).then(|| (kept.chunks.clone(), kept.is_ended))
    }
}

impl Kept {
    fn has_room(&self, more: usize) -> bool {
        self.place.as_ref().is_some_and(|place| place.extend(more as u64))
    }
}

impl std::fmt::Debug for Home {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upload").field("is_on_demand", &self.is_on_demand).finish_non_exhaustive()
    }
}

/// A task that panicked while it held one of these left a whole value.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
