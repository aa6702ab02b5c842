//! Slots by the hash of their names: eight bytes each, grown in small steps.
//!
//! Open addressing, in many small tables that grow by a quarter. One large table that doubles would
//! take twice the memory right after it has, and a pause to move everything.
//!
//! ```text
//!   hash  | 8 bits: which table | ... | 32 bits: tag | ...
//!   entry | tag | slot + 1, or 0 where there is none
//! ```
//!
//! The tag says where in its table an entry belongs, so entries move without a look at their names.
//! Names are not here: the caller compares them, and those of one tag are all offered.

const TABLES: usize = 256;
const SMALLEST: usize = 8;

/// Slots by hash.
#[derive(Debug)]
pub(super) struct Index {
    tables: Box<[Table]>,
    len: usize,
}

#[derive(Clone, Debug, Default)]
struct Table {
    entries: Box<[u64]>,
    used: usize,
}

impl Index {
    pub(super) fn new() -> Self {
        Self { tables: vec![Table::default(); TABLES].into_boxed_slice(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The slot of that hash for which `is_it` holds.
    pub(super) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let table = &self.tables[table_of(hash)];
        table.position(tag_of(hash), is_it).and_then(|at| slot_of(table.entries[at]))
    }

    /// Adds a slot that is not there yet.
    pub(super) fn insert(&mut self, hash: u64, slot: u32) {
        self.tables[table_of(hash)].insert(tag_of(hash), slot);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, hash: u64, slot: u32) {
        let table = &mut self.tables[table_of(hash)];
        if let Some(at) = table.position(tag_of(hash), |found| found == slot) {
            table.remove(at);
            self.len -= 1;
        }
    }
}

impl Table {
    fn position(&self, tag: u32, is_it: impl Fn(u32) -> bool) -> Option<usize> {
        let mut at = self.home(tag);
        // A table is never full, so an empty place ends every search.
        while let Some(slot) = self.entries.get(at).copied().and_then(slot_of) {
            if tag_in(self.entries[at]) == tag && is_it(slot) {
                return Some(at);
            }
            at = self.next(at);
        }
        None
    }

    fn insert(&mut self, tag: u32, slot: u32) {
        if (self.used + 1) * 6 > self.entries.len() * 5 {
            self.grow();
        }
        self.put(entry(tag, slot));
        self.used += 1;
    }

    /// Closes the gap: a search ends at an empty place, so none may be left before an entry that
    /// stands further from its home.
    fn remove(&mut self, at: usize) {
        let (mut gap, mut look) = (at, self.next(at));
        while self.entries[look] != 0 {
            let home = self.home(tag_in(self.entries[look]));
            if self.distance(home, look) >= self.distance(gap, look) {
                self.entries[gap] = self.entries[look];
                gap = look;
            }
            look = self.next(look);
        }
        self.entries[gap] = 0;
        self.used -= 1;
    }

    fn grow(&mut self) {
        let len = (self.entries.len() + self.entries.len() / 4).max(SMALLEST);
        let old = std::mem::replace(&mut self.entries, vec![0; len].into_boxed_slice());
        for entry in old.into_iter().filter(|entry| *entry != 0) {
            self.put(entry);
        }
    }

    fn put(&mut self, entry: u64) {
        let mut at = self.home(tag_in(entry));
        while self.entries[at] != 0 {
            at = self.next(at);
        }
        self.entries[at] = entry;
    }

    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.entries.len() as u64) >> 32) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 < self.entries.len() { at + 1 } else { 0 }
    }

    /// Steps from one place to a later one, around the end.
    fn distance(&self, from: usize, to: usize) -> usize {
        if from <= to { to - from } else { self.entries.len() - from + to }
    }
}

fn table_of(hash: u64) -> usize {
    (hash >> 56) as usize % TABLES
}

fn tag_of(hash: u64) -> u32 {
    (hash >> 16) as u32
}

fn entry(tag: u32, slot: u32) -> u64 {
    u64::from(tag) << 32 | (u64::from(slot) + 1)
}

fn tag_in(entry: u64) -> u32 {
    (entry >> 32) as u32
}

fn slot_of(entry: u64) -> Option<u32> {
    (entry as u32).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Few tags in few tables, at both ends of the range: entries share homes and go around the
    /// end.
    fn hash() -> impl Strategy<Value = u64> {
        let tag = prop_oneof![0u64..4, Just(1 << 31), (u64::from(u32::MAX) - 4)..1 << 32];
        (0u64..2, tag).prop_map(|(table, tag)| table << 56 | tag << 16)
    }

    proptest! {
        #[test]
        fn what_was_put_in_and_not_taken_out_is_found(
            steps in prop::collection::vec((hash(), 0u32..64, any::<bool>()), 1..400),
        ) {
            let (mut index, mut model) = (Index::new(), BTreeMap::new());
            for (hash, slot, is_insert) in steps {
                if is_insert && !model.contains_key(&slot) {
                    index.insert(hash, slot);
                    model.insert(slot, hash);
                } else if let Some(hash) = model.remove(&slot) {
                    index.remove(hash, slot);
                }
                prop_assert_eq!(index.len(), model.len());
                for known in 0..64 {
                    let hash = model.get(&known).copied().unwrap_or(hash);
                    let found = index.find(hash, |slot| slot == known);
                    prop_assert_eq!(found.is_some(), model.contains_key(&known));
                }
            }
        }
    }

    #[test]
    fn no_more_than_a_third_of_a_table_is_empty_once_it_has_grown() {
        let mut table = Table::default();
        for slot in 0..10_000u32 {
            table.insert(slot.wrapping_mul(0x9e37_79b9), slot);
            assert!(slot < 64 || table.entries.len() * 2 <= table.used * 3 + 8, "{slot}");
        }
    }
}
