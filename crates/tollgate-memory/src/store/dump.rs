//! The store as a file, so that a restart is no amnesty.
//!
//! ```text
//!   magic "TOLLGATE" | version u64                                     16 bytes
//!   seed 2 x u64                                                       16 bytes
//!   narrow table, double table: slots u64, count u64, then per used slot
//!             tag u64, owner u64, vacant_at u64, limited u64, words 2 x u64   48 bytes each
//!   wide: count u64, then per entry
//!             tag u64, owner u64, vacant_at u64, kind u64, count u64, then per part
//!               cell: tick u64, units u64 | hold: id 2 x u64, units u64, expires_at u64
//!   checksum of all of the above, 2 x u64
//! ```
//!
//! All integers little-endian. The file holds the seed of the fingerprints, which is a secret: it
//! is made readable by its owner only. Keys themselves are not in it.
//!
//! A file is read whole, checked whole, and only then loaded: nothing is ever half loaded. The
//! capacity must be the one it was written with.
//! Open reservations are left out: their units stay taken until time brings them back.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use tollgate_core::concurrency::{self, Hold};
use tollgate_core::sliding_window::{self, Cell};
use tollgate_core::{State, Timestamp};

use super::MemoryStore;
use crate::capacity::Capacity;
use crate::hash::{Fingerprint, Seed, siphash};
use crate::slot::{Content, Slot};
use crate::sync::lock;
use crate::table::Table;
use crate::wide::{Entry, Wide};

const MAGIC: &[u8; 8] = b"TOLLGATE";
const VERSION: u64 = 3;
const SLIDING_WINDOW: u64 = 1;
const CONCURRENCY: u64 = 2;
/// Checksums need no secret: they guard against accidents, not against who can write the file.
const CHECKSUM_KEY: [u64; 2] = [0, 0];

impl MemoryStore {
    /// Writes every state that says something at `now` to `path`, which is replaced as a whole. It
    /// waits for a dump of this store that is under way.
    ///
    /// # Errors
    ///
    /// If the file cannot be written: what was there before is left as it was, or, if only its
    /// folder could not be synced, may be there again after a crash.
    pub fn dump(&self, path: impl AsRef<Path>, now: Timestamp) -> Result<(), DumpError> {
        let _dumping = lock(&self.dumping);
        let bytes = self.encode(now);
        let path = path.as_ref();
        // A name of its own, and a new file: what somebody else put there keeps its own mode, and two
        // processes would mix.
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(format!(".{:016x}.unfinished", Seed::random().words[0]));
        let write = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&unfinished)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&unfinished, path)?;
            // Until then a crash of the machine may bring the old file back.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&unfinished);
            DumpError::io(error)
        })
    }

    /// The store that [`Self::dump`] wrote.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is not whole, or was written with another capacity.
    pub fn restore(path: impl AsRef<Path>, capacity: Capacity) -> Result<Self, DumpError> {
        let bytes = fs::read(path).map_err(DumpError::io)?;
        let mut reader = Reader::checked(&bytes)?;
        let seed = Seed::new([reader.word()?, reader.word()?]);
        let store = Self::with_seed(capacity, seed);
        reader.table(&store.narrow)?;
        reader.table(&store.double)?;
        for _ in 0..reader.word()? {
            let entry = reader.wide()?;
            store.wide.lock(Wide::shard_of(entry.fingerprint)).push(entry);
        }
        if reader.rest.is_empty() { Ok(store) } else { Err(DumpErrorKind::Corrupt.into()) }
    }

    fn encode(&self, now: Timestamp) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        put(&mut bytes, &[VERSION, self.seed.words[0], self.seed.words[1]]);
        put_table(&mut bytes, &self.narrow, now);
        put_table(&mut bytes, &self.double, now);
        let count_at = bytes.len();
        put(&mut bytes, &[0]);
        let mut count = 0u64;
        for shard in self.wide.shards() {
            for entry in shard.entries().iter().filter(|entry| entry.vacant_at > now) {
                put_wide(&mut bytes, entry);
                count += 1;
            }
        }
        bytes[count_at..count_at + 8].copy_from_slice(&count.to_le_bytes());
        let checksum = siphash(CHECKSUM_KEY, 0, &bytes);
        put(&mut bytes, &checksum);
        bytes
    }
}

fn put_table<S: Slot>(bytes: &mut Vec<u8>, table: &Table<S>, now: Timestamp) {
    let saying: Vec<_> = table.views().filter(|(_, view)| view.vacant_at > now).collect();
    put(bytes, &[table.slots() as u64, saying.len() as u64]);
    for (Fingerprint { tag, owner }, view) in saying {
        let [low, high] = view.words;
        let vacant_at = view.vacant_at.as_nanos();
        put(bytes, &[tag, owner, vacant_at, view.limited.into(), low, high]);
    }
}

fn put(bytes: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
}

fn put_wide(bytes: &mut Vec<u8>, entry: &Entry) {
    let Fingerprint { tag, owner } = entry.fingerprint;
    put(bytes, &[tag, owner, entry.vacant_at.as_nanos()]);
    match &entry.state {
        State::SlidingWindow(state) => {
            put(bytes, &[SLIDING_WINDOW, state.cells().len() as u64]);
            state.cells().for_each(|cell| put(bytes, &[cell.tick, cell.units]));
        }
        State::Concurrency(state) => {
            put(bytes, &[CONCURRENCY, state.holds().len() as u64]);
            for hold in state.holds() {
                let id = [hold.id as u64, (hold.id >> 64) as u64];
                put(bytes, &[id[0], id[1], hold.units, hold.expires_at.as_nanos()]);
            }
        }
        _ => unreachable!("only states of variable size are wide"),
    }
}

/// What is left of a file whose checksum holds.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn checked(bytes: &'a [u8]) -> Result<Self, DumpError> {
        let Some((body, checksum)) = bytes.split_last_chunk::<16>() else {
            return Err(DumpErrorKind::Corrupt.into());
        };
        let [low, high] = siphash(CHECKSUM_KEY, 0, body);
        if checksum[..8] != low.to_le_bytes() || checksum[8..] != high.to_le_bytes() {
            return Err(DumpErrorKind::Corrupt.into());
        }
        let Some(rest) = body.strip_prefix(MAGIC) else {
            return Err(DumpErrorKind::Corrupt.into());
        };
        let mut reader = Self { rest };
        if reader.word()? != VERSION {
            return Err(DumpErrorKind::Version.into());
        }
        Ok(reader)
    }

    fn word(&mut self) -> Result<u64, DumpError> {
        let (word, rest) =
            self.rest.split_first_chunk().ok_or(DumpError::from(DumpErrorKind::Corrupt))?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*word))
    }

    fn table<S: Slot>(&mut self, table: &Table<S>) -> Result<(), DumpError> {
        if self.word()? != table.slots() as u64 {
            return Err(DumpErrorKind::Capacity.into());
        }
        for _ in 0..self.word()? {
            let fingerprint = Fingerprint { tag: self.word()?, owner: self.word()? };
            let vacant_at = Timestamp::from_nanos(self.word()?);
            let limited = self.word()? != 0;
            let words = [self.word()?, self.word()?];
            if fingerprint.tag == 0 {
                return Err(DumpErrorKind::Corrupt.into());
            }
            // A table of this size held them all.
            let _ =
                table.restore(fingerprint, Content { words, vacant_at, limited }, Timestamp::MIN);
        }
        Ok(())
    }

    fn wide(&mut self) -> Result<Entry, DumpError> {
        let fingerprint = Fingerprint { tag: self.word()?, owner: self.word()? };
        let vacant_at = Timestamp::from_nanos(self.word()?);
        let kind = self.word()?;
        let count = self.word()?;
        // Parts are read one by one: a count that lies runs out of file, not of memory.
        let state = match kind {
            SLIDING_WINDOW => {
                let cells: Result<Vec<_>, _> = (0..count).map(|_| self.cell()).collect();
                State::SlidingWindow(sliding_window::State::from_cells(cells?))
            }
            CONCURRENCY => {
                let holds: Result<Vec<_>, _> = (0..count).map(|_| self.hold()).collect();
                State::Concurrency(concurrency::State::from_holds(holds?))
            }
            _ => return Err(DumpErrorKind::Corrupt.into()),
        };
        Ok(Entry::new(fingerprint, state, vacant_at))
    }

    fn cell(&mut self) -> Result<Cell, DumpError> {
        Ok(Cell { tick: self.word()?, units: self.word()? })
    }

    fn hold(&mut self) -> Result<Hold, DumpError> {
        let id = u128::from(self.word()?) | u128::from(self.word()?) << 64;
        let units = self.word()?;
        Ok(Hold { id, units, expires_at: Timestamp::from_nanos(self.word()?) })
    }
}

/// Why a store could not be written to or read from a file.
#[derive(Debug)]
pub struct DumpError {
    kind: DumpErrorKind,
    source: Option<io::Error>,
}

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DumpErrorKind {
    /// The file cannot be read or written.
    Io,
    /// The file is cut short, changed, or no such file at all.
    Corrupt,
    /// The file was written by another version.
    Version,
    /// The file was written by a store with another number of keys.
    Capacity,
}

impl DumpError {
    fn io(source: io::Error) -> Self {
        Self { kind: DumpErrorKind::Io, source: Some(source) }
    }

    /// What is wrong.
    #[must_use]
    pub const fn kind(&self) -> DumpErrorKind {
        self.kind
    }

    /// Whether another try may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        use io::ErrorKind::{Interrupted, ResourceBusy, StorageFull, TimedOut};
        let kind = self.source.as_ref().map(io::Error::kind);
        matches!(kind, Some(Interrupted | ResourceBusy | StorageFull | TimedOut))
    }
}

impl From<DumpErrorKind> for DumpError {
    fn from(kind: DumpErrorKind) -> Self {
        Self { kind, source: None }
    }
}

impl fmt::Display for DumpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            DumpErrorKind::Io => "the snapshot file cannot be read or written",
            DumpErrorKind::Corrupt => {
                "the snapshot file is cut short or damaged: nothing was loaded"
            }
            DumpErrorKind::Version => {
                "the snapshot file was written by another version of Tollgate"
            }
            DumpErrorKind::Capacity => {
                "the snapshot file was written with another capacity: set the same number of keys"
            }
        })
    }
}

impl std::error::Error for DumpError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
