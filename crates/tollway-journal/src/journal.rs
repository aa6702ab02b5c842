//! The journal: what was committed since rows were last sorted into their tables.
//!
//! ```text
//!   most commits    rows ──> one record of the journal, and the same rows in memory
//!   now and then    rows in memory ──> their tables, and the journal is empty     (one commit)
//!   after a crash   records, in order ──> rows in memory ──> their tables
//! ```
//!
//! A row that comes and goes between two foldings never comes near a table: a commit writes one
//! leaf of one tree however many rows it holds, where each row would touch a tree of its own.
//!
//! **Invariants.** A record and a folding are each one commit of the database, so a crash leaves
//! all of it or nothing. The tables and then the journal, in order, are the truth; the rows in
//! memory are what the journal holds. Both are bounded by `bytes_max`: a commit that would exceed
//! it folds instead.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use redb::{ReadOnlyTable, WriteTransaction};

use crate::bytes_codec::{ByteReader, ByteWriter};
use crate::error::Error;
use crate::layout::{Layout, NamedTable, NumberedTable, Table, Written};

const JOURNAL: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("journal");

/// The first byte of an entry of a record: which table, and what of its row.
const NAMED_FROM: u8 = 16;
const PART_GONE: u8 = 32;
const REMOVED: u8 = 64;

/// A row that is newer than the tables.
#[derive(Debug)]
struct Fresh {
    /// `None` if it was removed.
    row: Option<Box<[u8]>>,
    /// Whether no table holds an older one.
    is_new: bool,
}

/// What was committed since the last folding, and what is to be committed next.
#[derive(Debug)]
pub struct Journal<L: Layout> {
    numbered: BTreeMap<(L::Numbered, u32, u64), Fresh>,
    named: BTreeMap<(L::Named, u32, Box<str>), Fresh>,
    parts_gone: BTreeSet<u32>,
    record: ByteWriter,
    records: u64,
    bytes: usize,
    bytes_max: usize,
}

impl<L: Layout> Journal<L> {
    /// The journal of `database`, empty: what a crash left in it is in the tables now.
    ///
    /// # Errors
    ///
    /// If the file is damaged, of another format, or cannot be written.
    pub fn open(database: &Database, bytes_max: usize, two_phase: bool) -> Result<Self, Error> {
        let mut journal = Self {
            numbered: BTreeMap::new(),
            named: BTreeMap::new(),
            parts_gone: BTreeSet::new(),
            record: ByteWriter::default(),
            records: 0,
            bytes: 0,
            bytes_max,
        };
        journal.replay(database)?;
        journal.fold(database, two_phase)?;
        Ok(journal)
    }

    /// Puts a row, to be committed next.
    pub fn put(&mut self, table: L::Numbered, part: u32, id: u64, row: &[u8]) {
        self.record.u8(table.index()).u32(part).u64(id).bytes(row);
        self.keep(table, part, id, row);
    }

    /// Removes a row, to be committed next.
    pub fn remove(&mut self, table: L::Numbered, part: u32, id: u64) {
        self.record.u8(table.index() | REMOVED).u32(part).u64(id);
        self.forget(table, part, id);
    }

    /// Puts a row that has a name.
    pub fn put_named(&mut self, table: L::Named, part: u32, name: &str, row: &[u8]) {
        self.record.u8(table.index() + NAMED_FROM).u32(part).text(name).bytes(row);
        self.keep_named(table, part, name, Some(row));
    }

    /// Removes a row that has a name.
    pub fn remove_named(&mut self, table: L::Named, part: u32, name: &str) {
        self.record.u8((table.index() + NAMED_FROM) | REMOVED).u32(part).text(name);
        self.keep_named(table, part, name, None);
    }

    /// Removes every row of a part.
    pub fn remove_part(&mut self, part: u32) {
        self.record.u8(PART_GONE).u32(part);
        self.forget_part(part);
    }

    /// The row, if one is here; `Some(None)` if it was removed, and a table may still hold it.
    pub fn get(&self, table: L::Numbered, part: u32, id: u64) -> Option<Option<&[u8]>> {
        self.numbered.get(&(table, part, id)).map(|fresh| fresh.row.as_deref())
    }

    /// As [`Self::get`], of a row that has a name.
    pub fn get_named(&self, table: L::Named, part: u32, name: &str) -> Option<Option<&[u8]>> {
        self.named.get(&(table, part, name.into())).map(|fresh| fresh.row.as_deref())
    }

    /// The rows of a part after `after` that have names, in order; those without bytes are gone.
    pub fn named_after(
        &self,
        (table, part, after): (L::Named, u32, &str),
    ) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        let from = Bound::Excluded((table, part, Box::from(after)));
        let rows = self.named.range((from, Bound::Unbounded));
        let rows = rows.take_while(move |((in_table, of, _), _)| (*in_table, *of) == (table, part));
        rows.map(|((.., name), fresh)| (&**name, fresh.row.as_deref()))
    }

    /// Makes durable what was put and removed since the last commit.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; then the journal is not to be used any more, but opened anew.
    pub fn commit(&mut self, database: &Database, two_phase: bool) -> Result<(), Error> {
        let record = std::mem::take(&mut self.record).0;
        if self.bytes + record.len() > self.bytes_max {
            return self.fold(database, two_phase);
        }
        let transaction = begin(database, two_phase)?;
        {
            let mut journal = transaction.open_table(JOURNAL).map_err(Error::of_database)?;
            let mut out = ByteWriter(Vec::with_capacity(record.len() + 4));
            out.u32(L::FORMAT).0.extend_from_slice(&record);
            journal.insert(self.records, out.0.as_slice()).map_err(Error::of_database)?;
        }
        transaction.commit().map_err(Error::of_database)?;
        self.records += 1;
        self.bytes += record.len();
        Ok(())
    }

    /// Sorts the rows in memory into their tables, and empties the journal.
    ///
    /// # Errors
    ///
    /// As [`Self::commit`].
    pub fn fold(&mut self, database: &Database, two_phase: bool) -> Result<(), Error> {
        if self.numbered.is_empty() && self.named.is_empty() && self.parts_gone.is_empty() {
            return Ok(());
        }
        let transaction = begin(database, two_phase)?;
        self.write(&transaction).map_err(Error::of_database)?;
        transaction.commit().map_err(Error::of_database)?;
        (self.records, self.bytes) = (0, 0);
        self.record.0.clear();
        self.numbered.clear();
        self.named.clear();
        self.parts_gone.clear();
        Ok(())
    }

    fn write(&self, transaction: &WriteTransaction) -> Result<(), TableError> {
        for &table in L::Numbered::ALL {
            let mut open = transaction.open_table(table.table())?;
            for part in &self.parts_gone {
                open.retain_in((*part, 0)..=(*part, u64::MAX), |_, _| false)?;
            }
            for ((_, part, id), fresh) in self.numbered.range((table, 0, 0)..=(table, !0, !0)) {
                match &fresh.row {
                    Some(row) => drop(open.insert((*part, *id), &**row)?),
                    None => drop(open.remove((*part, *id))?),
                }
            }
        }
        for &table in L::Named::ALL {
            let mut open = transaction.open_table(table.table())?;
            for part in &self.parts_gone {
                open.retain_in((*part, "")..(*part + 1, ""), |_, _| false)?;
            }
            let of_table = self.named.range((table, 0, Box::from(""))..);
            for ((_, part, name), fresh) in of_table.take_while(|((of, ..), _)| *of == table) {
                match &fresh.row {
                    Some(row) => drop(open.insert((*part, &**name), &**row)?),
                    None => drop(open.remove((*part, &**name))?),
                }
            }
        }
        transaction.delete_table(JOURNAL)?;
        Ok(())
    }

    /// Reads what the journal in the file holds.
    fn replay(&mut self, database: &Database) -> Result<(), Error> {
        let rows = database.begin_read().map_err(Error::of_database)?;
        let journal = match rows.open_table(JOURNAL) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(()),
            journal => journal.map_err(Error::of_database)?,
        };
        for record in journal.iter().map_err(Error::of_database)? {
            let (_, record) = record.map_err(Error::of_database)?;
            let mut record = ByteReader(record.value());
            Error::check_format(record.u32(), L::FORMAT)?;
            while !record.0.is_empty() {
                self.replay_entry(&mut record).ok_or_else(Error::damaged)?;
            }
        }
        Ok(())
    }

    fn replay_entry(&mut self, record: &mut ByteReader<'_>) -> Option<()> {
        let (kind, part) = (record.u8()?, record.u32()?);
        let (removed, table) = (kind & REMOVED != 0, usize::from(kind & !REMOVED));
        if table == usize::from(PART_GONE) {
            self.forget_part(part);
        } else if let Some(table) = L::Numbered::ALL.get(table) {
            let id = record.u64()?;
            match removed {
                true => self.forget(*table, part, id),
                false => self.keep(*table, part, id, record.bytes()?),
            }
        } else {
            let table = table.checked_sub(usize::from(NAMED_FROM));
            let table = table.and_then(|table| L::Named::ALL.get(table))?;
            let name = record.text()?;
            let row = if removed { None } else { Some(record.bytes()?) };
            self.keep_named(*table, part, name, row);
        }
        Some(())
    }

    fn keep(&mut self, table: L::Numbered, part: u32, id: u64, row: &[u8]) {
        let is_new = self.is_new(table, part, id);
        let row = Some(row.into());
        let fresh = self.numbered.entry((table, part, id)).or_insert(Fresh { row: None, is_new });
        fresh.row = row;
    }

    /// Forgets a row that no table holds; otherwise notes that it is to be removed there.
    fn forget(&mut self, table: L::Numbered, part: u32, id: u64) {
        let is_new = match self.numbered.get(&(table, part, id)) {
            Some(fresh) => fresh.is_new,
            None => matches!(table.written(), Written::Beside(_)) && self.is_new(table, part, id),
        };
        if is_new {
            self.numbered.remove(&(table, part, id));
        } else {
            self.numbered.insert((table, part, id), Fresh { row: None, is_new });
        }
    }

    /// Whether no table holds a row of this key, if none is here.
    fn is_new(&self, table: L::Numbered, part: u32, id: u64) -> bool {
        match table.written() {
            Written::Once => true,
            Written::Beside(other) => {
                self.numbered.get(&(other, part, id)).is_some_and(|row| row.is_new)
            }
            Written::Often => false,
        }
    }

    fn keep_named(&mut self, table: L::Named, part: u32, name: &str, row: Option<&[u8]>) {
        let fresh = Fresh { row: row.map(Into::into), is_new: false };
        self.named.insert((table, part, name.into()), fresh);
    }

    fn forget_part(&mut self, part: u32) {
        self.numbered.retain(|(_, of, _), _| *of != part);
        self.named.retain(|(_, of, _), _| *of != part);
        self.parts_gone.insert(part);
    }
}

type ByNumbers = ReadOnlyTable<(u32, u64), &'static [u8]>;
type ByNames = ReadOnlyTable<(u32, &'static str), &'static [u8]>;

/// Rows of the tables, as they were at the last folding.
#[derive(Debug)]
pub struct Tables<'d, L: Layout> {
    database: &'d Database,
    numbered: BTreeMap<L::Numbered, ByNumbers>,
    named: BTreeMap<L::Named, ByNames>,
}

impl<'d, L: Layout> Tables<'d, L> {
    /// The tables of `database`.
    pub fn new(database: &'d Database) -> Self {
        Self { database, numbered: BTreeMap::new(), named: BTreeMap::new() }
    }

    /// What `read` makes of a row, if there is one.
    ///
    /// # Errors
    ///
    /// If the row is damaged, or the file cannot be read.
    pub fn get<T>(
        &mut self,
        (table, part, id): (L::Numbered, u32, u64),
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        if !self.numbered.contains_key(&table) {
            let rows = self.database.begin_read().map_err(Error::of_database)?;
            let Some(found) = found(rows.open_table(table.table()))? else {
                return Ok(None);
            };
            self.numbered.insert(table, found);
        }
        let row = self.numbered[&table].get((part, id)).map_err(Error::of_database)?;
        row.map(|row| read(row.value()).ok_or_else(Error::damaged)).transpose()
    }

    /// What `read` makes of a row that has a name, if there is one.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn get_named<T>(
        &mut self,
        (table, part, name): (L::Named, u32, &str),
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(rows) = self.of_names(table)? else { return Ok(None) };
        let row = rows.get((part, name)).map_err(Error::of_database)?;
        row.map(|row| read(row.value()).ok_or_else(Error::damaged)).transpose()
    }

    /// Calls `visit` with the names and bytes of the rows of a part after `after`, in order, until
    /// it says no; `None` from it means damage.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn each_named_after(
        &mut self,
        (table, part, after): (L::Named, u32, &str),
        mut visit: impl FnMut(&str, &[u8]) -> Option<bool>,
    ) -> Result<(), Error> {
        let Some(rows) = self.of_names(table)? else { return Ok(()) };
        for row in rows.range((part, after)..).map_err(Error::of_database)? {
            let (key, row) = row.map_err(Error::of_database)?;
            let (of, name) = key.value();
            if of != part {
                break;
            }
            if name > after && !visit(name, row.value()).ok_or_else(Error::damaged)? {
                break;
            }
        }
        Ok(())
    }

    fn of_names(&mut self, table: L::Named) -> Result<Option<&ByNames>, Error> {
        if !self.named.contains_key(&table) {
            let rows = self.database.begin_read().map_err(Error::of_database)?;
            let Some(found) = found(rows.open_table(table.table()))? else { return Ok(None) };
            self.named.insert(table, found);
        }
        Ok(self.named.get(&table))
    }
}

/// A table that was opened; `None` if nothing was ever written to it.
fn found<T>(opened: Result<T, TableError>) -> Result<Option<T>, Error> {
    match opened {
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        table => table.map(Some).map_err(Error::of_database),
    }
}

fn begin(database: &Database, two_phase: bool) -> Result<WriteTransaction, Error> {
    let mut transaction = database.begin_write().map_err(Error::of_database)?;
    transaction.set_durability(Durability::Immediate).map_err(Error::of_database)?;
    transaction.set_two_phase_commit(two_phase);
    Ok(transaction)
}
