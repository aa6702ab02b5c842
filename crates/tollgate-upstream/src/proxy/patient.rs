//! Connections of clients that may not stop reading: what is sent to them is taken in time.
//!
//! A body is not asked for more while its client reads nothing, so no timer of the body's runs out:
//! without this, whoever asks and never reads would keep a place in the room for ever. [`Patient`]
//! sees a client that takes no bytes at all; [`Answers`] one that takes all but those of a stream of
//! HTTP/2, whose window it keeps shut. Either costs the whole connection: a stream that is not asked
//! for more cannot be told to end.
//!
//! At the beginning it is the other way round: whether a client speaks HTTP/1.1 or HTTP/2 shows in its
//! first bytes, and until then no timer of either runs. So [`Patient`] waits for them for so long.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::body::{Body, BoxError};

/// How a connection of HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that fails when the client takes nothing for too long, or does not say which version
/// it speaks.
pub(super) struct Patient {
    stream: TcpStream,
    timeout: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    opening: Option<Opening>,
}

/// The first bytes of a connection, as long as they may still become HTTP/2's.
struct Opening {
    late: Pin<Box<Sleep>>,
    /// How many bytes of the preface have come.
    matched: usize,
}

impl Opening {
    /// Whether the version still does not show after these bytes.
    fn goes_on(&mut self, bytes: &[u8]) -> bool {
        let rest = &PREFACE[self.matched..];
        let common = rest.iter().zip(bytes).take_while(|(expected, byte)| expected == byte).count();
        self.matched += common;
        common == bytes.len() && self.matched < PREFACE.len()
    }
}

impl Patient {
    /// `timeout` for bytes that are not taken, `first_within` for those that come first.
    pub(super) fn new(stream: TcpStream, timeout: Duration, first_within: Duration) -> Self {
        let late = Box::pin(tokio::time::sleep(first_within));
        Self { stream, timeout, stalled: None, opening: Some(Opening { late, matched: 0 }) }
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

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let Some(opening) = &mut self.opening else { return read };
        match read {
            Poll::Ready(Ok(())) => {
                let bytes = &buffer.filled()[before..];
                // The end of the stream is for the server to see.
                if bytes.is_empty() || !opening.goes_on(bytes) {
                    self.opening = None;
                }
                read
            }
            Poll::Pending => {
                ready!(opening.late.as_mut().poll(context));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            failed => failed,
        }
    }
}

impl AsyncWrite for Patient {
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
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The answers on their way over one connection.
#[derive(Clone, Default)]
pub(super) struct Answers(Arc<Mutex<Vec<Weak<Offer>>>>);

/// Since when an answer waits for its client; `None` while it waits for the upstream.
struct Offer(Mutex<Option<Instant>>);

impl Answers {
    /// The body of an answer, watched until the last of it is sent.
    pub(super) fn watch(&self, body: Body) -> Watched {
        let offer = Arc::new(Offer(Mutex::new(Some(Instant::now()))));
        let mut offers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if offers.len() == offers.capacity() {
            offers.retain(|offer| offer.strong_count() > 0);
        }
        offers.push(Arc::downgrade(&offer));
        Watched { body, offer }
    }

    /// Waits until the client has taken nothing of some answer for too long.
    pub(super) async fn stalled(&self, timeout: Duration) {
        while !self.has_waited(timeout) {
            tokio::time::sleep(timeout / 2).await;
        }
    }

    fn has_waited(&self, timeout: Duration) -> bool {
        let offers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        offers.iter().filter_map(Weak::upgrade).any(|offer| {
            let since = *offer.0.lock().unwrap_or_else(PoisonError::into_inner);
            since.is_some_and(|since| since.elapsed() >= timeout)
        })
    }
}

impl Offer {
    fn wait(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}

/// A body that notes when more of it is taken.
pub(super) struct Watched {
    body: Body,
    offer: Arc<Offer>,
}

impl HttpBody for Watched {
    type Data = Chunk;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.offer.wait(polled.is_ready().then(Instant::now));
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
pub(super) struct Chunk {
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
        self.offer.wait(Some(Instant::now()));
        self.bytes.advance(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_opening_is_over_once_the_version_shows() {
        let goes_on = |pieces: &[&str]| {
            let late = Box::pin(tokio::time::sleep(Duration::from_secs(1)));
            let mut opening = Opening { late, matched: 0 };
            pieces.iter().all(|piece| opening.goes_on(piece.as_bytes()))
        };
        for still_open in [&["P"][..], &["PR", "I"], &["PRI * HTTP/2.0\r\n\r\nSM\r\n\r"]] {
            assert!(goes_on(still_open), "{still_open:?}");
        }
        let whole = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        for over in [&["G"][..], &["PO"], &["PR", "X"], &[whole], &[whole, "more"], &["PRI *", "/"]]
        {
            assert!(!goes_on(over), "{over:?}");
        }
    }
}
