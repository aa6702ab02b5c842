//! Whether a client is still there while its answer takes time.
//!
//! A socket whose other end was closed says so only to who reads it. So whoever waits for something
//! on a client's behalf reads ahead meanwhile: bytes that come are the client's next requests, and
//! are kept for later; the end of the stream means that the client has left.
//!
//! A client that closes its writing side alone looks the same: nothing on the wire tells it from
//! one that is gone. Both count as gone, and the answer is written nevertheless.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

/// How many bytes of later requests are kept while an answer is awaited. They are not counted
/// against the room of all connections, so they are few. A client that has sent more is not watched
/// any longer: its wait ends as if it were still there.
const AHEAD_BYTES_MAX: usize = 4 * 1024;

/// The client of a request that is being answered.
pub(crate) trait Client {
    /// Ready once the client has left. Waiting reads ahead on its connection.
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()>;
}

/// A client of which one hears otherwise: over HTTP/2 its answer is dropped when it leaves.
pub(crate) struct HeardElsewhere;

impl Client for HeardElsewhere {
    fn poll_left(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

/// Waits until the client has left.
pub(crate) async fn left(client: &dyn Client) {
    poll_fn(|context| client.poll_left(context)).await;
}

/// Whether the client has left, as far as can be seen now.
pub(crate) async fn has_left(client: &dyn Client) -> bool {
    poll_fn(|context| Poll::Ready(client.poll_left(context).is_ready())).await
}

/// The client at the other end of a stream, and what it sent ahead.
pub(super) struct ReadAhead<'a, S> {
    stream: RefCell<(&'a mut S, Vec<u8>)>,
}

impl<'a, S: AsyncRead + Unpin> ReadAhead<'a, S> {
    pub(super) fn new(stream: &'a mut S) -> Self {
        Self { stream: RefCell::new((stream, Vec::new())) }
    }

    /// Whether nothing was sent ahead so far.
    pub(super) fn is_empty(&self) -> bool {
        self.stream.borrow().1.is_empty()
    }

    /// What was sent ahead.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.stream.into_inner().1
    }
}

impl<S: AsyncRead + Unpin> Client for ReadAhead<'_, S> {
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        let (stream, ahead) = &mut *self.stream.borrow_mut();
        poll_end(*stream, ahead, context)
    }
}

/// Ready at the end of the stream; the bytes before it go to `ahead`.
pub(super) fn poll_end<S: AsyncRead + Unpin>(
    stream: &mut S,
    ahead: &mut Vec<u8>,
    context: &mut Context<'_>,
) -> Poll<()> {
    let mut part = [0; 512];
    while ahead.len() < AHEAD_BYTES_MAX {
        let room = part.len().min(AHEAD_BYTES_MAX - ahead.len());
        let mut read = ReadBuf::new(&mut part[..room]);
        match Pin::new(&mut *stream).poll_read(context, &mut read) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Ok(())) if !read.filled().is_empty() => {
                ahead.extend_from_slice(read.filled());
            }
            // Its end, or an error: a connection that was reset.
            Poll::Ready(_) => return Poll::Ready(()),
        }
    }
    Poll::Pending
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn what_is_sent_ahead_is_kept_and_the_end_is_seen_behind_it() {
        let (mut ours, mut theirs) = tokio::io::duplex(1 << 16);
        let ahead = ReadAhead::new(&mut ours);
        assert!(!has_left(&ahead).await);
        theirs.write_all(&[b'x'; 1_000]).await.unwrap();
        assert!(!has_left(&ahead).await && !ahead.is_empty());
        drop(theirs);
        assert!(has_left(&ahead).await && has_left(&ahead).await);
        assert_eq!(ahead.into_bytes(), [b'x'; 1_000]);
    }

    #[tokio::test]
    async fn no_more_is_read_ahead_than_may_be_held() {
        let (mut ours, mut theirs) = tokio::io::duplex(1 << 16);
        theirs.write_all(&[b'x'; 2 * AHEAD_BYTES_MAX]).await.unwrap();
        drop(theirs);
        let ahead = ReadAhead::new(&mut ours);
        assert!(!has_left(&ahead).await, "not watched any longer");
        assert_eq!(ahead.into_bytes().len(), AHEAD_BYTES_MAX);
    }
}
