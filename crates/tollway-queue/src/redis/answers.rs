//! What batches of calls are told and answered.

use std::collections::HashMap;
use std::ops::RangeFrom;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use redis::Value;
use tollway_core::Timestamp;

use super::estimate::{Frame, Setting, Told};
use super::pack::{self, Reader, START_BYTES, unpack_settings};
use super::read::{bytes, damaged, list, number, settled, text, unsigned};
use super::script::{ENQUEUE, SETTLE};
use super::{Inner, QueueContext};
use crate::error::{Error, ErrorKind};
use crate::{Enqueued, JobId, QueueSettings, Settled};

type Answering<R> = Pin<Box<dyn Future<Output = Result<Vec<Result<R, Error>>, Error>> + Send>>;

/// Answers batches of calls that enqueue.
pub(super) fn enqueue_all(
    inner: &Arc<Inner>,
    context: Weak<QueueContext>,
) -> impl Fn(Vec<Vec<Vec<u8>>>) -> Answering<Vec<Enqueued>> + Send + Sync + use<> {
    let inner = Arc::downgrade(inner);
    move |calls| {
        let (inner, context) = (inner.upgrade(), context.upgrade());
        Box::pin(async move {
            let (Some(inner), Some(context)) = (inner, context) else { return Err(gone()) };
            enqueue(&inner, &context, calls, Timestamp::MIN).await
        })
    }
}

/// Answers batches of calls that settle.
pub(super) fn settle_all(
    inner: &Arc<Inner>,
    base: Vec<u8>,
) -> impl Fn(Vec<Vec<Vec<u8>>>) -> Answering<Vec<Settled>> + Send + Sync + use<> {
    let inner = Arc::downgrade(inner);
    move |calls| {
        let (inner, base) = (inner.upgrade(), base.clone());
        Box::pin(async move {
            let Some(inner) = inner else { return Err(gone()) };
            settle(&inner, &base, calls, Timestamp::MIN).await
        })
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the backend is being shut down")
}

/// Enqueues the jobs of several calls; each call all or none.
pub(super) async fn enqueue(
    inner: &Arc<Inner>,
    context: &Arc<QueueContext>,
    calls: Vec<Vec<Vec<u8>>>,
    now: Timestamp,
) -> Result<Vec<Result<Vec<Enqueued>, Error>>, Error> {
    let asked: Vec<Vec<Asked>> = calls.iter().map(|call| Asked::of_call(call)).collect();
    let arguments = pack::calls(calls);
    let answer = list(inner.change(&ENQUEUE, &context.base, now, arguments).await?)?;
    let [frame, groups, special, calls, names] =
        <[Value; 5]>::try_from(answer).map_err(|_| damaged())?;
    let setting = context.setting(inner, Frame::read(&frame)?).await?;
    let is_row = matches!(calls, Value::BulkString(_));
    let names = if is_row { names_of(&asked) } else { listed(list(names)?)? };
    let mut told = told(list(groups)?, list(special)?, names, &setting)?;
    if is_row {
        let mut ids = unsigned(&calls)?..;
        return Ok(asked.iter().map(|jobs| Ok(read_row(&mut ids, &mut told, jobs))).collect());
    }
    let calls = list(calls)?;
    Ok(calls.iter().zip(asked).map(|(call, jobs)| read_call(call, &told, &jobs)).collect())
}

/// The groups of jobs in the order in which they appear, and how many jobs are new in each.
fn names_of(asked: &[Vec<Asked>]) -> Vec<(String, i64)> {
    let mut names: Vec<(String, i64)> = Vec::new();
    let mut places = HashMap::new();
    for job in asked.iter().flatten() {
        let place = *places.entry(job.group.as_str()).or_insert(names.len());
        match names.get_mut(place) {
            Some((_, new)) => *new += 1,
            None => names.push((job.group.clone(), 1)),
        }
    }
    names
}

/// The groups that an answer lists, and how many jobs are new in each.
fn listed(names: Vec<Value>) -> Result<Vec<(String, i64)>, Error> {
    names.chunks_exact(2).map(|pair| Ok((text(&pair[0])?.to_owned(), number(&pair[1])?))).collect()
}

fn told<'s>(
    groups: Vec<Value>,
    special: Vec<Value>,
    names: Vec<(String, i64)>,
    setting: &'s Setting,
) -> Result<Groups<'s>, Error> {
    let mut special = special.into_iter();
    let mut told = HashMap::with_capacity(names.len());
    for (group, (name, new)) in groups.chunks_exact(2).zip(names) {
        let ahead = number(&group[1])?;
        let paused = special.next().unwrap_or(Value::Int(0));
        let own = special.next().unwrap_or(Value::BulkString(Vec::new()));
        let group = Told::of(bytes(&group[0])?, ahead + new, &paused, &own, setting)?;
        told.insert(name, (group, ahead));
    }
    Ok(told)
}

/// What was told of each group, and the units ahead of the next job that is read of it.
type Groups<'s> = HashMap<String, (Told<'s>, i64)>;

/// What was asked for, as far as its answer depends on it.
struct Asked {
    group: String,
    weight: u32,
    starts_later: bool,
}

impl Asked {
    /// The jobs of a call that [`pack::call`] packed.
    fn of_call(call: &[Vec<u8>]) -> Vec<Self> {
        let Some((starts, jobs)) = call.split_first() else { return Vec::new() };
        let starts = starts.chunks_exact(START_BYTES).map(|start| start[0] != 0);
        let starts = starts.chain(std::iter::repeat(false));
        jobs.iter().zip(starts).map(|(job, later)| Self::of(job, later)).collect()
    }

    fn of(job: &[u8], starts_later: bool) -> Self {
        let (weight, group) = pack::of_job(job).unwrap_or((1, ""));
        Self { group: group.to_owned(), weight, starts_later }
    }
}

fn read_call(call: &Value, told: &Groups<'_>, jobs: &[Asked]) -> Result<Vec<Enqueued>, Error> {
    match bytes(call)? {
        [b'J', each @ ..] => read_each(&mut Reader(each), told, jobs),
        _ => {
            let (word, rest) = text(call)?.split_once(' ').ok_or_else(damaged)?;
            let kind = if word == "FULL" { ErrorKind::Full } else { ErrorKind::Invalid };
            Err(Error::new(kind, rest))
        }
    }
}

/// Jobs with ids in a row, each behind those of its group that were read before.
fn read_row(ids: &mut RangeFrom<u64>, told: &mut Groups<'_>, jobs: &[Asked]) -> Vec<Enqueued> {
    let one = |(job, id): (&Asked, u64)| {
        // Of what is told again the groups are not remembered.
        let ready = told.get_mut(&job.group).and_then(|(group, next)| {
            let ahead = *next;
            *next += 1;
            group.estimate(ahead, job.weight, Timestamp::MIN)
        });
        Enqueued { id: JobId(id), duplicate: false, ready }
    };
    jobs.iter().zip(ids).map(one).collect()
}

/// Jobs of which each is told.
fn read_each(
    read: &mut Reader<'_>,
    told: &Groups<'_>,
    jobs: &[Asked],
) -> Result<Vec<Enqueued>, Error> {
    let mut one = |job: &Asked| {
        let (id, duplicate, ahead) = (read.double()? as u64, read.byte()? == 1, read.double()?);
        // Of a duplicate and of a job that starts later the place is not known here.
        let known = told.get(&job.group).filter(|_| !duplicate && !job.starts_later);
        let ready =
            known.and_then(|(told, _)| told.estimate(ahead as i64, job.weight, Timestamp::MIN));
        Some(Enqueued { id: JobId(id), duplicate, ready })
    };
    jobs.iter().map(|job| one(job).ok_or_else(damaged)).collect()
}

/// Settles the leases of several calls.
pub(super) async fn settle(
    inner: &Arc<Inner>,
    base: &[u8],
    calls: Vec<Vec<Vec<u8>>>,
    now: Timestamp,
) -> Result<Vec<Result<Vec<Settled>, Error>>, Error> {
    // Each lease takes two arguments.
    let lengths: Vec<usize> = calls.iter().map(|call| call.len() / 2).collect();
    let answer = inner.change(&SETTLE, base, now, calls.into_iter().flatten()).await?;
    let mut all = settled(answer)?.into_iter();
    Ok(lengths.into_iter().map(|length| Ok(all.by_ref().take(length).collect())).collect())
}

impl QueueContext {
    /// What an estimate needs beside a group.
    pub(super) async fn setting(&self, inner: &Inner, frame: Frame) -> Result<Setting, Error> {
        let settings = self.settings(inner, frame.version).await?;
        Setting::new(frame, settings)
    }

    /// The settings of that version: as read before, or read now.
    async fn settings(&self, inner: &Inner, version: u64) -> Result<Arc<QueueSettings>, Error> {
        if let Some((known, settings)) = &*self.lock_settings()
            && *known == version
        {
            return Ok(Arc::clone(settings));
        }
        let mut command = redis::cmd("HGET");
        command.arg([&self.base[..], b"c"].concat()).arg("s");
        let value = inner.client.ask(&command).await?;
        let settings = Arc::new(unpack_settings(bytes(&value)?)?);
        *self.lock_settings() = Some((version, Arc::clone(&settings)));
        Ok(settings)
    }

    fn lock_settings(&self) -> std::sync::MutexGuard<'_, Option<(u64, Arc<QueueSettings>)>> {
        self.settings.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
