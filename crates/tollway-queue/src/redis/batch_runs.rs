//! One run of a script for the calls of several callers: what it is told, and each caller's reply.

use std::collections::HashMap;
use std::ops::RangeFrom;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use redis::Value;
use tollway_core::Timestamp;

use super::decode::{bytes, damaged, list, number, settled, text, unsigned};
use super::encode::{self, START_BYTES};
use super::estimate::{EstimateContext, Frame, GroupTold};
use super::script::{ENQUEUE, SETTLE};
use super::{Inner, QueueContext};
use crate::error::{Error, ErrorKind};
use crate::{Enqueued, JobId, Reply};
use tollway_journal::bytes_codec::ByteReader;

/// What the calls of a batch are replied, or why none of them is.
type Replies = Result<Vec<Result<Reply, Error>>, Error>;
type Replying = Pin<Box<dyn Future<Output = Replies> + Send>>;

/// What runs batches of calls to one of the two scripts that take several.
///
/// It holds the backend weakly: the task that gathers calls must not keep it alive.
pub(super) fn runner(
    inner: &Arc<Inner>,
    context: Weak<QueueContext>,
    is_enqueue: bool,
) -> impl Fn(Vec<Vec<Vec<u8>>>) -> Replying + Send + Sync + use<> {
    let inner = Arc::downgrade(inner);
    move |calls| {
        let both = inner.upgrade().zip(context.upgrade());
        Box::pin(async move {
            let Some((inner, context)) = both else {
                let message = "the backend is being shut down";
                return Err(Error::new(ErrorKind::Unavailable, message));
            };
            if is_enqueue {
                enqueue(&inner, &context, calls, Timestamp::MIN).await
            } else {
                settle(&inner, &context, calls, Timestamp::MIN).await
            }
        })
    }
}

/// Enqueues the jobs of several calls; each call all or none.
pub(super) async fn enqueue(
    inner: &Arc<Inner>,
    context: &Arc<QueueContext>,
    calls: Vec<Vec<Vec<u8>>>,
    now: Timestamp,
) -> Replies {
    let asked: Vec<Vec<Asked>> = calls.iter().map(|call| Asked::of_call(call)).collect();
    let arguments = encode::calls(calls);
    let answer = list(inner.change(&ENQUEUE, (&context.base[..], now), arguments).await?)?;
    let [frame, groups, special, calls, names] =
        <[Value; 5]>::try_from(answer).map_err(|_| damaged())?;
    let setting = context.setting(inner, Frame::read(&frame)?).await?;
    let is_row = matches!(calls, Value::BulkString(_));
    let names = if is_row { names_of(&asked) } else { listed(list(names)?)? };
    let mut told = told(list(groups)?, list(special)?, names, &setting)?;
    if is_row {
        let mut ids = unsigned(&calls)?..;
        let row = |jobs: &Vec<Asked>| Ok(read_row(&mut ids, &mut told, jobs).into());
        return Ok(asked.iter().map(row).collect());
    }
    let calls = list(calls)?;
    let read = |(call, jobs): (&Value, Vec<Asked>)| read_call(call, &told, &jobs).map(Reply::from);
    Ok(calls.iter().zip(asked).map(read).collect())
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
    setting: &'s EstimateContext,
) -> Result<Groups<'s>, Error> {
    let mut special = special.into_iter();
    let mut told = HashMap::with_capacity(names.len());
    for (group, (name, new)) in groups.chunks_exact(2).zip(names) {
        let ahead = number(&group[1])?;
        let paused = special.next().unwrap_or(Value::Int(0));
        let own = special.next().unwrap_or(Value::BulkString(Vec::new()));
        let group = GroupTold::of(bytes(&group[0])?, ahead + new, &paused, &own, setting)?;
        told.insert(name, (group, ahead));
    }
    Ok(told)
}

/// What was told of each group, and the units ahead of the next job that is read of it.
type Groups<'s> = HashMap<String, (GroupTold<'s>, i64)>;

/// What was asked for, as far as its answer depends on it.
struct Asked {
    group: String,
    weight: u32,
    starts_later: bool,
}

impl Asked {
    /// The jobs of a call that [`encode::call`] packed.
    fn of_call(call: &[Vec<u8>]) -> Vec<Self> {
        let Some((starts, jobs)) = call.split_first() else { return Vec::new() };
        let starts = starts.chunks_exact(START_BYTES).map(|start| start[0] != 0);
        let starts = starts.chain(std::iter::repeat(false));
        jobs.iter().zip(starts).map(|(job, later)| Self::of(job, later)).collect()
    }

    fn of(job: &[u8], starts_later: bool) -> Self {
        let (weight, group) = encode::of_job(job).unwrap_or((1, ""));
        Self { group: group.to_owned(), weight, starts_later }
    }
}

fn read_call(call: &Value, told: &Groups<'_>, jobs: &[Asked]) -> Result<Vec<Enqueued>, Error> {
    match bytes(call)? {
        [b'J', each @ ..] => read_each(&mut ByteReader(each), told, jobs),
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
    read: &mut ByteReader<'_>,
    told: &Groups<'_>,
    jobs: &[Asked],
) -> Result<Vec<Enqueued>, Error> {
    let mut one = |job: &Asked| {
        let (id, duplicate, ahead) = (read.f64()? as u64, read.u8()? == 1, read.f64()?);
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
    context: &QueueContext,
    calls: Vec<Vec<Vec<u8>>>,
    now: Timestamp,
) -> Replies {
    // Each lease takes two arguments.
    let lengths: Vec<usize> = calls.iter().map(|call| call.len() / 2).collect();
    let base = &context.base[..];
    let answer = inner.change(&SETTLE, (base, now), calls.into_iter().flatten()).await?;
    context.ends.tell();
    let mut all = settled(answer)?.into_iter();
    let mut take = |length| Ok(all.by_ref().take(length).collect::<Vec<_>>().into());
    Ok(lengths.into_iter().map(&mut take).collect())
}
