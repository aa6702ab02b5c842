//! Reads a snapshot file: once to check it, and once more, if it is whole, to load it.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _};
use std::path::Path;

use tollway_core::calendar_window;
use tollway_core::concurrency::{self, Hold};
use tollway_core::sliding_window::{self, Cell};
use tollway_core::{Algorithm, State, Timestamp};

use super::error::DumpError;
use super::{CALENDAR_WINDOW, CONCURRENCY, END, MAGIC, SLIDING_WINDOW, VERSION};
use crate::hash::{Checksum, Fingerprint};
use crate::numbers::{Known, Numbers};
use crate::packed::Layout;
use crate::slot::{Content, Slot};
use crate::table::Table;
use crate::variable_states::Entry;

const BUFFER_BYTES: usize = 64 * 1_024;
const CHECKSUM_WORDS: u64 = 2;

/// What is left of a file whose checksum holds.
pub(super) struct Reader {
    file: BufReader<File>,
    /// Words before the checksum.
    left: u64,
}

impl Reader {
    /// The file after its magic and version, checked whole.
    pub(super) fn open(path: &Path) -> Result<Self, DumpError> {
        let cannot = |error| DumpError::io("the snapshot file cannot be opened".to_owned(), error);
        let metadata = std::fs::metadata(path).map_err(cannot)?;
        // Opening a pipe would wait for whoever writes to it.
        if !metadata.is_file() {
            return Err(DumpError::not_a_file());
        }
        let mut file = BufReader::with_capacity(BUFFER_BYTES, File::open(path).map_err(cannot)?);
        let bytes = metadata.len();
        if bytes == 0 {
            return Err(DumpError::corrupt("is empty"));
        }
        let words = bytes / 8;
        if words < 2 + CHECKSUM_WORDS || bytes % 8 != 0 {
            return Err(DumpError::corrupt("is cut short, or is not a snapshot"));
        }
        let left = words - CHECKSUM_WORDS;
        check(&mut file, left)?;
        file.rewind().map_err(unreadable)?;
        let mut reader = Self { file, left };
        // Checked before: only the version is still to be seen.
        let _magic = reader.word()?;
        match reader.word()? {
            VERSION => Ok(reader),
            other => Err(DumpError::version(other)),
        }
    }

    pub(super) fn word(&mut self) -> Result<u64, DumpError> {
        self.left = self.left.checked_sub(1).ok_or_else(contradictory)?;
        next(&mut self.file)
    }

    /// Notes the numbers that states were kept under.
    pub(super) fn numbers(
        &mut self,
        numbers: &Numbers,
        written_at: Timestamp,
    ) -> Result<(), DumpError> {
        loop {
            let family = self.word()?;
            if family == END {
                return Ok(());
            }
            let mark = self.word()?;
            let words = [self.word()?, self.word()?, self.word()?, self.word()?];
            let algorithm = Algorithm::from_numbers(words).ok_or_else(contradictory)?;
            let known = Known { algorithm, edition: self.word()? };
            numbers.restore(family, mark, known, Layout::of(&algorithm, written_at));
        }
    }

    /// Puts the keys of one table back, as they were at `written_at`.
    pub(super) fn table<S: Slot>(
        &mut self,
        table: &Table<S>,
        written_at: Timestamp,
    ) -> Result<(), DumpError> {
        loop {
            let tag = self.word()?;
            if tag == END {
                return Ok(());
            }
            let fingerprint = Fingerprint { tag, mark: 0, owner: self.word()? };
            let vacant_at = Timestamp::from_nanos(self.word()?);
            let limited = self.word()? != 0;
            let words = [self.word()?, self.word()?];
            // What a smaller table has no room for is dropped, and counted by it.
            let _ = table.restore(fingerprint, Content { words, vacant_at, limited }, written_at);
        }
    }

    /// The next state of variable size, if there is one more.
    pub(super) fn entry(&mut self) -> Result<Option<Entry>, DumpError> {
        let tag = self.word()?;
        if tag == END {
            return Ok(None);
        }
        let fingerprint = Fingerprint { tag, mark: self.word()?, owner: self.word()? };
        let vacant_at = Timestamp::from_nanos(self.word()?);
        let limited = self.word()? != 0;
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
            CALENDAR_WINDOW if count == 1 => {
                let words = [self.word()?, self.word()?, self.word()?];
                State::CalendarWindow(calendar_window::State::from_words(words))
            }
            _ => return Err(contradictory()),
        };
        Ok(Some(Entry::new(fingerprint, state, vacant_at, limited)))
    }

    /// Makes sure that nothing is left.
    pub(super) fn finish(self) -> Result<(), DumpError> {
        if self.left == 0 { Ok(()) } else { Err(contradictory()) }
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

/// Whether the checksum behind `words` words is theirs.
fn check(file: &mut BufReader<File>, words: u64) -> Result<(), DumpError> {
    let mut checksum = Checksum::new();
    for index in 0..words {
        let word = next(file)?;
        if index == 0 && word != MAGIC {
            return Err(DumpError::corrupt("is not a snapshot of Tollway"));
        }
        checksum.absorb(word);
    }
    if [next(file)?, next(file)?] == checksum.finish() {
        Ok(())
    } else {
        Err(DumpError::corrupt("is cut short or damaged: its checksum is wrong"))
    }
}

fn next(file: &mut BufReader<File>) -> Result<u64, DumpError> {
    let mut word = [0; 8];
    file.read_exact(&mut word).map_err(unreadable)?;
    Ok(u64::from_le_bytes(word))
}

fn unreadable(error: io::Error) -> DumpError {
    DumpError::io("the snapshot file cannot be read".to_owned(), error)
}

/// The checksum holds, and yet: somebody else's idea of the format.
fn contradictory() -> DumpError {
    DumpError::corrupt("contradicts itself")
}
