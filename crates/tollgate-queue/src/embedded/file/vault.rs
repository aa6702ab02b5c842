//! One commit: rows that are written as they come, and those that are written once at its end.

use std::collections::BTreeSet;

use bytes::Bytes;
use redb::{ReadableTable, Table, TableDefinition, WriteTransaction};

use super::bytes::{In, Out, damaged};
use super::rows::{
    read_job, write_gate, write_gates, write_job, write_move, write_recurring, write_settings,
};
use crate::embedded::desk::Vault;
use crate::error::Error;
use crate::schedule::{Change, Schedule};
use crate::{Group, QueueName};

pub(super) type Numbered = TableDefinition<'static, (u32, u64), &'static [u8]>;
pub(super) type Named = TableDefinition<'static, (u32, &'static str), &'static [u8]>;

pub(super) const HEAD: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("head");
pub(super) const QUEUES: TableDefinition<'_, u32, &[u8]> = TableDefinition::new("queues");
pub(super) const SHARED: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("shared");
pub(super) const JOBS: Numbered = TableDefinition::new("jobs");
pub(super) const MOVES: Numbered = TableDefinition::new("moves");
pub(super) const DEAD: Numbered = TableDefinition::new("dead");
pub(super) const DONE: Numbered = TableDefinition::new("done");
pub(super) const GROUPS: Named = TableDefinition::new("groups");
pub(super) const KEYS: Named = TableDefinition::new("keys");
pub(super) const RECURRING: Named = TableDefinition::new("recurring");

/// The version of the rows.
pub(super) const FORMAT: u32 = 1;

type NumberedTable<'t> = Table<'t, (u32, u64), &'static [u8]>;
type NamedTable<'t> = Table<'t, (u32, &'static str), &'static [u8]>;

/// One commit that is being made.
pub(super) struct TransactionVault<'t> {
    head: Table<'t, &'static str, &'static [u8]>,
    queues: Table<'t, u32, &'static [u8]>,
    shared: Table<'t, &'static str, &'static [u8]>,
    jobs: NumberedTable<'t>,
    moves: NumberedTable<'t>,
    dead: NumberedTable<'t>,
    done: NumberedTable<'t>,
    groups: NamedTable<'t>,
    keys: NamedTable<'t>,
    recurring: NamedTable<'t>,
    late: Late,
    /// Whether there is anything to commit.
    pub(super) written: bool,
    /// What went wrong: the transaction must not be committed.
    pub(super) failed: Option<Error>,
}

/// What is written once at the end, however often it changed.
#[derive(Default)]
struct Late {
    queues: BTreeSet<u32>,
    shared: BTreeSet<QueueName>,
    moves: BTreeSet<(u32, u64)>,
    groups: BTreeSet<(u32, Group)>,
}

impl<'t> TransactionVault<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self, redb::TableError> {
        Ok(Self {
            head: transaction.open_table(HEAD)?,
            queues: transaction.open_table(QUEUES)?,
            shared: transaction.open_table(SHARED)?,
            jobs: transaction.open_table(JOBS)?,
            moves: transaction.open_table(MOVES)?,
            dead: transaction.open_table(DEAD)?,
            done: transaction.open_table(DONE)?,
            groups: transaction.open_table(GROUPS)?,
            keys: transaction.open_table(KEYS)?,
            recurring: transaction.open_table(RECURRING)?,
            late: Late::default(),
            written: false,
            failed: None,
        })
    }

    /// Writes what is written once.
    pub(super) fn finish(&mut self, schedule: &mut Schedule) -> Result<(), redb::StorageError> {
        if !self.written {
            return Ok(());
        }
        let late = std::mem::take(&mut self.late);
        late.queues.into_iter().try_for_each(|queue| self.put_queue(queue, schedule))?;
        late.shared.into_iter().try_for_each(|name| self.put_shared(&name, schedule))?;
        late.moves.into_iter().try_for_each(|(queue, id)| self.put_move(queue, id, schedule))?;
        late.groups
            .into_iter()
            .try_for_each(|(queue, group)| self.put_group(queue, &group, schedule))?;
        let mut out = Out::default();
        out.u32(FORMAT).u64(schedule.next_id).u32(schedule.next_queue);
        out.time(schedule.last_now).time(schedule.latest);
        self.head.insert("head", out.0.as_slice())?;
        Ok(())
    }

    fn apply(&mut self, change: Change, schedule: &Schedule) -> Result<(), redb::StorageError> {
        match change {
            Change::Queue(queue) => {
                self.late.queues.insert(queue);
            }
            Change::QueueGone(queue) => self.drop_queue(queue)?,
            Change::Shared(name) => {
                self.late.shared.insert(name);
            }
            Change::Job { queue, id, payload } => self.put_job(queue, id, &payload, schedule)?,
            Change::Moved { queue, id } => {
                self.late.moves.insert((queue, id));
            }
            Change::Gone { queue, id } => {
                self.late.moves.remove(&(queue, id));
                self.jobs.remove((queue, id))?;
                self.moves.remove((queue, id))?;
            }
            Change::Dead { queue, id } => self.put_dead(queue, id, schedule)?,
            Change::DeadGone { queue, id } => {
                self.dead.remove((queue, id))?;
            }
            Change::Done { queue, id, result } => self.put_done(queue, id, &result, schedule)?,
            Change::DoneGone { queue, id } => {
                self.done.remove((queue, id))?;
            }
            Change::Group { queue, group } => {
                self.late.groups.insert((queue, group));
            }
            Change::Key { queue, key } => self.put_key(queue, &key, schedule)?,
            Change::KeyGone { queue, key } => {
                self.keys.remove((queue, &*key))?;
            }
            Change::Recurring { queue, name } => self.put_recurring(queue, &name, schedule)?,
        }
        Ok(())
    }

    fn put_queue(&mut self, queue: u32, schedule: &Schedule) -> Result<(), redb::StorageError> {
        let name = schedule.names.iter().find(|(_, number)| **number == queue);
        if let (Some((name, _)), Some(state)) = (name, schedule.queues.get(&queue)) {
            let mut out = Out::default();
            out.text(name.as_str()).u8(u8::from(state.paused));
            write_settings(&mut out, &state.settings);
            write_gates(&mut out, &state.gates);
            self.queues.insert(queue, out.0.as_slice())?;
        }
        Ok(())
    }

    fn put_shared(
        &mut self,
        name: &QueueName,
        schedule: &Schedule,
    ) -> Result<(), redb::StorageError> {
        if let Some((limit, gate)) = schedule.shared.get(name) {
            let mut out = Out::default();
            out.text(&limit.to_string());
            write_gate(&mut out, gate);
            self.shared.insert(name.as_str(), out.0.as_slice())?;
        }
        Ok(())
    }

    fn put_job(
        &mut self,
        queue: u32,
        id: u64,
        payload: &[u8],
        schedule: &Schedule,
    ) -> Result<(), redb::StorageError> {
        let Some(state) = schedule.queues.get(&queue) else { return Ok(()) };
        let Some(entry) = state.jobs.get(&id) else { return Ok(()) };
        let mut out = Out(Vec::with_capacity(payload.len() + 96));
        write_job(&mut out, &state.groups.get(entry.group).name, entry, payload);
        self.jobs.insert((queue, id), out.0.as_slice())?;
        Ok(())
    }

    fn put_move(
        &mut self,
        queue: u32,
        id: u64,
        schedule: &Schedule,
    ) -> Result<(), redb::StorageError> {
        let Some(state) = schedule.queues.get(&queue) else { return Ok(()) };
        let dead = state.kept.dead.get(&id).map(|over| &over.entry);
        if let Some(entry) = state.jobs.get(&id).or(dead) {
            let mut out = Out::default();
            write_move(&mut out, entry, state.leases.get(&id));
            self.moves.insert((queue, id), out.0.as_slice())?;
        }
        Ok(())
    }

    fn put_dead(
        &mut self,
        queue: u32,
        id: u64,
        schedule: &Schedule,
    ) -> Result<(), redb::StorageError> {
        let state = schedule.queues.get(&queue);
        if let Some(over) = state.and_then(|state| state.kept.dead.get(&id)) {
            let mut out = Out::default();
            out.time(over.at).text(&over.reason);
            self.dead.insert((queue, id), out.0.as_slice())?;
            self.late.moves.insert((queue, id));
        }
        Ok(())
    }

    fn put_done(
        &mut self,
        queue: u32,
        id: u64,
        result: &[u8],
        schedule: &Schedule,
    ) -> Result<(), redb::StorageError> {
        let state = schedule.queues.get(&queue);
        if let Some(over) = state.and_then(|state| state.kept.done.get(&id)) {
            let mut out = Out::default();
            out.time(over.at).u32(over.entry.attempt).u32(over.entry.failures).bytes(result);
            write_job(&mut out, &over.group, &over.entry, &[]);
            self.done.insert((queue, id), out.0.as_slice())?;
        }
        Ok(())
    }

    fn put_group(
        &mut self,
        queue: u32,
        group: &Group,
        schedule: &mut Schedule,
    ) -> Result<(), redb::StorageError> {
        let Some(state) = schedule.queues.get_mut(&queue) else { return Ok(()) };
        let Some(number) = state.groups.find(group.as_str()) else {
            self.groups.remove((queue, group.as_str()))?;
            return Ok(());
        };
        let group_state = state.groups.get_mut(number);
        group_state.stored = true;
        let mut out = Out::default();
        out.u8(u8::from(group_state.paused)).time(group_state.blocked_until);
        out.option(group_state.own_limits.as_deref(), |out, limits| {
            out.list(limits.iter(), |out, limit| {
                out.text(&limit.to_string());
            });
        });
        write_gates(&mut out, &group_state.gates);
        self.groups.insert((queue, group.as_str()), out.0.as_slice())?;
        Ok(())
    }

    fn put_key(
        &mut self,
        queue: u32,
        key: &str,
        schedule: &Schedule,
    ) -> Result<(), redb::StorageError> {
        let state = schedule.queues.get(&queue);
        if let Some((id, until)) = state.and_then(|state| state.kept.keys.get(key)) {
            let mut out = Out::default();
            out.u64(*id).time(*until);
            self.keys.insert((queue, key), out.0.as_slice())?;
        }
        Ok(())
    }

    fn put_recurring(
        &mut self,
        queue: u32,
        name: &str,
        schedule: &Schedule,
    ) -> Result<(), redb::StorageError> {
        let state = schedule.queues.get(&queue);
        match state.and_then(|state| state.kept.recurring.get(name)) {
            Some((recurring, next)) => {
                let mut out = Out::default();
                out.time(*next);
                write_recurring(&mut out, recurring);
                self.recurring.insert((queue, name), out.0.as_slice())?;
            }
            None => {
                self.recurring.remove((queue, name))?;
            }
        }
        Ok(())
    }

    fn drop_queue(&mut self, queue: u32) -> Result<(), redb::StorageError> {
        self.late.queues.remove(&queue);
        self.late.moves.retain(|(of, _)| *of != queue);
        self.late.groups.retain(|(of, _)| *of != queue);
        self.queues.remove(queue)?;
        for table in [&mut self.jobs, &mut self.moves, &mut self.dead, &mut self.done] {
            table.retain_in((queue, 0)..=(queue, u64::MAX), |_, _| false)?;
        }
        for table in [&mut self.groups, &mut self.keys, &mut self.recurring] {
            table.retain_in((queue, "")..(queue + 1, ""), |_, _| false)?;
        }
        Ok(())
    }

    /// Remembers what went wrong, and says it.
    fn fail(&mut self, error: redb::StorageError) -> Error {
        let error = super::trouble(error.into());
        self.failed = Some(error.again());
        error
    }
}

impl Vault for TransactionVault<'_> {
    fn store(&mut self, schedule: &mut Schedule) -> Result<(), Error> {
        let changes = std::mem::take(&mut schedule.changes);
        self.written |= !changes.is_empty();
        for change in changes {
            self.apply(change, schedule).map_err(|error| self.fail(error))?;
        }
        Ok(())
    }

    fn payload(&mut self, queue: u32, id: u64) -> Result<Bytes, Error> {
        let read = |row: &[u8]| Ok(Bytes::copy_from_slice(read_job(In(row))?.2));
        let payload = self.jobs.get((queue, id)).map(|row| row.map(|row| read(row.value())));
        payload.map_err(|error| self.fail(error))?.ok_or_else(damaged)?
    }

    fn result(&mut self, queue: u32, id: u64) -> Result<Option<Bytes>, Error> {
        let read = |row: &[u8]| {
            let mut row = In(row);
            // When it was done, and its attempts and failures.
            row.time()?;
            row.u32()?;
            row.u32()?;
            Ok(Bytes::copy_from_slice(row.bytes()?))
        };
        let result = self.done.get((queue, id)).map(|row| row.map(|row| read(row.value())));
        result.map_err(|error| self.fail(error))?.transpose()
    }
}
