//! Connections of clients that may not stop reading: what is sent to them is taken in time.
//!
//! A body is not asked for more while its client reads nothing, so no timer of the body's runs out:
//! without this, whoever asks and never reads would keep what was answered for ever.
//! [`WriteTimeout`] sees a client that takes no bytes at all; [`Answers`] one that takes all but
//! those of a stream of HTTP/2, whose window it keeps shut, and answers pings meanwhile. Either
//! costs the whole connection: a stream that is not asked for more cannot be told to end.
//!
//! An answer notes the tick at which its client last took some of it; ticks are counted only while
//! answers are on their way, so an idle connection wakes nobody, and nothing reads a clock per
//! answer.
//!
//! ```text
//!   tick    0         1         2         3        each half a timeout apart
//!           |---------|---------|---------|
//!              ^ taken here                ^ given up: at least one timeout later, at most 1.5
//! ```

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Sleep;

/// A connection that fails when the client takes nothing for too long.
#[derive(Debug)]
pub struct WriteTimeout<S> {
    stream: S,
    timeout: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    /// A connection whose client must take something within every `timeout`.
    pub const fn new(stream: S, timeout: Duration) -> Self {
        Self { stream, timeout, stalled: None }
    }

    /// What became of an attempt to write, or an error once attempts have failed for too long.
    fn in_time<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let timeout = self.timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.in_time(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS holds records back until the socket takes them.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.in_time(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The answers on their way over one connection.
#[derive(Clone, Debug, Default)]
pub struct Answers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    on_their_way: Mutex<OnTheirWay>,
    /// Wakes whoever counts ticks.
    begun: Notify,
    tick: AtomicU32,
}

#[derive(Debug, Default)]
struct OnTheirWay {
    offers: Vec<Weak<Offer>>,
    /// Whether somebody counts ticks.
    is_counted: bool,
}

/// The tick since which an answer waits for its client.
#[derive(Debug)]
struct Offer {
    since: AtomicU32,
    shared: Arc<Shared>,
}

/// Instead of a tick: the answer waits for whoever makes it.
const NOT_YET: u32 = u32::MAX;
/// Ticks after which at least a whole timeout has passed.
const TICKS_MAX: u32 = 3;

impl Answers {
    /// The body of an answer, watched until the last of it is sent.
    pub fn watch<B>(&self, body: B) -> Watched<B> {
        let since = AtomicU32::new(self.0.tick.load(Ordering::Relaxed));
        let offer = Arc::new(Offer { since, shared: Arc::clone(&self.0) });
        let mut on_their_way = self.0.lock();
        let offers = &mut on_their_way.offers;
        if offers.len() == offers.capacity() {
            offers.retain(|offer| offer.strong_count() > 0);
        }
        offers.push(Arc::downgrade(&offer));
        if !on_their_way.is_counted {
            on_their_way.is_counted = true;
            self.0.begun.notify_one();
        }
        Watched { body, offer }
    }

    /// Waits until the client has taken nothing of some answer for `timeout` (at most half as long
    /// again).
    ///
    /// # Cancel safety
    ///
    /// May be dropped; whoever asks again begins to count anew.
    pub async fn stalled(&self, timeout: Duration) {
        loop {
            if self.are_all_sent() {
                self.0.begun.notified().await;
            }
            tokio::time::sleep(timeout / 2).await;
            let now = self.0.tick.fetch_add(1, Ordering::Relaxed) + 1;
            if self.has_waited(now) {
                return;
            }
        }
    }

    /// Whether there is nothing to count for; decided under the lock under which answers begin.
    fn are_all_sent(&self) -> bool {
        let mut on_their_way = self.0.lock();
        on_their_way.offers.retain(|offer| offer.strong_count() > 0);
        on_their_way.is_counted = !on_their_way.offers.is_empty();
        !on_their_way.is_counted
    }

    fn has_waited(&self, now: u32) -> bool {
        self.0.lock().offers.iter().filter_map(Weak::upgrade).any(|offer| {
            let since = offer.since.load(Ordering::Relaxed);
            since != NOT_YET && now.wrapping_sub(since) >= TICKS_MAX
        })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, OnTheirWay> {
        self.on_their_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Offer {
    /// The client has taken something, or there is something to take at last.
    fn is_moving(&self) {
        self.since.store(self.shared.tick.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// A body that notes when more of it is taken.
#[derive(Debug)]
pub struct Watched<B> {
    body: B,
    offer: Arc<Offer>,
}

impl<B> Body for Watched<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Chunk;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match polled {
            Poll::Ready(_) => self.offer.is_moving(),
            Poll::Pending => self.offer.since.store(NOT_YET, Ordering::Relaxed),
        }
        let offer = &self.offer;
        let chunk = |bytes| Chunk { bytes, offer: Arc::clone(offer) };
        polled.map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes of an answer, held until they are sent.
#[derive(Debug)]
pub struct Chunk {
    bytes: Bytes,
    offer: Arc<Offer>,
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.offer.is_moving();
        self.bytes.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use http_body_util::Full;
    use tokio::time::{Instant, timeout};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    async fn frame<B>(watched: &mut Watched<B>) -> Chunk
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::fmt::Debug,
    {
        let frame = poll_fn(|context| Pin::new(&mut *watched).poll_frame(context)).await;
        frame.unwrap().unwrap().into_data().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_takes_is_given_up_after_the_timeout() {
        let answers = Answers::default();
        let begun = Instant::now();
        let _kept = answers.watch(Full::new(Bytes::from_static(b"abc")));
        answers.stalled(TIMEOUT).await;
        assert!((TIMEOUT..=TIMEOUT * 3 / 2).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_taken_bit_by_bit_or_sent_is_not_given_up() {
        let answers = Answers::default();
        let mut body = answers.watch(Full::new(Bytes::from_static(b"abcdef")));
        let mut chunk = frame(&mut body).await;
        drop(body);
        let taking = async {
            for _ in 0..6 {
                tokio::time::sleep(TIMEOUT / 2).await;
                chunk.advance(1);
            }
            drop(chunk);
            tokio::time::sleep(TIMEOUT * 10).await;
        };
        tokio::select! {
            () = answers.stalled(TIMEOUT) => panic!("it was taken"),
            () = taking => {}
        }
        let _next = answers.watch(Full::new(Bytes::from_static(b"abc")));
        assert!(timeout(TIMEOUT * 2, answers.stalled(TIMEOUT)).await.is_ok(), "this one was not");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_waits_for_whoever_makes_it_is_not_the_clients_fault() {
        struct Never;
        impl Body for Never {
            type Data = Bytes;
            type Error = std::convert::Infallible;
            fn poll_frame(
                self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
                Poll::Pending
            }
        }
        let answers = Answers::default();
        let mut body = answers.watch(Never);
        let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut body).poll_frame(context))).await;
        assert!(polled.is_pending());
        assert!(timeout(TIMEOUT * 10, answers.stalled(TIMEOUT)).await.is_err());
    }
}
