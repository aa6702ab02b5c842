//! Reading the schedule from a file: rows first, then the order that follows from them.

use redb::{Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, TableError};
use tollway_journal::bytes_codec::ByteReader;
use tollway_journal::{NamedTable as _, NumberedTable as _};

use super::commit::{SECRET, TOTALS};
use super::rows::{
    check_format, damaged, failed, read_done, read_gate, read_gates, read_job, read_limits,
    read_move, read_record, read_recurring, read_settings, read_totals,
};
use super::tables::{Named, Numbered};
use crate::error::Error;
use crate::schedule::{EndedJob, Entry, Gate, Gates, Queue, Running, Schedule};
use crate::{Group, MissedDeadline, QueueName};

/// The schedule that is in `database`.
pub(super) fn load(database: &Database) -> Result<Schedule, Error> {
    let rows = database.begin_read().map_err(failed)?;
    let mut schedule = Schedule::new();
    // A file without a head is new: nothing was ever committed to it.
    if !load_head(&rows, &mut schedule)? {
        return Ok(schedule);
    }
    let all = &mut schedule;
    each_named(&rows, Named::Shared, |_, name, mut row| {
        let (limit, name) = (row.text()?.parse().ok()?, QueueName::new(name).ok()?);
        let gate = read_gate(&mut row, all.last_now)?;
        all.shared.insert(name.clone(), (limit, gate));
        all.shared_records.insert(name, read_record(&mut row)?);
        Some(())
    })?;
    each(&rows, Numbered::Queues, |number, _, row| load_queue(all, number, row))?;
    each_named(&rows, Named::Head, |number, name, row| {
        // The head, and rows of versions to come, are no totals.
        if let Some(queue) = all.queues.get_mut(&number).filter(|_| name == TOTALS) {
            queue.totals = read_totals(row)?;
            queue.stored_totals = queue.totals;
        }
        Some(())
    })?;
    each_named(&rows, Named::Groups, |number, name, row| load_group(all, number, name, row))?;
    load_jobs(&rows, all)?;
    free_slots(all);
    each(&rows, Numbered::Done, |number, id, row| {
        all.queues.get_mut(&number)?.history.remember_done(id, read_done(row)?);
        Some(())
    })?;
    each_named(&rows, Named::Keys, |number, key, mut row| {
        let (id, until) = (row.u64()?, row.time()?);
        all.queues.get_mut(&number)?.history.remember_key(key.into(), id, until);
        Some(())
    })?;
    each_named(&rows, Named::Recurring, |number, name, mut row| {
        let (next, recurring) = (row.time()?, read_recurring(name, &mut row)?);
        all.queues.get_mut(&number)?.history.put_recurring(recurring, next);
        Some(())
    })?;
    let now = schedule.last_now;
    for queue in schedule.queues.values_mut() {
        queue.groups.numbers().into_iter().for_each(|number| queue.place_group(number, now));
    }
    Ok(schedule)
}

/// Whether anything was ever committed.
fn load_head(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<bool, Error> {
    let table = match rows.open_table(Named::Head.table()) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(false),
        table => table.map_err(failed)?,
    };
    let Some(row) = table.get((0, "head")).map_err(failed)? else { return Ok(false) };
    let mut row = ByteReader(row.value());
    check_format(row.u32())?;
    let mut read = || {
        (schedule.next_id, schedule.next_queue) = (row.u64()?, row.u32()?);
        (schedule.last_now, schedule.latest) = (row.time()?, row.time()?);
        Some(())
    };
    read().ok_or_else(damaged)?;
    if let Some(row) = table.get((0, SECRET)).map_err(failed)? {
        schedule.secret = Some(row.value().try_into().map_err(|_| damaged())?);
    }
    Ok(true)
}

type Rows = ReadOnlyTable<(u32, u64), &'static [u8]>;

fn numbered(rows: &ReadTransaction, table: Numbered) -> Result<Rows, Error> {
    rows.open_table(table.table()).map_err(failed)
}

/// Calls `read` with queue, id and bytes of every row; `None` from it means damage.
fn each(
    rows: &ReadTransaction,
    table: Numbered,
    mut read: impl FnMut(u32, u64, ByteReader<'_>) -> Option<()>,
) -> Result<(), Error> {
    for row in numbered(rows, table)?.iter().map_err(failed)? {
        let (key, row) = row.map_err(failed)?;
        let (queue, id) = key.value();
        read(queue, id, ByteReader(row.value())).ok_or_else(damaged)?;
    }
    Ok(())
}

/// Calls `read` with queue, name and bytes of every row; `None` from it means damage.
fn each_named(
    rows: &ReadTransaction,
    table: Named,
    mut read: impl FnMut(u32, &str, ByteReader<'_>) -> Option<()>,
) -> Result<(), Error> {
    for row in rows.open_table(table.table()).map_err(failed)?.iter().map_err(failed)? {
        let (key, row) = row.map_err(failed)?;
        let (queue, name) = key.value();
        read(queue, name, ByteReader(row.value())).ok_or_else(damaged)?;
    }
    Ok(())
}

fn load_queue(schedule: &mut Schedule, number: u32, mut row: ByteReader<'_>) -> Option<()> {
    let (name, paused) = (QueueName::new(row.text()?).ok()?, row.flag()?);
    let mut queue = Queue::new(read_settings(&mut row)?);
    queue.paused = paused;
    queue.gates = Gates(read_gates(&mut row, schedule.last_now)?);
    // Versions before this bound wrote nothing behind the gates.
    if !row.0.is_empty() {
        queue.settings.bytes_max = row.u64()?;
    }
    queue.record = read_record(&mut row)?;
    if !row.0.is_empty() {
        queue.settings.backoff_jitter = row.u8()?;
        let is_dropped = row.flag()?;
        queue.settings.missed_deadline =
            if is_dropped { MissedDeadline::Drop } else { MissedDeadline::DeadLetter };
    }
    schedule.names.insert(name, number);
    schedule.queues.insert(number, queue);
    Some(())
}

fn load_group(
    schedule: &mut Schedule,
    number: u32,
    name: &str,
    mut row: ByteReader<'_>,
) -> Option<()> {
    let last = schedule.last_now;
    let queue = schedule.queues.get_mut(&number)?;
    let number = queue.groups.number(&Group::new(name).ok()?);
    let state = queue.groups.get_mut(number);
    (state.paused, state.blocked_until) = (row.flag()?, row.time()?);
    state.own_limits = row.option(read_limits)?.map(Vec::into_boxed_slice);
    state.gates = Gates(read_gates(&mut row, last)?);
    state.stored = true;
    Some(())
}

fn load_jobs(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    let (moves, dead) = (numbered(rows, Numbered::Moves)?, numbered(rows, Numbered::Dead)?);
    for row in numbered(rows, Numbered::Jobs)?.iter().map_err(failed)? {
        let (key, row) = row.map_err(failed)?;
        let moved = moves.get(key.value()).map_err(failed)?;
        let died = dead.get(key.value()).map_err(failed)?;
        let moved = moved.as_ref().map(|row| ByteReader(row.value()));
        let died = died.as_ref().map(|row| ByteReader(row.value()));
        let job = ByteReader(row.value());
        load_job(schedule, key.value(), job, moved, died).ok_or_else(damaged)?;
    }
    Ok(())
}

/// Puts a job back where it was: what was enqueued, what moved it since, and whether it is dead.
fn load_job(
    schedule: &mut Schedule,
    (number, id): (u32, u64),
    row: ByteReader<'_>,
    moved: Option<ByteReader<'_>>,
    dead: Option<ByteReader<'_>>,
) -> Option<()> {
    let (group, mut entry, _): (&str, Entry, &[u8]) = read_job(row)?;
    let group = Group::new(group).ok()?;
    let running: Option<Running> = match moved {
        Some(row) => read_move(row, &mut entry)?,
        None => None,
    };
    let queue = schedule.queues.get_mut(&number)?;
    if let Some(mut row) = dead {
        let (at, reason) = (row.time()?, row.text()?.to_owned());
        queue.history.remember_dead(id, EndedJob { group, entry, at, reason });
        return Some(());
    }
    entry.group = queue.groups.number(&group);
    match running {
        Some(running) => queue.restore_running(id, entry, running, &mut schedule.shared),
        None => queue.admit(id, entry, schedule.last_now),
    }
    Some(())
}

/// Frees the slots of jobs that ended after what is in use of their limits was last written.
fn free_slots(schedule: &mut Schedule) {
    let Schedule { queues, shared, .. } = schedule;
    let running: std::collections::HashSet<u64> =
        queues.values().flat_map(|queue| queue.leases.ids()).collect();
    let mut free = |gate: &mut Gate| gate.retain(|job| running.contains(&job));
    shared.values_mut().for_each(|(_, gate)| free(gate));
    for queue in queues.values_mut() {
        queue.gates.0.iter_mut().for_each(&mut free);
        for number in queue.groups.numbers() {
            queue.groups.get_mut(number).gates.0.iter_mut().for_each(&mut free);
        }
    }
}
