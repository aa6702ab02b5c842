//! The journal: what was committed since rows were last sorted into their tables.
//!
//! ```text
//!   most commits    rows ──> one record of the journal, and the same rows in memory
//!   now and then    rows in memory ──> their tables, and the journal is empty     (one commit)
//!   after a crash   records, in order ──> rows in memory ──> their tables
//! ```
//!
//! A job that is enqueued, leased and done between two foldings never comes near a table: a commit
//! writes one leaf of one tree however many jobs it holds, where each job would touch four trees.
//!
//! **Invariants.** A record and a folding are each one commit of the database, so a crash leaves
//! all of it or nothing. The tables and then the journal, in order, are the truth; the rows in
//! memory are what the journal holds. Both are bounded by `bytes_max`: a commit that would exceed
//! it folds instead.

use std::collections::{BTreeMap, BTreeSet};

use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use redb::{ReadOnlyTable, ReadTransaction, WriteTransaction};

use tollway_core::named_enum;

use super::rows::{FORMAT, check_format, damaged};
use super::storage_error::failed;
use crate::bytes_codec::{ByteReader, ByteWriter};
use crate::error::Error;

type ByNumber = TableDefinition<'static, (u32, u64), &'static [u8]>;
type ByName = TableDefinition<'static, (u32, &'static str), &'static [u8]>;

const JOURNAL: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("journal");

named_enum! {
    /// Tables whose rows are found by queue and job; a queue's own row is that of job 0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum Numbered {
        Jobs = "jobs",
        Moves = "moves",
        Dead = "dead",
        Done = "done",
        Queues = "queues",
    }
}

named_enum! {
    /// Tables whose rows are found by queue and name; what belongs to no queue is that of queue 0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum Named {
        Groups = "groups",
        Keys = "keys",
        Recurring = "recurring",
        Shared = "shared",
        Head = "head",
    }
}

/// A row of such a table, by queue and job.
pub(super) type RowKey = (Numbered, u32, u64);

impl Numbered {
    pub(super) fn table(self) -> ByNumber {
        TableDefinition::new(self.name())
    }
}

impl Named {
    pub(super) fn table(self) -> ByName {
        TableDefinition::new(self.name())
    }
}

/// The first byte of an entry of a record: which table, and what of its row.
const NAMED_FROM: u8 = 16;
const QUEUE_GONE: u8 = 32;
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
pub(super) struct Journal {
    numbered: BTreeMap<RowKey, Fresh>,
    named: BTreeMap<(Named, u32, Box<str>), Fresh>,
    queues_gone: BTreeSet<u32>,
    record: ByteWriter,
    records: u64,
    bytes: usize,
    bytes_max: usize,
}

impl Journal {
    /// The journal of `database`, empty: what a crash left in it is in the tables now.
    pub(super) fn open(
        database: &Database,
        bytes_max: usize,
        two_phase: bool,
    ) -> Result<Self, Error> {
        let mut journal = Self {
            numbered: BTreeMap::new(),
            named: BTreeMap::new(),
            queues_gone: BTreeSet::new(),
            record: ByteWriter::default(),
            records: 0,
            bytes: 0,
            bytes_max,
        };
        journal.replay(database)?;
        journal.fold(database, two_phase)?;
        Ok(journal)
    }

    pub(super) fn put(&mut self, table: Numbered, queue: u32, id: u64, row: &[u8]) {
        self.record.u8(table as u8).u32(queue).u64(id).bytes(row);
        self.keep(table, queue, id, row);
    }

    pub(super) fn remove(&mut self, table: Numbered, queue: u32, id: u64) {
        self.record.u8(table as u8 | REMOVED).u32(queue).u64(id);
        self.forget(table, queue, id);
    }

    pub(super) fn put_named(&mut self, table: Named, queue: u32, name: &str, row: &[u8]) {
        self.record.u8(table as u8 + NAMED_FROM).u32(queue).text(name).bytes(row);
        self.keep_named(table, queue, name, Some(row));
    }

    pub(super) fn remove_named(&mut self, table: Named, queue: u32, name: &str) {
        self.record.u8((table as u8 + NAMED_FROM) | REMOVED).u32(queue).text(name);
        self.keep_named(table, queue, name, None);
    }

    pub(super) fn remove_queue(&mut self, queue: u32) {
        self.record.u8(QUEUE_GONE).u32(queue);
        self.forget_queue(queue);
    }

    /// The row, if one is here; `Some(None)` if it was removed, and a table may still hold it.
    pub(super) fn get(&self, table: Numbered, queue: u32, id: u64) -> Option<Option<&[u8]>> {
        self.numbered.get(&(table, queue, id)).map(|fresh| fresh.row.as_deref())
    }

    /// Makes durable what was put and removed since the last commit.
    pub(super) fn commit(&mut self, database: &Database, two_phase: bool) -> Result<(), Error> {
        let record = std::mem::take(&mut self.record).0;
        if self.bytes + record.len() > self.bytes_max {
            return self.fold(database, two_phase);
        }
        let transaction = begin(database, two_phase)?;
        {
            let mut journal = transaction.open_table(JOURNAL).map_err(failed)?;
            let mut out = ByteWriter(Vec::with_capacity(record.len() + 4));
            out.u32(FORMAT).0.extend_from_slice(&record);
            journal.insert(self.records, out.0.as_slice()).map_err(failed)?;
        }
        transaction.commit().map_err(failed)?;
        self.records += 1;
        self.bytes += record.len();
        Ok(())
    }

    /// Sorts the rows in memory into their tables, and empties the journal.
    pub(super) fn fold(&mut self, database: &Database, two_phase: bool) -> Result<(), Error> {
        if self.numbered.is_empty() && self.named.is_empty() && self.queues_gone.is_empty() {
            return Ok(());
        }
        let transaction = begin(database, two_phase)?;
        self.write(&transaction).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        (self.records, self.bytes) = (0, 0);
        self.record.0.clear();
        self.numbered.clear();
        self.named.clear();
        self.queues_gone.clear();
        Ok(())
    }

    fn write(&self, transaction: &WriteTransaction) -> Result<(), TableError> {
        for table in Numbered::ALL {
            let mut open = transaction.open_table(table.table())?;
            for queue in &self.queues_gone {
                open.retain_in((*queue, 0)..=(*queue, u64::MAX), |_, _| false)?;
            }
            for ((_, queue, id), fresh) in self.numbered.range((table, 0, 0)..=(table, !0, !0)) {
                match &fresh.row {
                    Some(row) => drop(open.insert((*queue, *id), &**row)?),
                    None => drop(open.remove((*queue, *id))?),
                }
            }
        }
        for table in Named::ALL {
            let mut open = transaction.open_table(table.table())?;
            for queue in &self.queues_gone {
                open.retain_in((*queue, "")..(*queue + 1, ""), |_, _| false)?;
            }
            let of_table = self.named.range((table, 0, Box::from(""))..);
            for ((_, queue, name), fresh) in of_table.take_while(|((of, ..), _)| *of == table) {
                match &fresh.row {
                    Some(row) => drop(open.insert((*queue, &**name), &**row)?),
                    None => drop(open.remove((*queue, &**name))?),
                }
            }
        }
        transaction.delete_table(JOURNAL)?;
        Ok(())
    }

    /// Reads what the journal in the file holds.
    fn replay(&mut self, database: &Database) -> Result<(), Error> {
        let rows = database.begin_read().map_err(failed)?;
        let journal = match rows.open_table(JOURNAL) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(()),
            journal => journal.map_err(failed)?,
        };
        for record in journal.iter().map_err(failed)? {
            let (_, record) = record.map_err(failed)?;
            let mut record = ByteReader(record.value());
            check_format(record.u32())?;
            while !record.0.is_empty() {
                self.replay_entry(&mut record).ok_or_else(damaged)?;
            }
        }
        Ok(())
    }

    fn replay_entry(&mut self, record: &mut ByteReader<'_>) -> Option<()> {
        let (kind, queue) = (record.u8()?, record.u32()?);
        let (removed, table) = (kind & REMOVED != 0, usize::from(kind & !REMOVED));
        if table == usize::from(QUEUE_GONE) {
            self.forget_queue(queue);
        } else if let Some(table) = Numbered::ALL.get(table) {
            let id = record.u64()?;
            match removed {
                true => self.forget(*table, queue, id),
                false => self.keep(*table, queue, id, record.bytes()?),
            }
        } else {
            let table = table.checked_sub(usize::from(NAMED_FROM));
            let table = table.and_then(|table| Named::ALL.get(table))?;
            let name = record.text()?;
            let row = if removed { None } else { Some(record.bytes()?) };
            self.keep_named(*table, queue, name, row);
        }
        Some(())
    }

    fn keep(&mut self, table: Numbered, queue: u32, id: u64, row: &[u8]) {
        let is_new = self.is_new(table, queue, id);
        let row = Some(row.into());
        let fresh = self.numbered.entry((table, queue, id)).or_insert(Fresh { row: None, is_new });
        fresh.row = row;
    }

    /// Forgets a row that no table holds; otherwise notes that it is to be removed there.
    fn forget(&mut self, table: Numbered, queue: u32, id: u64) {
        let is_new = match self.numbered.get(&(table, queue, id)) {
            Some(fresh) => fresh.is_new,
            None => table == Numbered::Moves && self.is_new(table, queue, id),
        };
        if is_new {
            self.numbered.remove(&(table, queue, id));
        } else {
            self.numbered.insert((table, queue, id), Fresh { row: None, is_new });
        }
    }

    /// Whether no table holds a row of this key, if none is here: the rows of a job and of its
    /// end are written once, and it moves only while there is such a job.
    fn is_new(&self, table: Numbered, queue: u32, id: u64) -> bool {
        let job = || self.numbered.get(&(Numbered::Jobs, queue, id));
        match table {
            Numbered::Jobs | Numbered::Done => true,
            Numbered::Moves => job().is_some_and(|job| job.is_new),
            Numbered::Dead | Numbered::Queues => false,
        }
    }

    fn keep_named(&mut self, table: Named, queue: u32, name: &str, row: Option<&[u8]>) {
        let fresh = Fresh { row: row.map(Into::into), is_new: false };
        self.named.insert((table, queue, name.into()), fresh);
    }

    fn forget_queue(&mut self, queue: u32) {
        self.numbered.retain(|(_, of, _), _| *of != queue);
        self.named.retain(|(_, of, _), _| *of != queue);
        self.queues_gone.insert(queue);
    }
}

type Rows = ReadOnlyTable<(u32, u64), &'static [u8]>;

/// Rows of the tables, as they were at the last folding.
#[derive(Debug)]
pub(super) struct Tables<'d> {
    database: &'d Database,
    open: BTreeMap<Numbered, Rows>,
}

impl<'d> Tables<'d> {
    pub(super) fn new(database: &'d Database) -> Self {
        Self { database, open: BTreeMap::new() }
    }

    /// What `read` makes of a row, if there is one.
    pub(super) fn get<T>(
        &mut self,
        (table, queue, id): RowKey,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        if !self.open.contains_key(&table) {
            let rows = self.database.begin_read().map_err(failed)?;
            let Some(found) = find(&rows, table)? else { return Ok(None) };
            self.open.insert(table, found);
        }
        let row = self.open[&table].get((queue, id)).map_err(failed)?;
        row.map(|row| read(row.value()).ok_or_else(damaged)).transpose()
    }
}

fn find(rows: &ReadTransaction, table: Numbered) -> Result<Option<Rows>, Error> {
    match rows.open_table(table.table()) {
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        table => table.map(Some).map_err(failed),
    }
}

fn begin(database: &Database, two_phase: bool) -> Result<WriteTransaction, Error> {
    let mut transaction = database.begin_write().map_err(failed)?;
    transaction.set_durability(Durability::Immediate).map_err(failed)?;
    transaction.set_two_phase_commit(two_phase);
    Ok(transaction)
}
