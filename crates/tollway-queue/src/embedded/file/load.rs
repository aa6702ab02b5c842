//! Reading the schedule from a file: rows first, then the order that follows from them.

use redb::{Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable, TableError};
use tollway_core::Timestamp;

use super::commit::SECRET;
use super::journal::{Named, Numbered};
use super::row_bytes::{In, damaged};
use super::rows::{
    check_format, read_done, read_gate, read_gates, read_job, read_limits, read_move,
    read_recurring, read_settings,
};
use crate::error::Error;
use crate::schedule::{Entry, Gate, Over, Queue, Running, Schedule};
use crate::{Group, QueueName};

/// The schedule that is in `database`.
pub(super) fn load(database: &Database) -> Result<Schedule, Error> {
    let rows = database.begin_read().map_err(|error| super::trouble(error.into()))?;
    let mut schedule = Schedule::new();
    // A file without a head is new: nothing was ever committed to it.
    if !load_head(&rows, &mut schedule)? {
        return Ok(schedule);
    }
    load_shared(&rows, &mut schedule)?;
    load_queues(&rows, &mut schedule)?;
    load_groups(&rows, &mut schedule)?;
    load_jobs(&rows, &mut schedule)?;
    free_slots(&mut schedule);
    load_done(&rows, &mut schedule)?;
    load_keys(&rows, &mut schedule)?;
    load_recurring(&rows, &mut schedule)?;
    let now = schedule.last_now;
    for queue in schedule.queues.values_mut() {
        queue.groups.numbers().into_iter().for_each(|number| queue.settle_down(number, now));
    }
    Ok(schedule)
}

/// Whether anything was ever committed.
fn load_head(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<bool, Error> {
    let table = match rows.open_table(Named::Head.table()) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(false),
        table => table.map_err(trouble)?,
    };
    let Some(row) = table.get((0, "head")).map_err(trouble)? else { return Ok(false) };
    let mut row = In(row.value());
    check_format(row.u32()?)?;
    schedule.next_id = row.u64()?;
    schedule.next_queue = row.u32()?;
    schedule.last_now = row.time()?;
    schedule.latest = row.time()?;
    if let Some(row) = table.get((0, SECRET)).map_err(trouble)? {
        schedule.secret = Some(row.value().try_into().map_err(|_| damaged())?);
    }
    Ok(true)
}

fn numbered(
    rows: &ReadTransaction,
    table: Numbered,
) -> Result<ReadOnlyTable<(u32, u64), &'static [u8]>, Error> {
    rows.open_table(table.table()).map_err(trouble)
}

/// Calls `read` with queue, name and bytes of every row.
fn each_named(
    rows: &ReadTransaction,
    table: Named,
    mut read: impl FnMut(u32, &str, In<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    for row in rows.open_table(table.table()).map_err(trouble)?.iter().map_err(trouble)? {
        let (key, row) = row.map_err(trouble)?;
        let (queue, name) = key.value();
        read(queue, name, In(row.value()))?;
    }
    Ok(())
}

fn load_shared(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    each_named(rows, Named::Shared, |_, name, mut row| {
        let name = QueueName::new(name).map_err(|_| damaged())?;
        let limit = row.text()?.parse().map_err(|_| damaged())?;
        schedule.shared.insert(name, (limit, read_gate(&mut row)?));
        Ok(())
    })
}

fn load_queues(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    for row in numbered(rows, Numbered::Queues)?.iter().map_err(trouble)? {
        let (key, row) = row.map_err(trouble)?;
        let ((number, _), mut row) = (key.value(), In(row.value()));
        let name = QueueName::new(row.text()?).map_err(|_| damaged())?;
        let paused = row.flag()?;
        let mut queue = Queue::new(read_settings(&mut row)?);
        queue.paused = paused;
        queue.gates = read_gates(&mut row)?;
        if !row.0.is_empty() {
            queue.settings.bytes_max = row.u64()?;
        }
        schedule.names.insert(name, number);
        schedule.queues.insert(number, queue);
    }
    Ok(())
}

fn load_groups(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    each_named(rows, Named::Groups, |number, name, mut row| {
        let queue = schedule.queues.get_mut(&number).ok_or_else(damaged)?;
        let group = Group::new(name).map_err(|_| damaged())?;
        let number = queue.groups.number(&group);
        let state = queue.groups.get_mut(number);
        state.paused = row.flag()?;
        state.blocked_until = row.time()?;
        state.own_limits = row.option(read_limits)?.map(Vec::into_boxed_slice);
        state.gates = read_gates(&mut row)?;
        state.stored = true;
        Ok(())
    })
}

fn load_jobs(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    let moves = numbered(rows, Numbered::Moves)?;
    let dead = numbered(rows, Numbered::Dead)?;
    for row in numbered(rows, Numbered::Jobs)?.iter().map_err(trouble)? {
        let (key, row) = row.map_err(trouble)?;
        let (number, id) = key.value();
        let (group, mut entry, _) = read_job(In(row.value()))?;
        let group = Group::new(group).map_err(|_| damaged())?;
        let running = match moves.get((number, id)).map_err(trouble)? {
            Some(row) => read_move(In(row.value()), &mut entry)?,
            None => None,
        };
        if let Some(row) = dead.get((number, id)).map_err(trouble)? {
            let mut row = In(row.value());
            let (at, reason) = (row.time()?, row.text()?.to_owned());
            let queue = schedule.queues.get_mut(&number).ok_or_else(damaged)?;
            queue.history.remember_dead(id, Over { group, entry, at, reason });
            continue;
        }
        restore(schedule, number, id, &group, entry, running)?;
    }
    Ok(())
}

/// Puts a job back where it was.
fn restore(
    schedule: &mut Schedule,
    number: u32,
    id: u64,
    group: &Group,
    mut entry: Entry,
    running: Option<Running>,
) -> Result<(), Error> {
    let now: Timestamp = schedule.last_now;
    let queue = schedule.queues.get_mut(&number).ok_or_else(damaged)?;
    entry.group = queue.groups.number(group);
    match running {
        Some(running) => queue.restore_running(id, entry, running, &mut schedule.shared),
        None => queue.admit(id, entry, now),
    }
    Ok(())
}

/// Frees the slots of jobs that ended after what is in use of their limits was last written.
fn free_slots(schedule: &mut Schedule) {
    let Schedule { queues, shared, .. } = schedule;
    let running: std::collections::HashSet<u64> =
        queues.values().flat_map(|queue| queue.leases.keys().copied()).collect();
    let mut free = |gate: &mut Gate| gate.retain(|job| running.contains(&job));
    shared.values_mut().for_each(|(_, gate)| free(gate));
    for queue in queues.values_mut() {
        queue.gates.iter_mut().for_each(&mut free);
        for number in queue.groups.numbers() {
            queue.groups.get_mut(number).gates.iter_mut().for_each(&mut free);
        }
    }
}

fn load_done(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    let mut done = Vec::new();
    for row in numbered(rows, Numbered::Done)?.iter().map_err(trouble)? {
        let (key, row) = row.map_err(trouble)?;
        let (number, id) = key.value();
        done.push((number, id, read_done(In(row.value()))?));
    }
    done.sort_by_key(|(_, id, over)| (over.at, *id));
    for (number, id, over) in done {
        schedule.queues.get_mut(&number).ok_or_else(damaged)?.history.remember_done(id, over);
    }
    Ok(())
}

fn load_keys(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    let mut keys = Vec::new();
    each_named(rows, Named::Keys, |number, key, mut row| {
        let (id, until) = (row.u64()?, row.time()?);
        keys.push((until, id, number, key.to_owned()));
        Ok(())
    })?;
    keys.sort();
    for (until, id, number, key) in keys {
        let queue = schedule.queues.get_mut(&number).ok_or_else(damaged)?;
        queue.history.remember_key(key.into(), id, until);
    }
    Ok(())
}

fn load_recurring(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    each_named(rows, Named::Recurring, |number, name, mut row| {
        let next = row.time()?;
        let recurring = read_recurring(name, &mut row)?;
        let queue = schedule.queues.get_mut(&number).ok_or_else(damaged)?;
        queue.history.put_recurring(recurring, next);
        Ok(())
    })
}

fn trouble(error: impl Into<redb::Error>) -> Error {
    super::trouble(error.into())
}
