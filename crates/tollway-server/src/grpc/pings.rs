//! Acknowledgements of what a stream has sent: HTTP/2 pings behind its data.
//!
//! A client answers a ping when it has read all that was sent before it on the connection. Hyper
//! says neither when a piece of a body is written nor lets anybody ping; so this stands between
//! hyper and the socket, counts the data of the streams that ask for it as their frames pass, and
//! puts a ping of its own between two frames.
//!
//! ```text
//!   hyper   HEADERS 5   DATA 5 (first)   DATA 7   DATA 5 ...
//!   socket  HEADERS 5   DATA 5   PING 1  DATA 7   DATA 5   PING 2 ...
//!                                                          <- PING 1 (acknowledged)
//! ```
//!
//! A stream does not know its number on the connection. It is found by the first piece that it
//! sends: a frame with just these bytes of a stream that has no number yet. Only one stream of a
//! connection at a time is looked for.
//!
//! Rejected: hyper's own pings (they are sent when hyper likes, and before data that waits).

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

const PREFACE_BYTES: usize = 24;
const HEAD_BYTES: usize = 9;
const PING_BYTES: usize = 8;
const DATA: u8 = 0;
const PING: u8 = 6;
const ACKNOWLEDGED: u8 = 1;
/// Begins the payload of our pings: hyper has its own.
const MARK: [u8; 2] = *b"tw";
/// Streams of a connection that ask for acknowledgements, now or earlier.
const STREAMS_MAX: usize = 1_024;

/// The pings of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Pings(Rc<RefCell<Shared>>);

/// The acknowledgements of one stream.
#[derive(Debug)]
pub(super) struct StreamPings {
    shared: Rc<RefCell<Shared>>,
    token: u64,
    /// Bytes handed over so far.
    handed: u64,
}

#[derive(Debug, Default)]
struct Shared {
    tokens: u64,
    /// Who is looked for, and the data that it sends first.
    first: Option<(u64, Bytes)>,
    /// Streams whose number is known.
    counted: HashMap<u32, Counted>,
    acknowledged: HashMap<u64, Acknowledged>,
    pings: u64,
    sent: VecDeque<(u64, u64, u64)>,
    to_send: Vec<u8>,
    is_closed: bool,
    reader: Option<Waker>,
}

#[derive(Debug)]
struct Counted {
    token: u64,
    passed: u64,
    /// Where to ping: so many bytes of its data.
    marks: VecDeque<u64>,
}

#[derive(Debug, Default)]
struct Acknowledged {
    bytes: u64,
    told: Rc<Notify>,
}

impl Pings {
    /// A stream that will send data. `None` if the connection has too many of them.
    pub(super) fn stream(&self) -> Option<StreamPings> {
        let mut shared = self.0.borrow_mut();
        if shared.acknowledged.len() >= STREAMS_MAX {
            return None;
        }
        shared.tokens += 1;
        let token = shared.tokens;
        shared.acknowledged.insert(token, Acknowledged::default());
        Some(StreamPings { shared: Rc::clone(&self.0), token, handed: 0 })
    }
}

impl StreamPings {
    /// Asks for a ping behind these bytes, which are handed over next. What to wait for; `None` if
    /// another stream is looked for just now.
    pub(super) fn ping_behind(&mut self, bytes: &Bytes) -> Option<u64> {
        let mut shared = self.shared.borrow_mut();
        let handed = self.handed + bytes.len() as u64;
        if self.handed == 0 {
            if shared.first.is_some() {
                return None;
            }
            shared.first = Some((self.token, bytes.clone()));
        } else {
            let token = self.token;
            let counted = shared.counted.values_mut().find(|counted| counted.token == token)?;
            counted.marks.push_back(handed);
        }
        self.handed = handed;
        Some(handed)
    }

    /// How many bytes the client has acknowledged.
    pub(super) fn acknowledged(&self) -> u64 {
        let shared = self.shared.borrow();
        shared.acknowledged.get(&self.token).map_or(0, |acknowledged| acknowledged.bytes)
    }

    /// Wakes when more are.
    pub(super) fn told(&self) -> Rc<Notify> {
        let shared = self.shared.borrow();
        let told = shared.acknowledged.get(&self.token).map(|it| Rc::clone(&it.told));
        told.unwrap_or_default()
    }

    /// Ends the connection at once: what has not been sent is not sent any more.
    pub(super) fn close_connection(&self) {
        let mut shared = self.shared.borrow_mut();
        shared.is_closed = true;
        shared.reader.take().into_iter().for_each(Waker::wake);
    }
}

impl Drop for StreamPings {
    fn drop(&mut self) {
        let mut shared = self.shared.borrow_mut();
        shared.acknowledged.remove(&self.token);
        shared.counted.retain(|_, counted| counted.token != self.token);
        if shared.first.as_ref().is_some_and(|(token, _)| *token == self.token) {
            shared.first = None;
        }
    }
}

impl Shared {
    /// A frame of data of which all has passed.
    fn passed(&mut self, stream: u32, len: usize, payload: Option<Vec<u8>>) {
        let is_new = !self.counted.contains_key(&stream);
        if let Some((token, _)) = self.first.take_if(|(_, bytes)| {
            is_new && payload.as_deref().is_some_and(|payload| *payload == **bytes)
        }) {
            let marks = VecDeque::from([len as u64]);
            self.counted.insert(stream, Counted { token, passed: 0, marks });
        }
        let Some(counted) = self.counted.get_mut(&stream) else { return };
        counted.passed += len as u64;
        while counted.marks.front().is_some_and(|mark| *mark <= counted.passed) {
            let Some(mark) = counted.marks.pop_front() else { return };
            self.pings += 1;
            self.sent.push_back((self.pings, counted.token, mark));
            self.to_send.extend_from_slice(&[0, 0, PING_BYTES as u8, PING, 0, 0, 0, 0, 0]);
            self.to_send.extend_from_slice(&MARK);
            self.to_send.extend_from_slice(&self.pings.to_be_bytes()[2..]);
        }
    }

    /// The client has answered a ping, and so all pings before.
    fn answered(&mut self, payload: [u8; PING_BYTES]) {
        let [a, b, number @ ..] = payload;
        let [c, d, e, f, g, h] = number;
        let number = u64::from_be_bytes([0, 0, c, d, e, f, g, h]);
        if [a, b] != MARK || number > self.pings {
            return;
        }
        while self.sent.front().is_some_and(|(sent, ..)| *sent <= number) {
            let Some((_, token, mark)) = self.sent.pop_front() else { return };
            if let Some(acknowledged) = self.acknowledged.get_mut(&token) {
                acknowledged.bytes = acknowledged.bytes.max(mark);
                acknowledged.told.notify_one();
            }
        }
    }

    /// The longest frame of data whose bytes are of interest.
    fn looks_for(&self, len: usize) -> bool {
        self.first.as_ref().is_some_and(|(_, bytes)| bytes.len() == len)
    }
}

/// Follows frames in bytes that come in any pieces.
#[derive(Debug, Default)]
struct Frames {
    /// Bytes before the next frame's head.
    passing: usize,
    head: Vec<u8>,
    payload: Option<Vec<u8>>,
}

impl Frames {
    fn is_between(&self) -> bool {
        self.passing == 0 && self.head.is_empty()
    }

    /// Looks at bytes; `keeps` says of which frames the payload is wanted, `whole` takes each frame
    /// of which all has come.
    fn follow(
        &mut self,
        mut bytes: &[u8],
        keeps: impl Fn(&[u8; HEAD_BYTES], usize) -> bool,
        mut whole: impl FnMut(&[u8; HEAD_BYTES], usize, Option<Vec<u8>>),
    ) {
        loop {
            if self.passing > 0 {
                let (part, rest) = bytes.split_at(bytes.len().min(self.passing));
                if let Some(payload) = &mut self.payload {
                    payload.extend_from_slice(part);
                }
                self.passing -= part.len();
                bytes = rest;
                if self.passing > 0 {
                    return;
                }
            }
            if let Ok(head) = <[u8; HEAD_BYTES]>::try_from(&*self.head) {
                self.head.clear();
                whole(&head, len(&head), self.payload.take());
            }
            let missing = HEAD_BYTES - self.head.len();
            let (part, rest) = bytes.split_at(bytes.len().min(missing));
            self.head.extend_from_slice(part);
            bytes = rest;
            let Ok(head) = <[u8; HEAD_BYTES]>::try_from(&*self.head) else { return };
            self.passing = len(&head);
            self.payload = keeps(&head, self.passing).then(|| Vec::with_capacity(self.passing));
        }
    }
}

fn len(head: &[u8; HEAD_BYTES]) -> usize {
    u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize
}

fn stream_of(head: &[u8; HEAD_BYTES]) -> u32 {
    u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff
}

/// A connection on which there are pings behind data.
pub(super) struct Pinged<S> {
    stream: S,
    pings: Pings,
    read: Frames,
    written: Frames,
}

impl<S> Pinged<S> {
    pub(super) fn new(stream: S, pings: Pings) -> Self {
        let read = Frames { passing: PREFACE_BYTES, ..Frames::default() };
        Self { stream, pings, read, written: Frames::default() }
    }

    fn wrote(&mut self, bytes: &[u8]) {
        let shared = &self.pings.0;
        let keeps =
            |head: &[u8; HEAD_BYTES], len| head[3] == DATA && shared.borrow().looks_for(len);
        self.written.follow(bytes, keeps, |head, len, payload| {
            if head[3] == DATA {
                shared.borrow_mut().passed(stream_of(head), len, payload);
            }
        });
    }
}

impl<S: AsyncWrite + Unpin> Pinged<S> {
    /// Writes the pings that are due, if this is the place for them.
    fn poll_pings(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.pings.0.borrow().is_closed {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        while self.written.is_between() {
            let mut shared = self.pings.0.borrow_mut();
            if shared.to_send.is_empty() {
                break;
            }
            let count = ready!(Pin::new(&mut self.stream).poll_write(context, &shared.to_send))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            shared.to_send.drain(..count);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Pinged<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        {
            let mut shared = this.pings.0.borrow_mut();
            if shared.is_closed {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            shared.reader = Some(context.waker().clone());
        }
        let before = room.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, room))?;
        let shared = &this.pings.0;
        let is_answer = |head: &[u8; HEAD_BYTES], len| {
            head[3] == PING && head[4] & ACKNOWLEDGED != 0 && len == PING_BYTES
        };
        this.read.follow(&room.filled()[before..], is_answer, |_, _, payload| {
            let payload = payload.and_then(|payload| <[u8; PING_BYTES]>::try_from(payload).ok());
            if let Some(payload) = payload {
                shared.borrow_mut().answered(payload);
            }
        });
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Pinged<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_pings(context))?;
        let count = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.wrote(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_pings(context))?;
        let count = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices))?;
        let mut rest = count;
        for slice in slices {
            let part = &slice[..slice.len().min(rest)];
            self.wrote(part);
            rest -= part.len();
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pings(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let head = [0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        [&head[..], payload].concat()
    }

    #[tokio::test]
    async fn a_ping_follows_the_data_it_is_asked_for_and_its_answer_is_told() {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let pings = Pings::default();
        let mut pinged = Pinged::new(ours, pings.clone());
        let mut stream = pings.stream().unwrap();
        let first = Bytes::from_static(b"first");
        assert_eq!(stream.ping_behind(&first), Some(5));
        assert_eq!(pings.stream().unwrap().ping_behind(&first), None, "one at a time");
        let other = frame(DATA, 0, 3, b"other");
        let data = frame(DATA, 0, 5, b"first");
        // In pieces that end anywhere.
        for byte in other.iter().chain(&data) {
            pinged.write_all(&[*byte]).await.unwrap();
        }
        pinged.flush().await.unwrap();
        let ping = frame(PING, 0, 0, b"tw\0\0\0\0\0\x01");
        let mut found = vec![0; other.len() + data.len() + ping.len()];
        theirs.read_exact(&mut found).await.unwrap();
        assert_eq!(found, [other, data, ping].concat());
        assert_eq!(stream.acknowledged(), 0);

        let answers = [
            vec![b'P'; PREFACE_BYTES],
            frame(PING, ACKNOWLEDGED, 0, b"stranger"),
            frame(PING, ACKNOWLEDGED, 0, b"tw\0\0\0\0\0\x01"),
        ];
        theirs.write_all(&answers.concat()).await.unwrap();
        let mut read = vec![0; answers.concat().len()];
        pinged.read_exact(&mut read).await.unwrap();
        assert_eq!(stream.acknowledged(), 5);
        assert_eq!(stream.ping_behind(&Bytes::from_static(b"more")), Some(9));
    }

    #[tokio::test]
    async fn a_closed_connection_fails_at_once() {
        let (ours, _theirs) = tokio::io::duplex(64);
        let pings = Pings::default();
        let mut pinged = Pinged::new(ours, pings.clone());
        pings.stream().unwrap().close_connection();
        assert!(pinged.read_u8().await.is_err());
        assert!(pinged.write_all(b"x").await.is_err());
    }
}
