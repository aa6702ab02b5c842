//! Writes a snapshot file through a buffer of bounded size, with a running checksum.

use std::io::{self, Write};

use tollway_core::{State, Timestamp};

use super::{CALENDAR_WINDOW, CONCURRENCY, END, SLIDING_WINDOW};
use crate::hash::{Checksum, Fingerprint};
use crate::numbers::Numbers;
use crate::slot::Slot;
use crate::table::Table;
use crate::variable_states::{Entry, Shard};

/// What is gathered before it is written.
const SPILL_BYTES: usize = 64 * 1_024;

/// Words on their way to a file.
pub(super) struct Writer<W> {
    out: W,
    buffer: Vec<u8>,
    checksum: Checksum,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(out: W) -> Self {
        // Room for what is put before the next look at the length.
        let buffer = Vec::with_capacity(SPILL_BYTES + 1_024);
        Self { out, buffer, checksum: Checksum::new() }
    }

    /// Adds words to the buffer; it does not wait for the file.
    pub(super) fn put(&mut self, words: &[u64]) {
        for &word in words {
            self.checksum.absorb(word);
            self.buffer.extend(word.to_le_bytes());
        }
    }

    /// Writes the buffer if there is enough in it.
    pub(super) fn spill(&mut self) -> io::Result<()> {
        if self.is_full() {
            self.out.write_all(&self.buffer)?;
            self.buffer.clear();
            // One large state must not stay here for as long as the file is written.
            self.buffer.shrink_to(SPILL_BYTES + 1_024);
        }
        Ok(())
    }

    /// The numbers that states may be kept under.
    pub(super) fn numbers(&mut self, numbers: &Numbers) -> io::Result<()> {
        for (family, mark, known) in numbers.all() {
            self.put(&[family, mark]);
            self.put(&known.algorithm.numbers());
            self.put(&[known.edition]);
            self.spill()?;
        }
        self.put(&[END]);
        Ok(())
    }

    /// The slots of a table that say something at `now`.
    pub(super) fn table<S: Slot>(&mut self, table: &Table<S>, now: Timestamp) -> io::Result<()> {
        for (fingerprint, view) in table.views().filter(|(_, view)| view.vacant_at > now) {
            let Fingerprint { tag, owner, .. } = fingerprint;
            let [low, high] = view.words;
            let (vacant_at, limited) = (view.vacant_at.as_nanos(), view.limited.into());
            self.put(&[tag, owner, vacant_at, limited, low, high]);
            self.spill()?;
        }
        self.put(&[END]);
        Ok(())
    }

    /// Puts those of `listed` that are still there, until the buffer is full; the others of them.
    pub(super) fn entries<'a>(
        &mut self,
        shard: &Shard,
        mut listed: &'a [Fingerprint],
    ) -> &'a [Fingerprint] {
        while let [first, others @ ..] = listed
            && !self.is_full()
        {
            if let Some(entry) = shard.entry(*first) {
                self.entry(entry);
            }
            listed = others;
        }
        listed
    }

    /// Writes what is left, and the checksum of all.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let checksum = self.checksum.finish();
        self.buffer.extend(checksum.into_iter().flat_map(u64::to_le_bytes));
        self.out.write_all(&self.buffer)?;
        self.out.flush()
    }

    fn is_full(&self) -> bool {
        self.buffer.len() >= SPILL_BYTES
    }

    fn entry(&mut self, entry: &Entry) {
        let Fingerprint { tag, mark, owner } = entry.fingerprint;
        self.put(&[tag, mark, owner, entry.vacant_at.as_nanos(), entry.limited.into()]);
        match &entry.state {
            State::SlidingWindow(state) => {
                self.put(&[SLIDING_WINDOW, state.cells().len() as u64]);
                state.cells().for_each(|cell| self.put(&[cell.tick, cell.units]));
            }
            State::Concurrency(state) => {
                self.put(&[CONCURRENCY, state.holds().len() as u64]);
                for hold in state.holds() {
                    let id = [hold.id as u64, (hold.id >> 64) as u64];
                    self.put(&[id[0], id[1], hold.units, hold.expires_at.as_nanos()]);
                }
            }
            State::CalendarWindow(state) => {
                self.put(&[CALENDAR_WINDOW, 1]);
                self.put(&state.to_words());
            }
            _ => unreachable!("only states of variable size are wide"),
        }
    }
}
