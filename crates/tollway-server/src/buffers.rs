//! Buffers that connections borrow while they have something to say.
//!
//! An idle connection holds none: it takes one when bytes arrive and gives it back when all of them
//! are dealt with, so ten thousand idle connections cost ten thousand sockets and no more. One that
//! waits for the rest of a request keeps the bytes that it has, and no buffer around them while they
//! are few; beyond that they count against the room that all connections share. A request once begun
//! has a deadline that a trickle of bytes does not move, and so has the first of a connection.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{io, mem};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, timeout, timeout_at};
use tollway_http::Place;

use crate::drain::Stop;
use crate::metrics::Front;
use crate::worker::Worker;

/// What one read takes at most, and so how long a pipeline is decided as one batch.
const READ_BYTES: usize = 64 * 1024;
/// Output is written once it is this long, even if there are more requests to answer: a client that
/// sends and never reads must not make it grow.
pub(crate) const WRITE_BYTES: usize = 64 * 1024;
/// How long, and how many bytes, a client that is being refused may go on sending.
const PARTING: Duration = Duration::from_secs(1);
const PARTING_BYTES_MAX: usize = 8 << 20;
/// When the service stops, what was sent before must still be read: a quiet connection is looked at
/// for this long once more, a busy one goes on for this long.
const LAST_LOOK: Duration = Duration::from_millis(50);
const LAST_REQUESTS: Duration = Duration::from_secs(1);
/// Bytes that an unfinished request may hold without being counted.
const UNCOUNTED_BYTES_MAX: usize = 4 * 1024;
/// Bytes that are put away without the buffer around them, as many as a head may have. More are
/// left where they are: whoever sends them one by one would have them copied each time.
const PUT_AWAY_BYTES_MAX: usize = 16 * 1024;
/// Buffers kept per thread; more are freed.
const KEPT: usize = 64;

/// Buffers between two uses.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
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
    /// The place in the room of all connections, and how many bytes it is for.
    held: Option<(Place, usize)>,
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

impl Input {
    /// The input of a new connection, which must have asked something by then.
    pub(crate) fn by(first_by: Instant) -> Self {
        Self { first_by: Some(first_by), ..Self::default() }
    }

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

    /// The bytes as a vector of their own, for somebody else to read.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes()[..].to_vec()
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

impl Worker {
    /// The input of a connection that begins now.
    pub(crate) fn new_input(&self) -> Input {
        Input::by(Instant::now() + self.service.settings().limits.first_request_after)
    }

    /// Waits for more input.
    ///
    /// # Errors
    ///
    /// If the stream fails.
    pub(crate) async fn receive<S>(
        &self,
        stream: &mut S,
        input: &mut Input,
        stop: &mut Stop,
        front: Front,
    ) -> io::Result<Received>
    where
        S: AsyncRead + Unpin,
    {
        let limits = &self.service.settings().limits;
        // Between requests a client may be silent; within one it may not.
        let is_begun = !input.is_empty();
        let deadline = if is_begun {
            let soon = || Instant::now() + limits.slow_client_after;
            Some(*input.deadline.get_or_insert_with(soon))
        } else {
            limits.idle_after.map(|patience| Instant::now() + patience)
        };
        let deadline = [deadline, input.first_by].into_iter().flatten().min();
        let read = async {
            match deadline {
                Some(deadline) => timeout_at(deadline, self.read(stream, input)).await,
                None => Ok(self.read(stream, input).await),
            }
        };
        let read = tokio::select! {
            biased;
            read = read => read,
            () = stop.stopped(), if !is_begun => return self.look_again(stream, input).await,
        };
        match read {
            Ok(read) => received(read),
            Err(_) => {
                self.service.metrics().front(front).timed_out.add(1);
                Ok(Received::Over)
            }
        }
    }

    /// Reads what was sent before the service stopped: it may be on its way still.
    async fn look_again<S>(&self, stream: &mut S, input: &mut Input) -> io::Result<Received>
    where
        S: AsyncRead + Unpin,
    {
        let now = Instant::now();
        let last_by = *input.last_by.get_or_insert_with(|| now + LAST_REQUESTS);
        match timeout_at(last_by.min(now + LAST_LOOK), self.read(stream, input)).await {
            Ok(read) => received(read),
            Err(_) => Ok(Received::Stopped),
        }
    }

    /// Writes all of `output` and empties it; whether the client took it in time.
    ///
    /// # Errors
    ///
    /// If the stream fails.
    pub(crate) async fn send<S>(
        &self,
        stream: &mut S,
        output: &mut Vec<u8>,
        front: Front,
    ) -> io::Result<bool>
    where
        S: AsyncWrite + Unpin,
    {
        if output.is_empty() {
            return Ok(true);
        }
        // Most answers fit into the socket at once: no timer is made for those.
        let write = |context: &mut Context<'_>| Pin::new(&mut *stream).poll_write(context, output);
        match now(write).await {
            Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(written) => drop(output.drain(..written?)),
            Poll::Pending => {}
        }
        let patience = self.service.settings().limits.slow_client_after;
        if output.is_empty() {
            // A plain socket has nothing to flush; TLS may hold the last record back.
            let flush = |context: &mut Context<'_>| Pin::new(&mut *stream).poll_flush(context);
            match now(flush).await {
                Poll::Ready(flushed) => return flushed.map(|()| true),
                Poll::Pending => {}
            }
        }
        // An answer that waits for its client is held like a request that waits for its end.
        let Some(_place) = self.service.room().enter(output.len() as u64) else {
            self.service.metrics().front(front).rejected.add(1);
            return Ok(false);
        };
        let Ok(written) = timeout(patience, self.write(stream, output)).await else {
            self.service.metrics().front(front).timed_out.add(1);
            return Ok(false);
        };
        output.clear();
        written.map(|()| true)
    }

    /// Says goodbye so that the last answer arrives: a socket closed with bytes unread is reset,
    /// and the client loses what was written. Bounded in time and bytes.
    pub(crate) async fn part<S>(&self, stream: &mut S, input: &mut Input)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let last = async {
            poll_fn(|context| Pin::new(&mut *stream).poll_shutdown(context)).await?;
            let mut ignored = 0;
            while ignored < PARTING_BYTES_MAX {
                input.consume(usize::MAX);
                match self.read(stream, input).await? {
                    0 => break,
                    read => ignored += read,
                }
            }
            io::Result::Ok(())
        };
        // Whether the client stayed to listen is its own affair.
        let _ = timeout(PARTING, last).await;
    }

    /// Waits for bytes and reads them into `input`; how many, zero at the end of the stream.
    ///
    /// While there are none, and nothing is left over, `input` holds no memory.
    ///
    /// # Errors
    ///
    /// If the stream fails, or, as out of memory, if the room of all connections is full.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: either bytes were read and this is ready, or none were.
    pub(crate) async fn read<S>(&self, stream: &mut S, input: &mut Input) -> io::Result<usize>
    where
        S: AsyncRead + Unpin,
    {
        poll_fn(|context| {
            self.make_room(input);
            let mut room = ReadBuf::new(&mut input.bytes[input.end..]);
            let polled = Pin::new(&mut *stream).poll_read(context, &mut room);
            let read = room.filled().len();
            input.end += read;
            match polled {
                Poll::Ready(result) => {
                    self.rest(input);
                    Poll::Ready(result.map(|()| read))
                }
                Poll::Pending if self.put_away(input) => Poll::Pending,
                Poll::Pending => Poll::Ready(Err(io::ErrorKind::OutOfMemory.into())),
            }
        })
        .await
    }

    /// Makes room for a read: takes a buffer if there is none but for a few bytes put away.
    fn make_room(&self, input: &mut Input) {
        if input.bytes.len() >= READ_BYTES {
            if !input.is_empty() {
                input.make_room();
            }
            return;
        }
        let mut bytes = self.take_input();
        let kept = input.bytes().len();
        bytes[..kept].copy_from_slice(input.bytes());
        (input.bytes, input.start, input.end) = (bytes, 0, kept);
    }

    /// Holds as little as can be while nothing arrives; whether there is room for what is held.
    fn put_away(&self, input: &mut Input) -> bool {
        if input.is_empty() {
            self.rest(input);
            return true;
        }
        if input.bytes().len() <= PUT_AWAY_BYTES_MAX {
            let few = input.bytes().to_vec();
            (input.start, input.end) = (0, few.len());
            self.give_input(mem::replace(&mut input.bytes, few));
        }
        let bytes = input.bytes.len();
        if bytes <= UNCOUNTED_BYTES_MAX {
            return true;
        }
        match &mut input.held {
            Some((_, held)) if *held >= bytes => true,
            Some((place, held)) => {
                let fits = place.extend((bytes - *held) as u64);
                *held = bytes;
                fits
            }
            none => {
                *none = self.service.room().enter(bytes as u64).map(|place| (place, bytes));
                none.is_some()
            }
        }
    }

    /// Writes all of `output`.
    ///
    /// # Errors
    ///
    /// If the stream fails or takes no more.
    pub(crate) async fn write<S>(&self, stream: &mut S, output: &[u8]) -> io::Result<()>
    where
        S: AsyncWrite + Unpin,
    {
        let mut written = 0;
        while written < output.len() {
            let rest = &output[written..];
            let count = poll_fn(|context| Pin::new(&mut *stream).poll_write(context, rest)).await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            written += count;
        }
        // A plain socket has nothing to flush; TLS may hold the last record back.
        poll_fn(|context| Pin::new(&mut *stream).poll_flush(context)).await
    }

    /// Gives an input's memory back if nothing is left in it.
    pub(crate) fn rest(&self, input: &mut Input) {
        if input.is_empty() && !input.bytes.is_empty() {
            self.give_input(mem::take(&mut input.bytes));
        }
    }

    /// An empty output.
    pub(crate) fn take_output(&self) -> Vec<u8> {
        let kept = self.buffers.borrow_mut().outputs.pop();
        kept.unwrap_or_else(|| Vec::with_capacity(READ_BYTES / 8))
    }

    /// Gives an output back.
    pub(crate) fn give_output(&self, mut output: Vec<u8>) {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.outputs.len() < KEPT && output.capacity() <= 4 * WRITE_BYTES {
            output.clear();
            buffers.outputs.push(output);
        }
    }

    fn take_input(&self) -> Vec<u8> {
        let kept = self.buffers.borrow_mut().inputs.pop();
        kept.unwrap_or_else(|| vec![0; READ_BYTES])
    }

    fn give_input(&self, input: Vec<u8>) {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.inputs.len() < KEPT && input.len() == READ_BYTES {
            buffers.inputs.push(input);
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
        let (mut ours, mut theirs) = tokio::io::duplex(1 << 20);
        let mut input = Input::default();
        {
            let waiting = worker.read(&mut ours, &mut input);
            tokio::select! {
                biased;
                _ = waiting => panic!("nothing was sent"),
                () = std::future::ready(()) => {}
            }
        }
        assert_eq!(input.bytes.capacity(), 0);
        worker.write(&mut theirs, b"abc").await.unwrap();
        assert_eq!(worker.read(&mut ours, &mut input).await.unwrap(), 3);
        input.consume(2);
        worker.write(&mut theirs, b"def").await.unwrap();
        worker.read(&mut ours, &mut input).await.unwrap();
        assert_eq!(input.bytes(), b"cdef");
        input.consume(4);
        worker.rest(&mut input);
        assert_eq!(input.bytes.capacity(), 0);
    }

    #[tokio::test]
    async fn a_request_begun_holds_its_bytes_and_no_buffer_around_them() {
        let worker = Worker::new(service());
        let (mut ours, mut theirs) = tokio::io::duplex(1 << 20);
        let mut input = Input::default();
        for part in [&b"abc"[..], b"def", &[b'x'; PUT_AWAY_BYTES_MAX]] {
            worker.write(&mut theirs, part).await.unwrap();
            worker.read(&mut ours, &mut input).await.unwrap();
            let read =
                now(|context| std::pin::pin!(worker.read(&mut ours, &mut input)).poll(context));
            assert!(read.await.is_pending());
            if part.len() == 3 {
                assert!(input.bytes.capacity() <= UNCOUNTED_BYTES_MAX);
                assert_eq!(worker.service.room().bytes(), 0);
            }
        }
        assert!(input.bytes().starts_with(b"abcdefxxx"));
        assert_eq!(worker.service.room().bytes(), READ_BYTES as u64, "these are counted");
        input.consume(usize::MAX);
        assert_eq!(worker.service.room().bytes(), 0);
    }

    #[tokio::test]
    async fn beyond_the_room_of_all_connections_nothing_more_is_read() {
        let service = service();
        let worker = Worker::new(std::sync::Arc::clone(&service));
        let max = service.settings().limits.held_bytes_max as u64;
        let _others = service.room().enter(max - READ_BYTES as u64 - 1).unwrap();
        let (_stopper, mut stop) = crate::drain::Stopper::new();
        let (mut ours, mut theirs) = tokio::io::duplex(1 << 20);
        let mut input = Input::default();
        worker.write(&mut theirs, &[b'x'; 2 * READ_BYTES]).await.unwrap();
        let received = loop {
            match worker.receive(&mut ours, &mut input, &mut stop, Front::Resp).await.unwrap() {
                Received::Bytes => {}
                other => break other,
            }
        };
        assert_eq!(received, Received::Full);
    }

    #[tokio::test]
    async fn a_frame_longer_than_one_read_arrives_whole() {
        let worker = Worker::new(service());
        let (mut ours, mut theirs) = tokio::io::duplex(1 << 22);
        let sent: Vec<u8> = (0..1_000_000u32).map(|n| n as u8).collect();
        worker.write(&mut theirs, &sent).await.unwrap();
        drop(theirs);
        let mut input = Input::default();
        while worker.read(&mut ours, &mut input).await.unwrap() > 0 {}
        assert!(input.bytes() == sent);
    }
}
