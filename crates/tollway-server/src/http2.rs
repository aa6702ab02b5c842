//! One HTTP/2 connection, whatever is asked over it: its bounds, and clients that misuse them.
//!
//! | what | bound | beyond it |
//! |---|---|---|
//! | requests under way | the front's | refused by HTTP/2 itself |
//! | bytes of unfinished requests and of answers | of this connection, of all | that request is refused |
//! | time to the first request | `first_request` | the connection is closed |
//! | time in which nothing of an answer is taken | `slow_client` | the connection is closed |
//! | age, if it has a bound | `grpc_age` | its client is told to leave; closed after a grace |
//!
//! Pings prove that a client lives, not that it reads; so answers are watched one by one.

use std::collections::hash_map::RandomState;
use std::convert::Infallible;
use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};
use tollway_http::{Answers, FirstRequest, Room, RoomGuard, WriteTimeout};

use crate::drain::Stop;
use crate::front::Front;
use crate::settings::Limits;
use crate::worker::Worker;

/// What a client may send before it is read: of one request, and of all on the connection.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// How long a client that was answered early may go on sending.
const PARTING: Duration = Duration::from_secs(1);
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;

/// How a connection is served.
pub(crate) struct Options {
    /// What it is counted as.
    pub front: Front,
    /// Requests under way at once.
    pub streams_max: u32,
    /// When the first request must be there.
    pub first_by: Instant,
    /// How long the connection lives, if that has an end.
    pub age: Option<Age>,
}

/// Passes what is written to a type on to the stream that it has: only the type's reading differs.
macro_rules! pass_writes {
    ($type:ident, $this:ident => $stream:expr) => {
        impl<S: AsyncWrite + Unpin> AsyncWrite for $type<S> {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                let $this = self.get_mut();
                Pin::new(&mut $stream).poll_write(context, bytes)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                slices: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                let $this = self.get_mut();
                Pin::new(&mut $stream).poll_write_vectored(context, slices)
            }

            fn is_write_vectored(&self) -> bool {
                let $this = self;
                $stream.is_write_vectored()
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                let $this = self.get_mut();
                Pin::new(&mut $stream).poll_flush(context)
            }

            fn poll_shutdown(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<io::Result<()>> {
                let $this = self.get_mut();
                Pin::new(&mut $stream).poll_shutdown(context)
            }
        }
    };
}
pub(crate) use pass_writes;

/// What the requests of one connection hold.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    own: Arc<Room>,
    all: Arc<Room>,
}

/// What one request holds, given back when dropped.
#[derive(Debug)]
pub(crate) struct Held {
    own: RoomGuard,
    all: RoomGuard,
}

struct HeldBytes {
    bytes: Bytes,
    _held: Held,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Why a body could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// It is longer than bodies may be.
    TooLong,
    /// Unfinished requests hold too much already.
    Full,
    /// It took too long.
    Slow,
    /// The client broke off.
    Broken(String),
}

impl Holder {
    /// For a connection that holds nothing yet.
    pub(crate) fn new(worker: &Worker) -> Self {
        let bytes_max = worker.service.settings().limits.connection_bytes_max() as u64;
        let own = Arc::new(Room::new(usize::MAX, bytes_max));
        Self { own, all: Arc::clone(worker.service.room()) }
    }

    /// Room for `bytes`, given back when dropped, if there is any.
    pub(crate) fn hold(&self, bytes: usize) -> Option<Held> {
        let (own, all) = (self.own.enter(bytes as u64)?, self.all.enter(bytes as u64)?);
        Some(Held { own, all })
    }

    /// The bytes of an answer with their place, which is given back when the last of them is sent:
    /// a client that stops reading has what it asked for held. `None` if there is no room.
    pub(crate) fn keep(&self, bytes: Bytes) -> Option<Bytes> {
        let held = self.hold(bytes.len())?;
        Some(Bytes::from_owner(HeldBytes { bytes, _held: held }))
    }

    /// Reads a body to its end. What arrives at once is not held; what must be waited for is.
    pub(crate) async fn collect(
        &self,
        body: &mut Incoming,
        limits: &Limits,
    ) -> Result<Bytes, Unread> {
        let collected = timeout(limits.slow_client_after, self.gather(body, limits.body_bytes_max));
        collected.await.unwrap_or(Err(Unread::Slow))
    }

    async fn gather(&self, body: &mut Incoming, bytes_max: usize) -> Result<Bytes, Unread> {
        let mut whole = Bytes::new();
        let mut parts = BytesMut::new();
        let mut held = None::<Held>;
        if body.size_hint().lower() > bytes_max as u64 {
            return Err(Unread::TooLong);
        }
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Unread::Broken(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if whole.len() + parts.len() + data.len() > bytes_max {
                return Err(Unread::TooLong);
            }
            if whole.is_empty() && parts.is_empty() && body.is_end_stream() {
                return Ok(data);
            }
            match &held {
                Some(held) if held.extend(data.len()) => {}
                Some(_) => return Err(Unread::Full),
                None => held = Some(self.hold(data.len()).ok_or(Unread::Full)?),
            }
            if whole.is_empty() && parts.is_empty() {
                whole = data;
                continue;
            }
            parts.extend_from_slice(&std::mem::take(&mut whole));
            parts.extend_from_slice(&data);
        }
        Ok(if parts.is_empty() { whole } else { parts.freeze() })
    }
}

/// An answer, and what is left of its request. That is kept until the answer is sent: a request
/// that is dropped before is cancelled, and its client never learns why it was refused.
pub(crate) struct Answered<B> {
    pub response: Response<B>,
    pub request: Option<Incoming>,
}

/// The body of an answer, and what is given back when it is over: the place of one that goes on for
/// as long as its client likes, or what is left of its request.
pub(crate) struct Keeping<B, K> {
    pub body: B,
    pub _kept: K,
}

impl<B: Body + Unpin, K: Unpin> Body for Keeping<B, K> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Held {
    fn extend(&self, bytes: usize) -> bool {
        self.own.extend(bytes as u64) && self.all.extend(bytes as u64)
    }
}

/// Serves a client until it leaves, misbehaves, or the service stops; `respond` answers requests.
pub(crate) async fn serve<S, R, F, B>(
    worker: &Rc<Worker>,
    stream: S,
    options: Options,
    mut stop: Stop,
    respond: R,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    R: Fn(Request<Incoming>, Holder) -> F,
    F: Future<Output = Answered<B>> + 'static,
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let patience = worker.service.settings().limits.slow_client_after;
    let (answers, first, holder) =
        (Answers::default(), FirstRequest::default(), Holder::new(worker));
    let service = service_fn(|request| {
        first.is_there();
        let (answer, answers) = (respond(request, holder.clone()), answers.clone());
        async move {
            let Answered { response, mut request } = answer.await;
            if let Some(request) = &mut request {
                discard(request).await;
            }
            let watched = |body| answers.watch(Keeping { body, _kept: request });
            Ok::<_, Infallible>(response.map(watched))
        }
    });
    let mut builder = http2::Builder::new(LocalExecutor);
    builder.timer(TokioTimer::new()).max_concurrent_streams(options.streams_max);
    builder.keep_alive_interval(patience).keep_alive_timeout(patience);
    builder.max_header_list_size(HEADER_LIST_BYTES_MAX);
    builder.initial_stream_window_size(STREAM_WINDOW_BYTES);
    builder.initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let stream = TokioIo::new(WriteTimeout::new(stream, patience));
    let mut connection = pin!(builder.serve_connection(stream, service));
    let mut given_up = pin!(async {
        tokio::select! {
            () = first.is_missing_at(options.first_by) => {}
            () = answers.stalled(patience) => {}
        }
        worker.service.metrics().front(options.front).timed_out.add(1);
    });
    let mut grace = None;
    tokio::select! {
        served = connection.as_mut() => return served.map_err(io::Error::other),
        () = given_up.as_mut() => return Ok(()),
        () = stop.stopped() => connection.as_mut().graceful_shutdown(),
        () = lasting(options.age.map(Age::with_jitter)) => {
            grace = options.age.map(|age| age.grace);
            connection.as_mut().graceful_shutdown();
        }
    }
    tokio::select! {
        served = connection => served.map_err(io::Error::other),
        () = given_up => Ok(()),
        () = lasting(grace) => Ok(()),
    }
}

/// How long a connection lives: its client connects anew then, and meets the nodes that there are
/// by that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// When its client is told to leave; a tenth more or less, so that those who came together do
    /// not come back together.
    pub most: Duration,
    /// How long calls under way may go on after that.
    pub grace: Duration,
}

impl Age {
    fn with_jitter(self) -> Duration {
        // The keys of a map's hasher are random, one set for each.
        let chance = RandomState::new().build_hasher().finish() % 201;
        self.most.saturating_mul(900 + chance as u32) / 1_000
    }
}

/// Waits so long; for ever without a time.
async fn lasting(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// Reads what little may be left of a request and keeps nothing of it: some clients take an answer
/// that comes before they have sent everything for an error.
pub(crate) async fn discard(request: &mut Incoming) {
    if request.is_end_stream() {
        return;
    }
    let rest = async {
        let mut bytes = 0;
        while bytes <= STREAM_WINDOW_BYTES as usize {
            let Some(Ok(frame)) = request.frame().await else { break };
            bytes += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // Whether the client goes on sending is its own affair.
    let _ = timeout(PARTING, rest).await;
}

/// Runs hyper's own tasks on the thread of the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalExecutor;

impl<F> hyper::rt::Executor<F> for LocalExecutor
where
    F: Future + 'static,
{
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}
