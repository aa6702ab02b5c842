//! Reading the schedule from a file: rows first, then the order that follows from them.

use redb::{Database, ReadTransaction, ReadableDatabase, ReadableTable, TableError};
use tollgate_core::Timestamp;

use super::bytes::{In, damaged};
use super::rows::{
    read_gate, read_gates, read_job, read_limits, read_move, read_recurring, read_settings,
};
use super::vault::{
    DEAD, DONE, FORMAT, GROUPS, HEAD, JOBS, KEYS, MOVES, QUEUES, RECURRING, SHARED,
};
use crate::error::{Error, ErrorKind};
use crate::schedule::{Entry, Over, Queue, Running, Schedule};
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
    load_done(&rows, &mut schedule)?;
    load_keys(&rows, &mut schedule)?;
    load_recurring(&rows, &mut schedule)?;
    let now = schedule.last_now;
    for queue in schedule.queues.values_mut() {
        queue.groups.numbers().into_iter().for_each(|number| queue.settle_down(number, now));
    }
    Ok(schedule)
}

fn load_head(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<bool, Error> {
    let table = match rows.open_table(HEAD) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(false),
        table => table.map_err(trouble)?,
    };
    let Some(row) = table.get("head").map_err(trouble)? else { return Ok(false) };
    let mut row = In(row.value());
    let format = row.u32()?;
    if format != FORMAT {
        let message = format!("the queue file has format {format}; this version reads {FORMAT}");
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    schedule.next_id = row.u64()?;
    schedule.next_queue = row.u32()?;
    schedule.last_now = row.time()?;
    schedule.latest = row.time()?;
    Ok(true)
}

fn load_shared(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    for row in rows.open_table(SHARED).map_err(trouble)?.iter().map_err(trouble)? {
        let (name, row) = row.map_err(trouble)?;
        let name = QueueName::new(name.value()).map_err(|_| damaged())?;
        let mut row = In(row.value());
        let limit = row.text()?.parse().map_err(|_| damaged())?;
        schedule.shared.insert(name, (limit, read_gate(&mut row)?));
    }
    Ok(())
}

fn load_queues(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    for row in rows.open_table(QUEUES).map_err(trouble)?.iter().map_err(trouble)? {
        let (number, row) = row.map_err(trouble)?;
        let (number, mut row) = (number.value(), In(row.value()));
        let name = QueueName::new(row.text()?).map_err(|_| damaged())?;
        let paused = row.flag()?;
        let mut queue = Queue::new(read_settings(&mut row)?);
        queue.paused = paused;
        queue.gates = read_gates(&mut row)?;
        schedule.names.insert(name, number);
        schedule.queues.insert(number, queue);
    }
    Ok(())
}

fn load_groups(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    for row in rows.open_table(GROUPS).map_err(trouble)?.iter().map_err(trouble)? {
        let (key, row) = row.map_err(trouble)?;
        let (number, name) = key.value();
        let queue = schedule.queues.get_mut(&number).ok_or_else(damaged)?;
        let group = Group::new(name).map_err(|_| damaged())?;
        let number = queue.groups.number(&group);
        let state = queue.groups.get_mut(number);
        let mut row = In(row.value());
        state.paused = row.flag()?;
        state.blocked_until = row.time()?;
        state.own_limits = row.option(read_limits)?.map(Vec::into_boxed_slice);
        state.gates = read_gates(&mut row)?;
        state.stored = true;
    }
    Ok(())
}

fn load_jobs(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    let moves = rows.open_table(MOVES).map_err(trouble)?;
    let dead = rows.open_table(DEAD).map_err(trouble)?;
    for row in rows.open_table(JOBS).map_err(trouble)?.iter().map_err(trouble)? {
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
            queue.kept.remember_dead(id, Over { group, entry, at, reason, stored: true });
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

fn load_done(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    let mut done = Vec::new();
    for row in rows.open_table(DONE).map_err(trouble)?.iter().map_err(trouble)? {
        let (key, row) = row.map_err(trouble)?;
        let (number, id) = key.value();
        let mut row = In(row.value());
        let (at, attempt, failures) = (row.time()?, row.u32()?, row.u32()?);
        row.bytes()?;
        let (group, entry, _) = read_job(row)?;
        let group = Group::new(group).map_err(|_| damaged())?;
        let entry = Entry { attempt, failures, ..entry };
        done.push((number, id, Over { group, entry, at, reason: String::new(), stored: true }));
    }
    done.sort_by_key(|(_, id, over)| (over.at, *id));
    for (number, id, over) in done {
        schedule.queues.get_mut(&number).ok_or_else(damaged)?.kept.remember_done(id, over);
    }
    Ok(())
}

fn load_keys(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    let mut keys = Vec::new();
    for row in rows.open_table(KEYS).map_err(trouble)?.iter().map_err(trouble)? {
        let (key, row) = row.map_err(trouble)?;
        let (number, text) = key.value();
        let mut row = In(row.value());
        let (id, until) = (row.u64()?, row.time()?);
        keys.push((until, id, number, text.to_owned()));
    }
    keys.sort();
    for (until, id, number, key) in keys {
        let queue = schedule.queues.get_mut(&number).ok_or_else(damaged)?;
        queue.kept.remember_key(key.into(), id, until);
    }
    Ok(())
}

fn load_recurring(rows: &ReadTransaction, schedule: &mut Schedule) -> Result<(), Error> {
    for row in rows.open_table(RECURRING).map_err(trouble)?.iter().map_err(trouble)? {
        let (key, row) = row.map_err(trouble)?;
        let (number, name) = key.value();
        let mut row = In(row.value());
        let next = row.time()?;
        let recurring = read_recurring(name, &mut row)?;
        let queue = schedule.queues.get_mut(&number).ok_or_else(damaged)?;
        queue.kept.put_recurring(recurring, next);
    }
    Ok(())
}

fn trouble(error: impl Into<redb::Error>) -> Error {
    super::trouble(error.into())
}
