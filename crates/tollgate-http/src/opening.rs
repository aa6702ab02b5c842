//! Connections whose first bytes must come in time.
//!
//! Whether a client speaks HTTP/1.1 or HTTP/2 shows in its first bytes, and until it does no timer of
//! either version runs: a client that sends `PR` and nothing more would hold its connection for ever.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How a connection of HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that fails when the client does not say in time which version it speaks.
#[derive(Debug)]
pub struct Opening<S> {
    stream: S,
    unclear: Option<Unclear>,
}

/// What has come, as long as it may still become HTTP/2's preface.
#[derive(Debug)]
struct Unclear {
    late: Pin<Box<Sleep>>,
    /// How many bytes of the preface have come.
    matched: usize,
}

impl Unclear {
    /// Whether the version still does not show after these bytes.
    fn goes_on(&mut self, bytes: &[u8]) -> bool {
        let rest = &PREFACE[self.matched..];
        let common = rest.iter().zip(bytes).take_while(|(expected, byte)| expected == byte).count();
        self.matched += common;
        common == bytes.len() && self.matched < PREFACE.len()
    }
}

impl<S> Opening<S> {
    /// A connection whose client must say which version it speaks `within` this time.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn new(stream: S, within: Duration) -> Self {
        let late = Box::pin(tokio::time::sleep(within));
        Self { stream, unclear: Some(Unclear { late, matched: 0 }) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Opening<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let Some(unclear) = &mut self.unclear else { return read };
        match read {
            Poll::Ready(Ok(())) => {
                let bytes = &buffer.filled()[before..];
                // The end of the stream is for the server to see.
                if bytes.is_empty() || !unclear.goes_on(bytes) {
                    self.unclear = None;
                }
                read
            }
            Poll::Pending => {
                ready!(unclear.late.as_mut().poll(context));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            failed => failed,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opening<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_opening_is_over_once_the_version_shows() {
        let goes_on = |pieces: &[&str]| {
            let late = Box::pin(tokio::time::sleep(Duration::from_secs(1)));
            let mut unclear = Unclear { late, matched: 0 };
            pieces.iter().all(|piece| unclear.goes_on(piece.as_bytes()))
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
