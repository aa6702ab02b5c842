//! One commit: rows that are written as they come, and those that are written once at its end.

use std::collections::BTreeSet;

use bytes::Bytes;
use redb::Database;
use tollway_journal::bytes_codec::{ByteReader, ByteWriter};
use tollway_journal::{Journal, Tables};

use super::rows::{
    FORMAT, damaged, read_job, read_result, write_done, write_gate, write_gates, write_job,
    write_move, write_record, write_recurring, write_settings, write_totals,
};
use super::tables::{Named, Numbered, QueueFile, RowKey};
use crate::embedded::row_store::RowStore;
use crate::error::Error;
use crate::schedule::{Change, QueueChange, Schedule};
use crate::{Group, MissedDeadline, QueueName};

/// The row of the secret, beside the head.
pub(super) const SECRET: &str = "secret";
/// The row of what a queue has counted, in the same table under the queue's number.
pub(super) const TOTALS: &str = "totals";

/// One commit that is being made.
pub(super) struct FileRows<'d> {
    journal: &'d mut Journal<QueueFile>,
    tables: Tables<'d, QueueFile>,
    late: Late,
    /// Whether there is anything to commit.
    pub(super) written: bool,
    /// What went wrong: nothing must be committed.
    pub(super) failed: Option<Error>,
    out: ByteWriter,
}

/// What is written once at the end, however often it changed.
#[derive(Default)]
struct Late {
    queues: BTreeSet<u32>,
    shared: BTreeSet<QueueName>,
    moves: BTreeSet<(u32, u64)>,
    groups: BTreeSet<(u32, Group)>,
    /// Queues that may have counted something.
    counted: BTreeSet<u32>,
}

impl<'d> FileRows<'d> {
    pub(super) fn new(database: &'d Database, journal: &'d mut Journal<QueueFile>) -> Self {
        Self {
            journal,
            tables: Tables::new(database),
            late: Late::default(),
            written: false,
            failed: None,
            out: ByteWriter::default(),
        }
    }

    /// Writes what is written once.
    pub(super) fn finish(&mut self, schedule: &mut Schedule) {
        if !self.written {
            return;
        }
        let late = std::mem::take(&mut self.late);
        late.queues.into_iter().for_each(|queue| self.put_queue(queue, schedule));
        late.shared.into_iter().for_each(|name| self.put_shared(&name, schedule));
        late.moves.into_iter().for_each(|(queue, id)| self.put_move(queue, id, schedule));
        late.groups.into_iter().for_each(|(queue, group)| self.put_group(queue, &group, schedule));
        late.counted.into_iter().for_each(|queue| self.put_totals(queue, schedule));
        let out = self.out.empty();
        out.u32(FORMAT).u64(schedule.next_id).u32(schedule.next_queue);
        out.time(schedule.last_now).time(schedule.latest);
        self.journal.put_named(Named::Head, 0, "head", &out.0);
    }

    fn apply(&mut self, change: Change, schedule: &Schedule) {
        match change {
            Change::Shared(name) => drop(self.late.shared.insert(name)),
            Change::Secret => {
                if let Some(secret) = &schedule.secret {
                    self.journal.put_named(Named::Head, 0, SECRET, secret);
                }
            }
            Change::Queue(queue, change) => self.apply_to(queue, change, schedule),
        }
    }

    /// Writes what changed in a queue, or notes that it is to be written at the end. Of a queue
    /// that was removed meanwhile, nothing is found and nothing written.
    fn apply_to(&mut self, queue: u32, change: QueueChange, schedule: &Schedule) {
        let (state, out) = (schedule.queues.get(&queue), self.out.empty());
        self.late.counted.insert(queue);
        match change {
            QueueChange::Settings => drop(self.late.queues.insert(queue)),
            QueueChange::Removed => self.drop_queue(queue),
            QueueChange::Job(id, payload) => {
                if let Some(state) = state
                    && let Some(entry) = state.jobs.entries.get(&id)
                {
                    write_job(out, &state.groups.get(entry.group).name, entry, &payload);
                    self.journal.put(Numbered::Jobs, queue, id, &out.0);
                }
            }
            QueueChange::Moved(id) => drop(self.late.moves.insert((queue, id))),
            QueueChange::Gone(id) => {
                self.late.moves.remove(&(queue, id));
                self.journal.remove(Numbered::Moves, queue, id);
                self.journal.remove(Numbered::Jobs, queue, id);
            }
            QueueChange::Dead(id) => {
                if let Some(over) = state.and_then(|state| state.history.dead.get(&id)) {
                    out.time(over.at).text(&over.reason);
                    self.journal.put(Numbered::Dead, queue, id, &out.0);
                    self.late.moves.insert((queue, id));
                }
            }
            QueueChange::DeadGone(id) => self.journal.remove(Numbered::Dead, queue, id),
            QueueChange::Done(id, result) => {
                if let Some(over) = state.and_then(|state| state.history.done.get(&id)) {
                    write_done(out, over, result.as_deref());
                    self.journal.put(Numbered::Done, queue, id, &out.0);
                }
            }
            QueueChange::DoneGone(id) => self.journal.remove(Numbered::Done, queue, id),
            QueueChange::Group(group) => drop(self.late.groups.insert((queue, group))),
            QueueChange::Key(key) => {
                if let Some((id, until)) = state.and_then(|state| state.history.keys.get(&key)) {
                    out.u64(*id).time(*until);
                    self.journal.put_named(Named::Keys, queue, &key, &out.0);
                }
            }
            QueueChange::KeyGone(key) => self.journal.remove_named(Named::Keys, queue, &key),
            QueueChange::Recurring(name) => {
                match state.and_then(|state| state.history.recurring.get(&name)) {
                    Some((recurring, next)) => {
                        out.time(*next);
                        write_recurring(out, recurring);
                        self.journal.put_named(Named::Recurring, queue, &name, &out.0);
                    }
                    None => self.journal.remove_named(Named::Recurring, queue, &name),
                }
            }
        }
    }

    fn put_queue(&mut self, queue: u32, schedule: &Schedule) {
        let name = schedule.names.iter().find(|(_, number)| **number == queue);
        if let (Some((name, _)), Some(state)) = (name, schedule.queues.get(&queue)) {
            let out = self.out.empty();
            out.text(name.as_str()).u8(u8::from(state.paused));
            write_settings(out, &state.settings);
            write_gates(out, &state.gates.0);
            // Last, since files of earlier versions end before them.
            out.u64(state.settings.bytes_max);
            write_record(out, &state.record);
            out.u8(state.settings.backoff_jitter);
            out.u8(u8::from(state.settings.missed_deadline == MissedDeadline::Drop));
            self.journal.put(Numbered::Queues, queue, 0, &out.0);
        }
    }

    fn put_totals(&mut self, queue: u32, schedule: &mut Schedule) {
        let Some(state) = schedule.queues.get_mut(&queue) else { return };
        if state.totals != state.stored_totals {
            state.stored_totals = state.totals;
            write_totals(self.out.empty(), &state.totals);
            self.journal.put_named(Named::Head, queue, TOTALS, &self.out.0);
        }
    }

    fn put_shared(&mut self, name: &QueueName, schedule: &Schedule) {
        let Some((limit, gate)) = schedule.shared.get(name) else {
            return self.journal.remove_named(Named::Shared, 0, name.as_str());
        };
        let out = self.out.empty();
        out.text(&limit.to_string());
        write_gate(out, gate);
        if let Some(record) = schedule.shared_records.get(name) {
            write_record(out, record);
        }
        self.journal.put_named(Named::Shared, 0, name.as_str(), &out.0);
    }

    fn put_move(&mut self, queue: u32, id: u64, schedule: &Schedule) {
        let Some(state) = schedule.queues.get(&queue) else { return };
        let dead = state.history.dead.get(&id).map(|over| &over.entry);
        if let Some(entry) = state.jobs.entries.get(&id).or(dead) {
            let out = self.out.empty();
            write_move(out, entry, state.leases.running.get(&id));
            self.journal.put(Numbered::Moves, queue, id, &out.0);
        }
    }

    fn put_group(&mut self, queue: u32, group: &Group, schedule: &mut Schedule) {
        let Some(state) = schedule.queues.get_mut(&queue) else { return };
        let Some(number) = state.groups.find(group.as_str()) else {
            return self.journal.remove_named(Named::Groups, queue, group.as_str());
        };
        let group_state = state.groups.get_mut(number);
        group_state.stored = true;
        let out = self.out.empty();
        out.u8(u8::from(group_state.paused)).time(group_state.blocked_until);
        out.option(group_state.own_limits.as_deref(), |out, limits| {
            out.list(limits.iter(), |out, limit| {
                out.text(&limit.to_string());
            });
        });
        write_gates(out, &group_state.gates.0);
        self.journal.put_named(Named::Groups, queue, group.as_str(), &out.0);
    }

    fn drop_queue(&mut self, queue: u32) {
        self.late.queues.remove(&queue);
        self.late.counted.remove(&queue);
        self.late.moves.retain(|(of, _)| *of != queue);
        self.late.groups.retain(|(of, _)| *of != queue);
        self.journal.remove_part(queue);
    }

    /// What `read` makes of a row, wherever it is.
    fn row<T>(
        &mut self,
        (table, queue, id): RowKey,
        read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        match self.journal.get(table, queue, id) {
            Some(row) => row.map(|row| read(row).ok_or_else(damaged)).transpose(),
            None => self.tables.get((table, queue, id), read).map_err(|error| {
                let error = Error::from(error);
                self.failed = Some(error.again());
                error
            }),
        }
    }
}

impl RowStore for FileRows<'_> {
    fn store(&mut self, schedule: &mut Schedule) -> Result<(), Error> {
        let mut changes = std::mem::take(&mut schedule.changes);
        self.written |= !changes.is_empty();
        changes.drain(..).for_each(|change| self.apply(change, schedule));
        // Its room is used again.
        schedule.changes = changes;
        Ok(())
    }

    fn payload(&mut self, queue: u32, id: u64) -> Result<Bytes, Error> {
        let read = |row: &[u8]| read_job(ByteReader(row)).map(|job| Bytes::copy_from_slice(job.2));
        self.row((Numbered::Jobs, queue, id), read)?.ok_or_else(damaged)
    }

    fn result(&mut self, queue: u32, id: u64) -> Result<Option<Bytes>, Error> {
        let read = |row: &[u8]| Some(read_result(ByteReader(row))?.map(Bytes::copy_from_slice));
        Ok(self.row((Numbered::Done, queue, id), read)?.flatten())
    }
}
