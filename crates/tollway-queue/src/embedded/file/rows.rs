//! The rows of the file: what each holds, written and read here and nowhere else.
//!
//! ```text
//!   journal     number        -> format, rows of the tables below: see `journal`
//!   head        0, "head"     -> format, next job, next queue, last and latest time
//!               queue, "totals" -> what the queue has counted
//!   queues      queue, 0      -> name, paused, settings, gates in use, bytes_max, version, jitter,
//!                                what becomes of jobs that miss their deadlines
//!   shared      0, name       -> limit, gate in use, version
//!   jobs        queue, id     -> what was enqueued; never changed
//!   moves       queue, id     -> attempts, failures, due, lease, past attempts; absent before the
//!                                first
//!   dead        queue, id     -> when, why
//!   done        queue, id     -> when, its result, the job in short, past attempts
//!   groups      queue, group  -> pause, limits of its own, gates in use; absent if nothing is
//!   keys        queue, key    -> job, until when
//!   recurring   queue, name   -> when, what, next time
//! ```
//!
//! What is in flight of slots is written with what is answered, and not when a job starts: who is
//! not there holds what its weight says, and who does not run any more holds nothing.

use tollway_core::sliding_window::Cell;
use tollway_core::{State, Timestamp, fixed_window, gcra, leaky_bucket, sliding_window};
use tollway_journal::bytes_codec::{ByteReader, ByteWriter};

use crate::error::Error;
use crate::job::{Backoff, MissedDeadline, NewJob, Start};
use crate::schedule::{Edge, EndedJob, Entry, Gate, InFlight, JobOverrides, Running, Slots, Stage};
use crate::versions::VersionRecord;
use crate::{
    AttemptEnd, Group, Limit, PastAttempt, QueueName, QueueSettings, Recurring, Retention, Rhythm,
    Totals, Version,
};

/// The version of the rows.
pub(super) const FORMAT: u32 = 2;

/// Refuses rows of any other version.
pub(super) fn check_format(format: Option<u32>) -> Result<(), Error> {
    Ok(tollway_journal::Error::check_format(format, FORMAT)?)
}

/// The error for a row that cannot be decoded.
pub(super) fn damaged() -> Error {
    tollway_journal::Error::damaged().into()
}

/// What a failure of the database means to callers.
pub(super) fn failed(error: impl Into<redb::Error>) -> Error {
    tollway_journal::Error::of_database(error).into()
}

pub(super) fn write_settings(out: &mut ByteWriter, settings: &QueueSettings) {
    let limits = |out: &mut ByteWriter, limits: &[Limit]| {
        out.list(limits.iter(), |out, limit| {
            out.text(&limit.to_string());
        });
    };
    limits(out, &settings.group_limits);
    limits(out, &settings.queue_limits);
    out.list(settings.shared.iter(), |out, name| {
        out.text(name.as_str());
    });
    out.duration(settings.lease).u32(settings.attempts_max);
    write_backoff(out, settings.backoff);
    out.duration(settings.response_max).duration(settings.key_window).u32(settings.keys_max);
    out.u32(settings.payload_max).u64(settings.jobs_max).u32(settings.groups_max);
    let Retention { done_max, done_age, dead_max, dead_age } = settings.retention;
    out.u32(done_max).duration(done_age).u32(dead_max).duration(dead_age);
}

pub(super) fn read_settings(row: &mut ByteReader<'_>) -> Option<QueueSettings> {
    Some(QueueSettings {
        group_limits: read_limits(row)?,
        queue_limits: read_limits(row)?,
        shared: row.list(|row| QueueName::new(row.text()?).ok())?,
        lease: row.duration()?,
        attempts_max: row.u32()?,
        backoff: read_backoff(row)?,
        // These and `bytes_max` stand behind all else in the queue's row.
        backoff_jitter: QueueSettings::default().backoff_jitter,
        missed_deadline: MissedDeadline::default(),
        response_max: row.duration()?,
        key_window: row.duration()?,
        keys_max: row.u32()?,
        payload_max: row.u32()?,
        jobs_max: row.u64()?,
        bytes_max: QueueSettings::default().bytes_max,
        groups_max: row.u32()?,
        retention: Retention {
            done_max: row.u32()?,
            done_age: row.duration()?,
            dead_max: row.u32()?,
            dead_age: row.duration()?,
        },
    })
}

pub(super) fn read_limits(row: &mut ByteReader<'_>) -> Option<Vec<Limit>> {
    row.list(|row| row.text()?.parse().ok())
}

/// Which version of settings is in force; behind all else in a row, since older rows end before it.
pub(super) fn write_record(out: &mut ByteWriter, record: &VersionRecord) {
    let Version { number, is_from_file, at } = record.version;
    out.u64(number).u8(u8::from(is_from_file)).time(at);
    out.list(record.digests.iter(), |out, digest| {
        out.bytes(digest);
    });
}

/// What [`write_record`] wrote, if a version that wrote it was there.
pub(super) fn read_record(row: &mut ByteReader<'_>) -> Option<VersionRecord> {
    if row.0.is_empty() {
        return Some(VersionRecord::default());
    }
    let version = Version { number: row.u64()?, is_from_file: row.flag()?, at: row.time()? };
    let digests = row.list(|row| row.bytes()?.try_into().ok())?;
    Some(VersionRecord { version, digests })
}

fn write_backoff(out: &mut ByteWriter, backoff: Backoff) {
    out.duration(backoff.first).duration(backoff.max);
}

fn read_backoff(row: &mut ByteReader<'_>) -> Option<Backoff> {
    Some(Backoff { first: row.duration()?, max: row.duration()? })
}

pub(super) fn write_gates(out: &mut ByteWriter, gates: &[Gate]) {
    out.list(gates.iter(), write_gate);
}

pub(super) fn write_gate(out: &mut ByteWriter, gate: &Gate) {
    match gate {
        Gate::Slots(slots) => write_slots(out.u8(0), slots),
        Gate::Window(slots, edge) => {
            out.u8(7).option(*edge, |out, edge| {
                out.time(edge.early).time(edge.late);
            });
            write_slots(out, slots);
        }
        Gate::Answered(state, in_flight) => {
            write_held(out.u8(8), in_flight);
            write_gate(out, &Gate::Policy(state.clone()));
        }
        Gate::Policy(State::Gcra(state)) => write_words(out, 2, state.to_words()),
        Gate::Policy(State::LeakyBucket(state)) => write_words(out, 3, state.to_words()),
        Gate::Policy(State::FixedWindow(state)) => write_words(out, 4, state.to_words()),
        Gate::Policy(State::SlidingWindow(state)) => {
            out.u8(5).list(state.cells(), |out, cell| {
                out.u64(cell.tick).u64(cell.units);
            });
        }
        // `Limit::policy` makes slots of every other algorithm.
        Gate::Policy(_) => {
            out.u8(6);
        }
    }
}

fn write_slots(out: &mut ByteWriter, slots: &Slots) {
    // Anchors are many and near each other: the time since the one before is short.
    let mut before = 0;
    out.list(slots.anchors(), |out, (at, units)| {
        out.short(at.as_nanos() - before).short(u64::from(units));
        before = at.as_nanos();
    });
    write_held(out, &slots.in_flight);
}

fn write_held(out: &mut ByteWriter, in_flight: &InFlight) {
    out.list(in_flight.held(), |out, (job, units)| {
        out.short(job).short(u64::from(units));
    });
}

fn write_words(out: &mut ByteWriter, kind: u8, [first, second]: [u64; 2]) {
    out.u8(kind).u64(first).u64(second);
}

/// What is in use of several limits, in a file that was last written at `last`.
pub(super) fn read_gates(row: &mut ByteReader<'_>, last: Timestamp) -> Option<Vec<Gate>> {
    row.list(|row| read_gate(row, last))
}

pub(super) fn read_gate(row: &mut ByteReader<'_>, last: Timestamp) -> Option<Gate> {
    Some(match row.u8()? {
        0 => Gate::Slots(read_slots(row)?),
        // Older versions wrote a window's number and what was started in it.
        1 => {
            let (_number, used) = (row.u64()?, row.u32()?);
            let anchors = (used > 0).then_some((last, used));
            Gate::Window(Slots::answered(anchors, InFlight::default()), None)
        }
        2 => Gate::Policy(State::Gcra(gcra::State::from_words([row.u64()?, row.u64()?]))),
        3 => {
            let words = [row.u64()?, row.u64()?];
            Gate::Policy(State::LeakyBucket(leaky_bucket::State::from_words(words)))
        }
        4 => {
            let words = [row.u64()?, row.u64()?];
            Gate::Policy(State::FixedWindow(fixed_window::State::from_words(words)))
        }
        5 => {
            let cells = row.list(|row| Some(Cell { tick: row.u64()?, units: row.u64()? }))?;
            Gate::Policy(State::SlidingWindow(sliding_window::State::from_cells(cells)))
        }
        7 => {
            let edge = row.option(|row| Some(Edge { early: row.time()?, late: row.time()? }))?;
            Gate::Window(read_slots(row)?, edge)
        }
        8 => {
            let in_flight = read_held(row)?;
            // Nested no deeper: no answered limit is one of another.
            match (row.0.first() != Some(&8)).then(|| read_gate(row, last))?? {
                Gate::Policy(state) => Gate::Answered(state, in_flight),
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn read_slots(row: &mut ByteReader<'_>) -> Option<Slots> {
    let units = |row: &mut ByteReader<'_>| u32::try_from(row.short()?).ok();
    let mut at = 0u64;
    let anchors = row.list(|row| {
        at = at.checked_add(row.short()?)?;
        Some((Timestamp::from_nanos(at), units(row)?))
    })?;
    Some(Slots::answered(anchors, read_held(row)?))
}

fn read_held(row: &mut ByteReader<'_>) -> Option<InFlight> {
    let mut in_flight = InFlight::default();
    for (job, units) in row.list(|row| Some((row.short()?, u32::try_from(row.short()?).ok()?)))? {
        in_flight.hold(job, units);
    }
    Some(in_flight)
}

/// What was enqueued, before the payload.
pub(super) fn write_job(out: &mut ByteWriter, group: &Group, entry: &Entry, payload: &[u8]) {
    out.text(group.as_str()).u8(entry.priority).u32(entry.weight);
    write_stage(out, entry);
    out.u64(entry.due_ns).time(entry.enqueued_at);
    write_overrides(out, entry.overrides.as_deref());
    out.0.extend_from_slice(payload);
}

/// What [`write_job`] wrote: the group, the job (its group's number is not known yet), the payload.
pub(super) fn read_job<'a>(mut row: ByteReader<'a>) -> Option<(&'a str, Entry, &'a [u8])> {
    let group = row.text()?;
    let (priority, weight) = (row.u8()?, row.u32()?);
    let stage = read_stage(&mut row)?;
    let (due_ns, enqueued_at) = (row.u64()?, row.time()?);
    let overrides = read_overrides(&mut row)?;
    let entry = Entry {
        group: 0,
        weight,
        attempt: 0,
        failures: 0,
        payload_len: u32::try_from(row.0.len()).ok()?,
        priority,
        stage,
        due_ns,
        enqueued_at,
        overrides,
    };
    Some((group, entry, row.0))
}

/// 0 if there are none, 1 in older versions, which knew no deadlines, otherwise 2.
fn write_overrides(out: &mut ByteWriter, overrides: Option<&JobOverrides>) {
    let Some(overrides) = overrides else {
        out.u8(0);
        return;
    };
    out.u8(2).option(overrides.attempts_max, |out, attempts_max| {
        out.u32(attempts_max);
    });
    out.option(overrides.backoff, write_backoff);
    out.option(overrides.key.as_deref(), |out, key| {
        out.text(key);
    });
    out.option(overrides.deadline_ns, |out, deadline_ns| {
        out.u64(deadline_ns);
    });
}

fn read_overrides(row: &mut ByteReader<'_>) -> Option<Option<Box<JobOverrides>>> {
    let version @ 0..=2 = row.u8()? else { return None };
    if version == 0 {
        return Some(None);
    }
    Some(Some(Box::new(JobOverrides {
        attempts_max: row.option(ByteReader::u32)?,
        backoff: row.option(read_backoff)?,
        key: row.option(|row| Some(row.text()?.into()))?,
        deadline_ns: if version == 2 { row.option(ByteReader::u64)? } else { None },
        past: Vec::new(),
    })))
}

/// Whether a job is delayed; that it runs is said by its lease.
fn write_stage(out: &mut ByteWriter, entry: &Entry) {
    out.u8(u8::from(entry.stage == Stage::Delayed));
}

fn read_stage(row: &mut ByteReader<'_>) -> Option<Stage> {
    Some(if row.flag()? { Stage::Delayed } else { Stage::Waiting })
}

pub(super) fn write_move(out: &mut ByteWriter, entry: &Entry, running: Option<&Running>) {
    write_stage(out, entry);
    out.u32(entry.attempt).u32(entry.failures).u64(entry.due_ns);
    out.option(running, |out, running| {
        out.text(&running.worker).time(running.leased_at).time(running.expires_at);
        out.u8(u8::from(running.cancelled));
    });
    write_past(out, entry.past());
}

/// Brings `entry` up to date; the lease, if it runs.
pub(super) fn read_move(mut row: ByteReader<'_>, entry: &mut Entry) -> Option<Option<Running>> {
    entry.stage = read_stage(&mut row)?;
    (entry.attempt, entry.failures, entry.due_ns) = (row.u32()?, row.u32()?, row.u64()?);
    let running = row.option(|row| {
        Some(Running {
            worker: row.text()?.into(),
            leased_at: row.time()?,
            expires_at: row.time()?,
            progress: None,
            cancelled: row.flag()?,
            refits: None,
        })
    })?;
    read_past(&mut row, entry)?;
    Some(running)
}

/// Past attempts, behind all else in a row: older rows end before them, as those of jobs without.
fn write_past(out: &mut ByteWriter, past: &[PastAttempt]) {
    if past.is_empty() {
        return;
    }
    out.list(past.iter(), |out, past| {
        out.u32(past.attempt).text(&past.worker).time(past.leased_at).time(past.ended_at);
        match &past.end {
            AttemptEnd::Failed { reason } => out.u8(0).text(reason),
            AttemptEnd::Limited { wait } => out.u8(1).duration(*wait),
            AttemptEnd::Released => out.u8(2),
            AttemptEnd::Expired => out.u8(3),
        };
    });
}

/// Gives `entry` what [`write_past`] wrote.
fn read_past(row: &mut ByteReader<'_>, entry: &mut Entry) -> Option<()> {
    if row.0.is_empty() {
        return Some(());
    }
    entry.overrides.get_or_insert_default().past = row.list(|row| {
        Some(PastAttempt {
            attempt: row.u32()?,
            worker: row.text()?.to_owned(),
            leased_at: row.time()?,
            ended_at: row.time()?,
            end: match row.u8()? {
                0 => AttemptEnd::Failed { reason: row.text()?.to_owned() },
                1 => AttemptEnd::Limited { wait: row.duration()? },
                2 => AttemptEnd::Released,
                3 => AttemptEnd::Expired,
                _ => return None,
            },
        })
    })?;
    Some(())
}

pub(super) fn write_done(out: &mut ByteWriter, over: &EndedJob, result: Option<&[u8]>) {
    out.option(result, |out, result| {
        out.bytes(result);
    });
    out.time(over.at).u32(over.entry.attempt).u32(over.entry.failures);
    write_job(out, &over.group, &over.entry, &[]);
    write_past(out, over.entry.past());
}

/// The result in a row that [`write_done`] wrote, if there was one.
pub(super) fn read_result(mut row: ByteReader<'_>) -> Option<Option<&[u8]>> {
    row.option(ByteReader::bytes)
}

pub(super) fn read_done(mut row: ByteReader<'_>) -> Option<EndedJob> {
    row.option(ByteReader::bytes)?;
    let (at, attempt, failures) = (row.time()?, row.u32()?, row.u32()?);
    let (group, entry, rest) = read_job(row)?;
    let group = Group::new(group).ok()?;
    // Its payload is not kept.
    let mut entry = Entry { attempt, failures, payload_len: 0, ..entry };
    read_past(&mut ByteReader(rest), &mut entry)?;
    Some(EndedJob { group, entry, at, reason: String::new() })
}

pub(super) fn write_totals(out: &mut ByteWriter, totals: &Totals) {
    let Totals { enqueued, leased, done, failed, limited, expired, dead, cancelled, missed } =
        *totals;
    for count in [enqueued, leased, done, failed, limited, expired, dead, cancelled, missed] {
        out.short(count);
    }
}

pub(super) fn read_totals(mut row: ByteReader<'_>) -> Option<Totals> {
    Some(Totals {
        enqueued: row.short()?,
        leased: row.short()?,
        done: row.short()?,
        failed: row.short()?,
        limited: row.short()?,
        expired: row.short()?,
        dead: row.short()?,
        cancelled: row.short()?,
        missed: row.short()?,
    })
}

pub(super) fn write_recurring(out: &mut ByteWriter, recurring: &Recurring) {
    match &recurring.rhythm {
        Rhythm::Cron(cron) => out.u8(0).text(&cron.to_string()),
        Rhythm::Every(interval) => out.u8(1).duration(*interval),
    };
    let job = &recurring.job;
    out.text(job.group.as_str()).u8(job.priority).u32(job.weight);
    out.option(job.attempts_max, |out, attempts_max| {
        out.u32(attempts_max);
    });
    out.option(job.backoff, write_backoff).bytes(&job.payload);
}

pub(super) fn read_recurring(name: &str, row: &mut ByteReader<'_>) -> Option<Recurring> {
    let rhythm = match row.u8()? {
        0 => Rhythm::Cron(row.text()?.parse().ok()?),
        1 => Rhythm::Every(row.duration()?),
        _ => return None,
    };
    let group = Group::new(row.text()?).ok()?;
    let (priority, weight) = (row.u8()?, row.u32()?);
    let (attempts_max, backoff) = (row.option(ByteReader::u32)?, row.option(read_backoff)?);
    let payload = bytes::Bytes::copy_from_slice(row.bytes()?);
    let start = Start::Now;
    let (key, deadline) = (None, None);
    let job =
        NewJob { group, payload, priority, weight, start, key, attempts_max, backoff, deadline };
    Some(Recurring { name: name.to_owned(), rhythm, job })
}
