//! The last decision on each of many keys that are on no list: a table in which newer ones replace
//! older ones.
//!
//! ```text
//!   hash --which of the slots--> [ tag | record ]     another key of the same slot: overwritten
//! ```
//!
//! A customer who was denied three times is not among the most denied, and still asks why. The
//! table has a fixed size and is made when it is first needed; a key is known by its hash, which
//! differs from start to start, so that nobody can choose keys that overwrite another one's.

use super::Record;

const SLOTS: usize = 4_096;

/// The last decisions, by hash of the key.
#[derive(Debug, Default)]
pub(super) struct Recent(Vec<Option<(u64, Record)>>);

impl Recent {
    /// Notes the last decision on a key. An older one than the known one counts nothing.
    pub(super) fn note(&mut self, hash: u64, record: Record) {
        if self.0.is_empty() {
            self.0.resize(SLOTS, None);
        }
        let slot = &mut self.0[Self::slot(hash)];
        if slot.is_none_or(|(tag, known)| tag != hash || known.at <= record.at) {
            *slot = Some((hash, record));
        }
    }

    /// The last decision on a key, if it is still known.
    pub(super) fn of(&self, hash: u64) -> Option<Record> {
        let (tag, record) = (*self.0.get(Self::slot(hash))?)?;
        (tag == hash).then_some(record)
    }

    /// By bits that choose nothing else: those that do are alike for keys that share a cell.
    const fn slot(hash: u64) -> usize {
        (hash >> 44) as usize % SLOTS
    }
}
