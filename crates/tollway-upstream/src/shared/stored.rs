//! A document as the store has it, before anything in it is understood.
//!
//! ```text
//!   version: process, call (16 bytes) | format | last call of each process | body
//! ```
//!
//! The version says who wrote it last; no two writes share one, so a document that is lost and
//! written anew is told from what it was. The format is looked at before anything else is.

use crate::budget::encoding::{Encoded, Reader, Writer};

/// The bytes before what a document holds: who wrote it last, by its process and its call.
pub(super) const VERSION_BYTES: usize = 16;
/// Told apart before anything is read: another format is never misread.
const FORMAT: u8 = 3;
/// Processes whose last call is remembered.
const PROCESSES_MAX: usize = 256;

/// The bytes of a document, as the store has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) version: Vec<u8>,
    pub(super) calls: Vec<(u64, u64)>,
    pub(super) body: Vec<u8>,
}

impl Stored {
    /// A document as the store answered it; none if another version of this program wrote it in
    /// another format.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let mut from = Reader::new(bytes);
        let version = from.take(VERSION_BYTES)?.to_vec();
        if from.take(1)? != [FORMAT] {
            return None;
        }
        let calls = Encoded::read(&mut from)?;
        Some(Self { version, calls, body: from.rest().to_vec() })
    }

    /// As the store keeps it once `process` has written it with its call of that number.
    pub(super) fn written_by(&self, process: u64, call: u64) -> (Self, Vec<u8>) {
        let mut calls = self.calls.clone();
        calls.retain(|(other, _)| *other != process);
        calls.push((process, call));
        let over = calls.len().saturating_sub(PROCESSES_MAX);
        calls.drain(..over);
        let version = [process.to_be_bytes(), call.to_be_bytes()].concat();
        let mut out = Writer::default();
        out.bytes.extend_from_slice(&version);
        out.bytes.push(FORMAT);
        calls.write(&mut out);
        out.bytes.extend_from_slice(&self.body);
        (Self { version, calls, body: self.body.clone() }, out.bytes)
    }

    /// The last call of a process that changed it.
    pub(super) fn last_call_of(&self, process: u64) -> Option<u64> {
        self.calls.iter().find(|(other, _)| *other == process).map(|(_, call)| *call)
    }
}
