//! The stream of one client: its bytes are read into borrowed buffers, and it may be slow in
//! neither direction.
//!
//! An idle connection holds no buffer: it takes one when bytes arrive and gives it back when all of
//! them are dealt with, so ten thousand idle connections cost ten thousand sockets and no more. One
//! that waits for the rest of a request keeps the bytes that it has, and no buffer around them
//! while they are few; beyond that they count against the room that all connections share. A
//! request once begun has a deadline that a trickle of bytes does not move, and so has the first of
//! a connection.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{io, mem};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Instant, timeout, timeout_at};
use tollway_http::RoomGuard;

use crate::drain::Stop;
use crate::front::Front;
use crate::worker::Worker;

/// What one read takes at most, and so how long a pipeline is decided as one batch.
const READ_BYTES: usize = 64 * 1024;
/// Output is written once it is this long, even if there are more requests to answer: a client that
/// sends and never reads must not make it grow.
pub(crate) const WRITE_BYTES: usize = 64 * 1024;
/// How long, and how many bytes, a client that is being refused may go on sending.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const CLOSE_BYTES_MAX: usize = 8 << 20;
/// When the service stops, what was sent before must still be read: a quiet connection is looked at
/// for this long once more, a busy one goes on for this long.
const LAST_LOOK: Duration = Duration::from_millis(50);
const LAST_REQUESTS: Duration = Duration::from_secs(1);
/// Bytes that an unfinished request may hold without being counted.
const UNCOUNTED_BYTES_MAX: usize = 4 * 1024;
/// Bytes that are put away without the buffer around them, as many as a head may have. More are
/// left where they are: whoever sends them one by one would have them copied each time.
const PUT_AWAY_BYTES_MAX: usize = 16 * 1024;
/// Buffers kept per thread between two uses; more are freed.
const BUFFERS_MAX: usize = 64;

/// The buffers of one thread that no connection uses now.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    inputs: RefCell<Vec<Vec<u8>>>,
    outputs: RefCell<Vec<Vec<u8>>>,
}

impl Buffers {
    /// An empty output.
    pub(crate) fn take_output(&self) -> Vec<u8> {
        let kept = self.outputs.borrow_mut().pop();
        kept.unwrap_or_else(|| Vec::with_capacity(READ_BYTES / 8))
    }

    /// Gives an output back.
    pub(crate) fn give_output(&self, mut output: Vec<u8>) {
        let mut outputs = self.outputs.borrow_mut();
        // One long answer must not keep its memory for as long as the thread lives.
        if outputs.len() < BUFFERS_MAX && output.capacity() <= 4 * WRITE_BYTES {
            output.clear();
            outputs.push(output);
        }
    }

    fn take_input(&self) -> Vec<u8> {
        let kept = self.inputs.borrow_mut().pop();
        kept.unwrap_or_else(|| vec![0; READ_BYTES])
    }

    fn give_input(&self, input: Vec<u8>) {
        let mut inputs = self.inputs.borrow_mut();
        if inputs.len() < BUFFERS_MAX && input.len() == READ_BYTES {
            inputs.push(input);
        }
    }
}

/// Bytes received and not yet dealt with.
#[derive(Debug, Default)]
pub(crate) struct Input {
    /// Either empty or fully initialised: reading into it never clears it first.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// When the request whose start is here must be complete.
    deadline: Option<Instant>,
    /// When the connection must have shown that it means to ask something.
    first_by: Option<Instant>,
    /// Until when requests are read although the service stops.
    last_by: Option<Instant>,
    /// The room of all connections that is taken, and for how many bytes.
    held: Option<(RoomGuard, usize)>,
}

impl Input {
    /// When the connection must have asked something, if it has not yet.
    pub(crate) const fn first_by(&self) -> Option<Instant> {
        self.first_by
    }

    /// Notes that the connection has asked something: from now on it may be idle.
    pub(crate) const fn has_asked(&mut self) {
        self.first_by = None;
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Whether there are none.
    pub(crate) const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Forgets the first `used` bytes.
    pub(crate) fn consume(&mut self, used: usize) {
        self.start = self.end.min(self.start.saturating_add(used));
        if used > 0 {
            self.deadline = None;
        }
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            self.held = None;
        }
    }

    /// Adds what was read elsewhere behind what is there.
    pub(crate) fn append(&mut self, more: &[u8]) {
        if more.is_empty() {
            return;
        }
        self.bytes.truncate(self.end);
        self.bytes.extend_from_slice(more);
        self.end = self.bytes.len();
    }

    /// Makes room for another read: moves what is left to the front, and grows if that is not
    /// enough.
    fn make_room(&mut self) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.bytes.len() - self.end < READ_BYTES / 2 {
            self.bytes.resize(self.bytes.len() + READ_BYTES, 0);
        }
    }
}

/// What came of waiting for input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// There are more bytes.
    Bytes,
    /// The client has left, or was too slow.
    Over,
    /// The service stops, and nothing is left to answer.
    Stopped,
    /// Unfinished requests of all connections hold too much: no more of this one is read.
    Full,
}

/// A client's stream with what was read from it.
pub(crate) struct ClientStream<'a, S> {
    worker: &'a Worker,
    stream: S,
    /// What was read and not yet dealt with.
    pub input: Input,
    front: Front,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> ClientStream<'a, S> {
    /// The stream of a connection that begins now.
    pub(crate) fn new(worker: &'a Worker, stream: S, front: Front) -> Self {
        let first_by = Instant::now() + worker.service.settings().limits.first_request_after;
        let input = Input { first_by: Some(first_by), ..Input::default() };
        Self { worker, stream, input, front }
    }

    /// The bare stream, and what was read from it already, for somebody else to serve.
    pub(crate) fn into_parts(self) -> (S, Input) {
        (self.stream, self.input)
    }

    /// What was read, and the stream: to be answered while the client is watched.
    pub(crate) fn parts(&mut self) -> (&mut Input, &mut S) {
        (&mut self.input, &mut self.stream)
    }

    /// Waits for more input.
    ///
    /// # Errors
    ///
    /// If the stream fails.
    pub(crate) async fn receive(&mut self, stop: &mut Stop) -> io::Result<Received> {
        let limits = &self.worker.service.settings().limits;
        // Between requests a client may be silent; within one it may not.
        let is_begun = !self.input.is_empty();
        let deadline = if is_begun {
            let soon = || Instant::now() + limits.slow_client_after;
            // Set once for a request: a byte now and then must not move it.
            Some(*self.input.deadline.get_or_insert_with(soon))
        } else {
            limits.idle_after.map(|patience| Instant::now() + patience)
        };
        let deadline = [deadline, self.input.first_by].into_iter().flatten().min();
        let read = async {
            match deadline {
                Some(deadline) => timeout_at(deadline, self.read()).await,
                None => Ok(self.read().await),
            }
        };
        let read = tokio::select! {
            // What has arrived is answered, although the service stops in the same moment.
            biased;
            read = read => read,
            () = stop.stopped(), if !is_begun => return self.look_again().await,
        };
        match read {
            Ok(read) => received(read),
            Err(_) => {
                self.worker.service.metrics().front(self.front).timed_out.add(1);
                Ok(Received::Over)
            }
        }
    }

    /// Reads what was sent before the service stopped: it may be on its way still.
    async fn look_again(&mut self) -> io::Result<Received> {
        let now = Instant::now();
        let last_by = *self.input.last_by.get_or_insert_with(|| now + LAST_REQUESTS);
        match timeout_at(last_by.min(now + LAST_LOOK), self.read()).await {
            Ok(read) => received(read),
            Err(_) => Ok(Received::Stopped),
        }
    }

    /// Writes all of `output` and empties it; whether the client took it in time.
    ///
    /// # Errors
    ///
    /// If the stream fails.
    pub(crate) async fn send(&mut self, output: &mut Vec<u8>) -> io::Result<bool> {
        if output.is_empty() {
            return Ok(true);
        }
        let stream = &mut self.stream;
        // Most answers fit into the socket at once: no timer is made for those.
        match now(|context| Pin::new(&mut *stream).poll_write(context, output)).await {
            Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(written) => drop(output.drain(..written?)),
            Poll::Pending => {}
        }
        if output.is_empty()
            // A plain socket has nothing to flush; TLS may hold the last record back.
            && let Poll::Ready(flushed) =
                now(|context| Pin::new(&mut *stream).poll_flush(context)).await
        {
            return flushed.map(|()| true);
        }
        let service = &self.worker.service;
        // An answer that waits for its client is held like a request that waits for its end.
        let Some(_held) = service.room().enter(output.len() as u64) else {
            service.metrics().front(self.front).rejected.add(1);
            return Ok(false);
        };
        let write = async {
            stream.write_all(output).await?;
            stream.flush().await
        };
        let Ok(written) = timeout(service.settings().limits.slow_client_after, write).await else {
            service.metrics().front(self.front).timed_out.add(1);
            return Ok(false);
        };
        output.clear();
        written.map(|()| true)
    }

    /// Closes the stream so that the last answer arrives: a socket closed with bytes unread is
    /// reset, and the client loses what was written. Bounded in time and bytes.
    pub(crate) async fn close(&mut self) {
        let last = async {
            self.stream.shutdown().await?;
            let mut ignored = 0;
            while ignored < CLOSE_BYTES_MAX {
                self.input.consume(usize::MAX);
                match self.read().await? {
                    0 => break,
                    read => ignored += read,
                }
            }
            io::Result::Ok(())
        };
        // Whether the client stayed to listen is its own affair.
        let _ = timeout(CLOSE_TIMEOUT, last).await;
    }

    /// Waits for bytes and reads them into the input; how many, zero at the end of the stream.
    ///
    /// While there are none, and nothing is left over, the input holds no memory.
    ///
    /// # Errors
    ///
    /// If the stream fails, or, as out of memory, if the room of all connections is full.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: either bytes were read and this is ready, or none were.
    async fn read(&mut self) -> io::Result<usize> {
        poll_fn(|context| {
            self.take_buffer();
            let input = &mut self.input;
            let mut room = ReadBuf::new(&mut input.bytes[input.end..]);
            let polled = Pin::new(&mut self.stream).poll_read(context, &mut room);
            let read = room.filled().len();
            input.end += read;
            match polled {
                Poll::Ready(result) => {
                    self.give_buffer();
                    Poll::Ready(result.map(|()| read))
                }
                Poll::Pending if self.put_away() => Poll::Pending,
                Poll::Pending => Poll::Ready(Err(io::ErrorKind::OutOfMemory.into())),
            }
        })
        .await
    }

    /// Makes room for a read: takes a buffer if there is none but for a few bytes put away.
    fn take_buffer(&mut self) {
        let input = &mut self.input;
        if input.bytes.len() >= READ_BYTES {
            if !input.is_empty() {
                input.make_room();
            }
            return;
        }
        let mut bytes = self.worker.buffers.take_input();
        let kept = input.bytes().len();
        bytes[..kept].copy_from_slice(input.bytes());
        (input.bytes, input.start, input.end) = (bytes, 0, kept);
    }

    /// Gives the input's memory back if nothing is left in it.
    pub(crate) fn give_buffer(&mut self) {
        if self.input.is_empty() && !self.input.bytes.is_empty() {
            self.worker.buffers.give_input(mem::take(&mut self.input.bytes));
        }
    }

    /// Holds as little as can be while nothing arrives; whether there is room for what is held.
    fn put_away(&mut self) -> bool {
        if self.input.is_empty() {
            self.give_buffer();
            return true;
        }
        let input = &mut self.input;
        if input.bytes().len() <= PUT_AWAY_BYTES_MAX {
            let few = input.bytes().to_vec();
            (input.start, input.end) = (0, few.len());
            self.worker.buffers.give_input(mem::replace(&mut input.bytes, few));
        }
        let bytes = input.bytes.len();
        if bytes <= UNCOUNTED_BYTES_MAX {
            return true;
        }
        match &mut input.held {
            Some((_, held)) if *held >= bytes => true,
            Some((guard, held)) => {
                let fits = guard.extend((bytes - *held) as u64);
                *held = bytes;
                fits
            }
            none => {
                let room = self.worker.service.room();
                *none = room.enter(bytes as u64).map(|guard| (guard, bytes));
                none.is_some()
            }
        }
    }
}

/// What a read says about the connection.
fn received(read: io::Result<usize>) -> io::Result<Received> {
    match read {
        Ok(0) => Ok(Received::Over),
        Ok(_) => Ok(Received::Bytes),
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Ok(Received::Full),
        Err(error) => Err(error),
    }
}

/// What `poll` says now, ready or not.
async fn now<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    poll_fn(|context| Poll::Ready(poll(context))).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::tests::service;

    #[tokio::test]
    async fn an_idle_connection_holds_no_buffer() {
        let worker = Worker::new(service());
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let mut client = ClientStream::new(&worker, ours, Front::Resp);
        {
            let waiting = client.read();
            tokio::select! {
                biased;
                _ = waiting => panic!("nothing was sent"),
                () = std::future::ready(()) => {}
            }
        }
        assert_eq!(client.input.bytes.capacity(), 0);
        theirs.write_all(b"abc").await.unwrap();
        assert_eq!(client.read().await.unwrap(), 3);
        client.input.consume(2);
        theirs.write_all(b"def").await.unwrap();
        client.read().await.unwrap();
        assert_eq!(client.input.bytes(), b"cdef");
        client.input.consume(4);
        client.give_buffer();
        assert_eq!(client.input.bytes.capacity(), 0);
    }

    #[tokio::test]
    async fn a_request_begun_holds_its_bytes_and_no_buffer_around_them() {
        let worker = Worker::new(service());
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let mut client = ClientStream::new(&worker, ours, Front::Resp);
        for part in [&b"abc"[..], b"def", &[b'x'; PUT_AWAY_BYTES_MAX]] {
            theirs.write_all(part).await.unwrap();
            client.read().await.unwrap();
            let read = now(|context| std::pin::pin!(client.read()).poll(context));
            assert!(read.await.is_pending());
            if part.len() == 3 {
                assert!(client.input.bytes.capacity() <= UNCOUNTED_BYTES_MAX);
                assert_eq!(worker.service.room().bytes(), 0);
            }
        }
        assert!(client.input.bytes().starts_with(b"abcdefxxx"));
        assert_eq!(worker.service.room().bytes(), READ_BYTES as u64, "these are counted");
        client.input.consume(usize::MAX);
        assert_eq!(worker.service.room().bytes(), 0);
    }

    #[tokio::test]
    async fn beyond_the_room_of_all_connections_nothing_more_is_read() {
        let service = service();
        let worker = Worker::new(std::sync::Arc::clone(&service));
        let max = service.settings().limits.held_bytes_max as u64;
        let _others = service.room().enter(max - READ_BYTES as u64 - 1).unwrap();
        let (_stopper, mut stop) = crate::drain::Stopper::new();
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let mut client = ClientStream::new(&worker, ours, Front::Resp);
        theirs.write_all(&[b'x'; 2 * READ_BYTES]).await.unwrap();
        let received = loop {
            match client.receive(&mut stop).await.unwrap() {
                Received::Bytes => {}
                other => break other,
            }
        };
        assert_eq!(received, Received::Full);
    }

    #[tokio::test]
    async fn a_frame_longer_than_one_read_arrives_whole() {
        let worker = Worker::new(service());
        let (ours, mut theirs) = tokio::io::duplex(1 << 22);
        let sent: Vec<u8> = (0..1_000_000u32).map(|n| n as u8).collect();
        theirs.write_all(&sent).await.unwrap();
        drop(theirs);
        let mut client = ClientStream::new(&worker, ours, Front::Resp);
        while client.read().await.unwrap() > 0 {}
        assert!(client.input.bytes() == sent);
    }
}
