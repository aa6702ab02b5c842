//! The store as a file, so that a restart is no amnesty.
//!
//! ```text
//!   magic "TOLLWAY" | version u64 | written_at u64                    24 bytes
//!   seed 2 x u64                                                       16 bytes
//!   narrow table, double table: per slot that says something
//!             tag u64, owner u64, vacant_at u64, limited u64, words 2 x u64   48 bytes each
//!             then a tag of 0
//!   variable size: per entry that says something
//!             tag u64, mark u64, owner u64, vacant_at u64, limited u64, kind u64, count u64,
//!             then per part
//!               cell: tick u64, units u64 | hold: id 2 x u64, units u64, expires_at u64
//!               | calendar window: start u64, end u64, debt u64
//!             then a tag of 0
//!   numbers: per set that states may be kept under
//!             family u64, mark u64, algorithm 4 x u64, edition u64             56 bytes each
//!             then a family of 0
//!   checksum of all of the above, 2 x u64
//! ```
//!
//! All integers little-endian. The file holds the seed of the fingerprints, which is a secret: it
//! is made readable by its owner only. Keys themselves are not in it.
//!
//! A file is written and read through a buffer of bounded size, whatever the store holds: sections
//! end with a mark and not by a count, which nobody knows before the last slot was looked at. No
//! lock is held while the disk is waited for. A file is checked whole, and only then loaded in a
//! second reading: nothing is ever half loaded.
//!
//! Of a key that changes while it is written one state or both are in the file; the later one
//! counts. Open reservations are left out: their units stay taken until time brings them back.

mod error;
mod file;
mod reader;
mod writer;

use std::io;
use std::path::Path;

use tollway_core::Timestamp;

use super::MemoryStore;
use crate::capacity::{Capacity, Pressure};
use crate::hash::Seed;
use crate::sync::lock;
use crate::variable_states::VariableStates;

pub use error::{DumpError, DumpErrorKind};
pub use file::DumpFile;
use reader::Reader;
use writer::Writer;

const MAGIC: u64 = u64::from_le_bytes(*b"TOLLWAY\0");
const VERSION: u64 = 4;
const SLIDING_WINDOW: u64 = 1;
const CONCURRENCY: u64 = 2;
const CALENDAR_WINDOW: u64 = 3;
/// In the place of a tag, which is never zero: the section is over.
const END: u64 = 0;

impl MemoryStore {
    /// Writes every state that says something at `now` to `path`, which is replaced as a whole. It
    /// waits for a dump of this store that is under way.
    ///
    /// It takes a buffer of 64 KiB, the largest single state, and 16 bytes for each key of a
    /// sixteenth of the states of variable size.
    ///
    /// # Errors
    ///
    /// If the file cannot be written: what was there before is left as it was, or, if only its
    /// folder could not be synced, may be there again after a crash.
    pub fn dump(&self, path: impl AsRef<Path>, now: Timestamp) -> Result<(), DumpError> {
        let _dumping = lock(&self.dumping);
        DumpFile::new(path).replace(|file| self.write(Writer::new(file), now))
    }

    /// The store that [`Self::dump`] wrote, in a capacity that may be another. In a smaller one,
    /// keys that have nothing left are the last to be dropped; [`Self::dropped`] tells how many
    /// were.
    ///
    /// States are as they were at [`Self::written_at`]: a clock that is behind it should start
    /// there.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is not whole, or is of another version.
    pub fn restore(path: impl AsRef<Path>, capacity: Capacity) -> Result<Self, DumpError> {
        let mut reader = Reader::open(path.as_ref())?;
        let written_at = Timestamp::from_nanos(reader.word()?);
        let seed = Seed::new([reader.word()?, reader.word()?]);
        let mut store = Self::with_seed(capacity, seed);
        store.written_at = Some(written_at);
        reader.table(&store.narrow, written_at)?;
        reader.table(&store.double, written_at)?;
        while let Some(entry) = reader.entry()? {
            let mut shard = store.variable.lock(VariableStates::shard_of(entry.fingerprint));
            shard.restore(entry, written_at);
        }
        reader.numbers(&store.numbers, written_at)?;
        reader.finish()?;
        store.count_dropped();
        Ok(store)
    }

    /// Keys of the file it was restored from that found no room. They are no part of
    /// [`Self::pressure`]: nobody who asked was refused.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    fn count_dropped(&mut self) {
        let Pressure { forgotten, refused, .. } = self.pressure();
        self.dropped = forgotten + refused;
        self.narrow.start_over();
        self.double.start_over();
        self.variable.start_over();
    }

    /// The reading of the clock with which the file was written that the store was restored from.
    pub const fn written_at(&self) -> Option<Timestamp> {
        self.written_at
    }

    fn write(&self, mut writer: Writer<impl io::Write>, now: Timestamp) -> io::Result<()> {
        let [low, high] = self.seed.words;
        writer.put(&[MAGIC, VERSION, now.as_nanos(), low, high]);
        writer.table(&self.narrow, now)?;
        writer.table(&self.double, now)?;
        for shard in 0..VariableStates::SHARDS {
            let listed = self.variable.lock(shard).listed(now);
            let mut rest = listed.as_slice();
            while !rest.is_empty() {
                // Whoever waits for this lock must not wait for the disk.
                rest = writer.entries(&self.variable.lock(shard), rest);
                writer.spill()?;
            }
        }
        writer.put(&[END]);
        // Last: of every state above it is known by now what it is kept under.
        writer.numbers(&self.numbers)?;
        writer.finish()
    }
}
