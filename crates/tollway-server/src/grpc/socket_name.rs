//! The name by which a gRPC client calls a Unix socket, replaced by one that is a host.
//!
//! gRPC's C core (Python, Ruby, PHP, C++) says `:authority: run%2Ftollway.sock`. That is valid by
//! RFC 3986, but `http`, on which hyper stands, refuses a host with a percent sign, and the call
//! with it. On a Unix socket the name means nothing, so whatever stands there becomes `localhost`
//! before anybody reads it.
//!
//! ```text
//!   frames  SETTINGS  HEADERS [CONTINUATION ...]  DATA ...
//!                     '------- one block -------'             everything else passes as it is
//!   block   | 40 0a ":authority" 10 "tmp%2Fx.sock" | 83 | 86 | ...   one field after the other
//!   becomes | 40 0a ":authority" 09 "localhost"    | 83 | 86 | ...
//! ```
//!
//! No table is needed for that: how a field is written says where it ends. A field in the table of
//! the reader is shorter than the writer thinks, so the reader keeps fields that the writer has
//! forgotten, and never the other way round. What is malformed, or longer than a head may be,
//! passes as it is, to be refused where everything is.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http2::pass_writes;

const PREFACE_BYTES: usize = 24;
const FRAME_HEAD_BYTES: usize = 9;
/// The longest frame that a client may send, and the longest block that is read.
const FRAME_BYTES_MAX: usize = 16_384;
const READ_BYTES: usize = 16 * 1024;
const AUTHORITY: &[u8] = b":authority";
/// `:authority` as HPACK's Huffman code has it.
const AUTHORITY_PACKED: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// The place of `:authority` in the table that everybody has.
const AUTHORITY_INDEX: usize = 1;
const LOCALHOST: &[u8] = b"\x09localhost";

mod kind {
    pub(super) const HEADERS: u8 = 1;
    pub(super) const CONTINUATION: u8 = 9;
}

mod flag {
    pub(super) const END_HEADERS: u8 = 4;
    pub(super) const PADDED: u8 = 8;
    pub(super) const PRIORITY: u8 = 32;
}

/// A connection over a Unix socket whose client's name for it is replaced.
pub(super) struct Renamed<S> {
    stream: S,
    /// Read and not yet looked at.
    raw: Vec<u8>,
    /// Looked at and not yet passed on.
    ready: Vec<u8>,
    at: usize,
    /// Bytes to pass as they are: the preface, or the rest of a frame.
    passing: usize,
    /// Whether the frames are not understood: everything passes from now on.
    is_lost: bool,
}

impl<S> Renamed<S> {
    pub(super) const fn new(stream: S) -> Self {
        Self {
            stream,
            raw: Vec::new(),
            ready: Vec::new(),
            at: 0,
            passing: PREFACE_BYTES,
            is_lost: false,
        }
    }

    /// Makes as much of what was read ready as can be.
    fn advance(&mut self) {
        let mut used = 0;
        loop {
            let rest = &self.raw[used..];
            if self.passing > 0 || self.is_lost {
                let count = if self.is_lost { rest.len() } else { rest.len().min(self.passing) };
                self.ready.extend_from_slice(&rest[..count]);
                self.passing = self.passing.saturating_sub(count);
                used += count;
                if self.passing > 0 || self.is_lost {
                    break;
                }
                continue;
            }
            match next(rest) {
                Next::Partial => break,
                Next::Pass(count) => self.passing = count,
                Next::Lost => self.is_lost = true,
                Next::Block { frames, head } => {
                    self.ready.extend_from_slice(&head);
                    used += frames;
                }
            }
        }
        self.raw.drain(..used);
    }
}

/// What stands at the start of a frame.
enum Next {
    /// Too little to tell.
    Partial,
    /// So many bytes that pass as they are.
    Pass(usize),
    /// Something that is no frame.
    Lost,
    /// A block of header fields in so many bytes, and the one frame that takes their place.
    Block { frames: usize, head: Vec<u8> },
}

fn next(bytes: &[u8]) -> Next {
    let Some(first) = frame(bytes) else { return Next::Partial };
    if first.len > FRAME_BYTES_MAX {
        return Next::Lost;
    }
    let whole = FRAME_HEAD_BYTES + first.len;
    if first.kind != kind::HEADERS {
        return Next::Pass(whole);
    }
    let Some(payload) = bytes.get(FRAME_HEAD_BYTES..whole) else { return Next::Partial };
    let Some((priority, part)) = parts(payload, first.flags) else { return Next::Pass(whole) };
    let (mut block, mut frames, mut flags) = (part.to_vec(), whole, first.flags);
    while flags & flag::END_HEADERS == 0 {
        let Some(more) = frame(&bytes[frames..]) else { return Next::Partial };
        let end = frames + FRAME_HEAD_BYTES + more.len;
        let is_long = block.len() + more.len > FRAME_BYTES_MAX || frames > 2 * FRAME_BYTES_MAX;
        if more.kind != kind::CONTINUATION || is_long {
            return Next::Pass(frames);
        }
        let Some(part) = bytes.get(frames + FRAME_HEAD_BYTES..end) else { return Next::Partial };
        block.extend_from_slice(part);
        (frames, flags) = (end, more.flags);
    }
    match renamed(&block) {
        Some(block) if priority.len() + block.len() <= FRAME_BYTES_MAX => {
            let flags = first.flags & !flag::PADDED | flag::END_HEADERS;
            let mut head = Vec::with_capacity(FRAME_HEAD_BYTES + priority.len() + block.len());
            head.extend_from_slice(&((priority.len() + block.len()) as u32).to_be_bytes()[1..]);
            head.extend_from_slice(&[kind::HEADERS, flags]);
            head.extend_from_slice(&bytes[5..FRAME_HEAD_BYTES]);
            head.extend_from_slice(priority);
            head.extend_from_slice(&block);
            Next::Block { frames, head }
        }
        _ => Next::Pass(frames),
    }
}

struct FrameHead {
    len: usize,
    kind: u8,
    flags: u8,
}

fn frame(bytes: &[u8]) -> Option<FrameHead> {
    let [a, b, c, kind, flags, ..] = *bytes.get(..FRAME_HEAD_BYTES)? else { return None };
    Some(FrameHead { len: u32::from_be_bytes([0, a, b, c]) as usize, kind, flags })
}

/// The priority and the fields in the payload of a frame, without padding.
fn parts(payload: &[u8], flags: u8) -> Option<(&[u8], &[u8])> {
    let mut rest = payload;
    if flags & flag::PADDED != 0 {
        let (&padding, after) = rest.split_first()?;
        rest = after.get(..after.len().checked_sub(usize::from(padding))?)?;
    }
    let priority = if flags & flag::PRIORITY == 0 { 0 } else { 5 };
    rest.split_at_checked(priority)
}

/// The block with another authority; `None` if it names none, or is malformed.
fn renamed(block: &[u8]) -> Option<Vec<u8>> {
    let mut at = 0;
    while at < block.len() {
        let first = block[at];
        // A field of the table, or a new size for it.
        if first & 0x80 != 0 || first & 0xe0 == 0x20 {
            at = integer(block, at, if first & 0x80 != 0 { 7 } else { 5 })?.1;
            continue;
        }
        let bits = if first & 0x40 != 0 { 6 } else { 4 };
        let (index, mut after) = integer(block, at, bits)?;
        let mut is_authority = index == AUTHORITY_INDEX;
        if index == 0 {
            let (start, end) = text(block, after)?;
            is_authority = matches!(&block[start..end], AUTHORITY | AUTHORITY_PACKED);
            after = end;
        }
        let (_, end) = text(block, after)?;
        if is_authority {
            return Some([&block[..after], LOCALHOST, &block[end..]].concat());
        }
        at = end;
    }
    None
}

/// Where the text whose length stands at `at` begins and ends.
fn text(block: &[u8], at: usize) -> Option<(usize, usize)> {
    let (len, start) = integer(block, at, 7)?;
    let end = start.checked_add(len).filter(|end| *end <= block.len())?;
    Some((start, end))
}

/// The integer in the lowest `bits` of the byte at `at` and, if they are all set, after it (RFC
/// 7541, section 5.1); and where it ends.
fn integer(block: &[u8], at: usize, bits: u32) -> Option<(usize, usize)> {
    let mask = (1usize << bits) - 1;
    let mut value = usize::from(*block.get(at)?) & mask;
    let mut end = at + 1;
    if value < mask {
        return Some((value, end));
    }
    // Three bytes more say all that fits into a block.
    for shift in [0, 7, 14] {
        let byte = *block.get(end)?;
        value += usize::from(byte & 0x7f) << shift;
        end += 1;
        if byte & 0x80 == 0 {
            return Some((value, end));
        }
    }
    None
}

impl<S: AsyncRead + Unpin> AsyncRead for Renamed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.at == this.ready.len() {
            (this.at, this.ready) = (0, std::mem::take(&mut this.ready));
            this.ready.clear();
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                // The end: what was begun passes as it is.
                this.is_lost = true;
                this.advance();
                if this.ready.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                break;
            }
            this.raw.extend_from_slice(read.filled());
            this.advance();
        }
        let rest = &this.ready[this.at..];
        let count = rest.len().min(room.remaining());
        room.put_slice(&rest[..count]);
        this.at += count;
        Poll::Ready(Ok(()))
    }
}

pass_writes!(Renamed, this => this.stream);

#[cfg(test)]
mod tests;
