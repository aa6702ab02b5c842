//! What scripts answer, read into the queue's words.

use std::time::Duration;

use bytes::Bytes;
use redis::Value;
use tollway_core::Timestamp;

use super::encode::moment;
use super::estimate::GroupTold;
use crate::error::{Error, ErrorKind};
use crate::{
    AttemptEnd, Beat, Counts, EndMark, Ended, Group, GroupStats, Job, JobId, JobState, Lease,
    PastAttempt, Progress, Settled, Stats, Totals,
};
use tollway_journal::bytes_codec::ByteReader;

/// That an answer is not as the script writes it.
pub(super) fn damaged() -> Error {
    Error::new(ErrorKind::Corrupt, "what the server holds is not a queue as this version writes it")
}

pub(super) fn list(value: Value) -> Result<Vec<Value>, Error> {
    match value {
        Value::Array(list) => Ok(list),
        _ => Err(damaged()),
    }
}

pub(super) fn bytes(value: &Value) -> Result<&[u8], Error> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.as_bytes()),
        _ => Err(damaged()),
    }
}

pub(super) fn text(value: &Value) -> Result<&str, Error> {
    std::str::from_utf8(bytes(value)?).map_err(|_| damaged())
}

/// A whole number, as such or in digits.
pub(super) fn number(value: &Value) -> Result<i64, Error> {
    match value {
        Value::Int(number) => Ok(*number),
        _ => text(value)?.parse().map_err(|_| damaged()),
    }
}

pub(super) fn unsigned(value: &Value) -> Result<u64, Error> {
    u64::try_from(number(value)?).map_err(|_| damaged())
}

/// A moment; `None` if it is negative.
pub(super) fn moment_of(value: &Value) -> Result<Option<Timestamp>, Error> {
    Ok(u64::try_from(number(value)?).ok().map(moment))
}

/// A job as it is stored: as a lease of it would be that is yet to begin, and when it is due.
pub(super) fn stored(id: u64, bytes: &[u8]) -> Result<(Lease, Timestamp), Error> {
    read_stored(id, &mut ByteReader(bytes)).ok_or_else(damaged)
}

fn read_stored(id: u64, read: &mut ByteReader<'_>) -> Option<(Lease, Timestamp)> {
    let (enqueued, due) = (read.f64()? as u64, read.f64()? as u64);
    let (priority, weight) = (read.u8()?, read.u32()?);
    let (attempt, failures) = (read.u32()?, read.u32()?);
    // The most attempts, the backoff and the key are for scripts alone.
    let _overrides = (read.u32()?, read.f64()?, read.f64()?, read.short_text()?);
    let lease = Lease {
        id: JobId(id),
        attempt,
        failures,
        group: Group::new(read.short_text()?).ok()?,
        payload: Bytes::copy_from_slice(read.0),
        priority,
        weight,
        enqueued_at: moment(enqueued),
        leased_at: Timestamp::MIN,
        expires_at: Timestamp::MIN,
    };
    Some((lease, moment(due)))
}

/// A job that waits, as `told` of its group and the units ahead of it.
pub(super) fn waiting(
    id: u64,
    bytes: &[u8],
    told: &GroupTold<'_>,
    ahead: i64,
) -> Result<Job, Error> {
    let (found, due_at) = stored(id, bytes)?;
    let ready = told.estimate(ahead, found.weight, due_at);
    Ok(found.into_job(JobState::Waiting { due_at, ready }, Vec::new()))
}

/// A job that runs, by the bytes of its lease.
pub(super) fn running(id: u64, job: &[u8], lease: &[u8]) -> Result<Job, Error> {
    let (found, _) = stored(id, job)?;
    let (attempt, state) = read_lease(&mut ByteReader(lease)).ok_or_else(damaged)?;
    Ok(Job { attempt, ..found.into_job(state, Vec::new()) })
}

fn read_lease(read: &mut ByteReader<'_>) -> Option<(u32, JobState)> {
    let attempt = read.u32()?;
    let (leased, expires) = (read.f64()? as u64, read.f64()? as u64);
    let cancelled = read.u8()? % 2 == 1;
    let (done, total) = (read.f64()?, read.f64()?);
    let _is_alone = read.u8()?;
    for _ in 0..3 {
        let limits = usize::from(read.u8()?);
        read.take(limits * 4)?;
    }
    let length = usize::from(read.u8()?);
    let worker = String::from_utf8_lossy(read.take(length)?).into_owned();
    let progress = (done >= 0.0).then_some(Progress { done: done as u64, total: total as u64 });
    let (leased_at, expires_at) = (moment(leased), moment(expires));
    Some((attempt, JobState::Running { worker, leased_at, expires_at, progress, cancelled }))
}

/// A job that is over.
pub(super) fn over(id: u64, bytes: &[u8], is_dead: bool) -> Result<Job, Error> {
    let mut read = ByteReader(bytes);
    let (at, has_result, note, behind) = read_over(&mut read).ok_or_else(damaged)?;
    let (found, _) = stored(id, read.0)?;
    let past = past(behind)?;
    let at = moment(at as u64);
    let state = if is_dead {
        JobState::Dead { at, reason: String::from_utf8_lossy(note).into_owned() }
    } else {
        JobState::Done { at, result: has_result.then(|| Bytes::copy_from_slice(note)) }
    };
    Ok(found.into_job(state, past))
}

/// Attempts that did not get a job done, as `scripts/stored_jobs.lua` notes them.
pub(super) fn past(bytes: &[u8]) -> Result<Vec<PastAttempt>, Error> {
    let mut read = ByteReader(bytes);
    let mut all = Vec::new();
    while !read.0.is_empty() {
        all.push(read_past(&mut read).ok_or_else(damaged)?);
    }
    Ok(all)
}

fn read_past(read: &mut ByteReader<'_>) -> Option<PastAttempt> {
    let attempt = read.u32()?;
    let (leased, ended) = (read.f64()? as u64, read.f64()? as u64);
    let (how, wait) = (read.u8()?, read.f64()? as u64);
    let length = usize::from(read.u8()?);
    let worker = String::from_utf8_lossy(read.take(length)?).into_owned();
    let reason = read.short_text()?.to_owned();
    let end = match how {
        2 => AttemptEnd::Failed { reason },
        3 => AttemptEnd::Limited { wait: Duration::from_micros(wait) },
        4 => AttemptEnd::Released,
        5 => AttemptEnd::Expired,
        _ => return None,
    };
    let (leased_at, ended_at) = (moment(leased), moment(ended));
    Some(PastAttempt { attempt, worker, leased_at, ended_at, end })
}

/// Jobs that ended after `after`; without it, where they end.
pub(super) fn ended(answer: &[Value], after: Option<EndMark>) -> Result<Ended, Error> {
    let parts = answer.get(1..).ok_or_else(damaged)?;
    let Some(after) = after else {
        let [at, id] = parts else { return Err(damaged()) };
        let mark = EndMark { at: moment(unsigned(at)?), id: JobId(unsigned(id)?) };
        return Ok(Ended { jobs: Vec::new(), mark });
    };
    let read = |part: &[Value]| over(unsigned(&part[0])?, bytes(&part[2])?, number(&part[1])? == 1);
    let jobs = parts.chunks_exact(3).map(read).collect::<Result<Vec<_>, _>>()?;
    Ok(Ended { mark: jobs.last().and_then(Job::end_mark).unwrap_or(after), jobs })
}

/// When it was over, whether there is a result, that or the reason, and the past attempts.
fn read_over<'a>(read: &mut ByteReader<'a>) -> Option<(f64, bool, &'a [u8], &'a [u8])> {
    let (at, flags) = (read.f64()?, read.u8()?);
    let length = usize::try_from(read.u32()?).ok()?;
    let noted = read.take(length)?;
    let (note, past) = match flags & 2 {
        0 => (noted, &noted[length..]),
        _ => {
            let (rest, last) = noted.split_last_chunk::<4>()?;
            let past = usize::try_from(u32::from_le_bytes(*last)).ok()?;
            rest.split_at_checked(rest.len().checked_sub(past)?)?
        }
    };
    Some((at, flags & 1 == 1, note, past))
}

/// What became of leases that were settled.
pub(super) fn settled(value: Value) -> Result<Vec<Settled>, Error> {
    let [_, answers] = two(value)?;
    let mut read = ByteReader(bytes(&answers)?);
    let mut all = Vec::with_capacity(read.0.len() / 9);
    while !read.0.is_empty() {
        let (code, time) = read.u8().zip(read.f64()).ok_or_else(damaged)?;
        all.push(match code {
            1 => Settled::Done,
            2 => Settled::Waiting { from: moment(time as u64) },
            3 => Settled::Dead,
            4 => Settled::Cancelled,
            _ => Settled::Lost,
        });
    }
    Ok(all)
}

/// How leases stand.
pub(super) fn beats(value: Value) -> Result<Vec<Beat>, Error> {
    let [_, answers] = two(value)?;
    let pair = |pair: &[Value]| {
        let until = moment_of(&pair[1])?.ok_or_else(damaged)?;
        Ok(match number(&pair[0])? {
            1 => Beat::Until(until),
            2 => Beat::Cancelled(until),
            _ => Beat::Lost,
        })
    };
    list(answers)?.chunks_exact(2).map(pair).collect()
}

fn two(value: Value) -> Result<[Value; 2], Error> {
    list(value)?.try_into().map_err(|_| damaged())
}

/// The figures of a queue.
pub(super) fn stats(value: Value, max: usize) -> Result<Stats, Error> {
    let mut parts = list(value)?.into_iter();
    let mut next = || parts.next().ok_or_else(damaged);
    let (_frame, totals, figures) = (next()?, list(next()?)?, list(next()?)?);
    let mut groups = parts.map(group_stats).collect::<Result<Vec<_>, _>>()?;
    let more = groups.len() > max;
    groups.truncate(max);
    let totals = totals.iter().map(unsigned).collect::<Result<Vec<u64>, _>>()?;
    let [enqueued, leased, done, failed, limited, expired, dead, cancelled, missed, delayed] =
        totals[..]
    else {
        return Err(damaged());
    };
    let totals =
        Totals { enqueued, leased, done, failed, limited, expired, dead, cancelled, missed };
    let [jobs, running, groups_total, done, dead, paused, next, oldest] = &figures[..] else {
        return Err(damaged());
    };
    let (jobs, running) = (unsigned(jobs)?, unsigned(running)?);
    let waiting = jobs.saturating_sub(running).saturating_sub(delayed);
    Ok(Stats {
        queue: Counts { waiting, delayed, running },
        paused: number(paused)? == 1,
        groups_total: unsigned(groups_total)?,
        dead: unsigned(dead)?,
        done: unsigned(done)?,
        totals,
        oldest: moment_of(oldest)?,
        next: moment_of(next)?,
        after: groups.last().filter(|_| more).map(|last| last.group.clone()),
        groups,
    })
}

fn group_stats(value: Value) -> Result<GroupStats, Error> {
    let parts = list(value)?;
    let [name, waiting, delayed, running, paused, blocked, next] = &parts[..] else {
        return Err(damaged());
    };
    Ok(GroupStats {
        group: Group::new(text(name)?)?,
        counts: Counts {
            waiting: unsigned(waiting)?,
            delayed: unsigned(delayed)?,
            running: unsigned(running)?,
        },
        paused: number(paused)? == 1,
        blocked_until: moment_of(blocked)?,
        next: moment_of(next)?,
    })
}
