//! What batches of calls are told and answered.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use redis::Value;
use tollgate_core::Timestamp;

use super::estimate::{Frame, Setting, Told};
use super::pack::{self, Reader, unpack_settings};
use super::read::{bytes, damaged, list, settled, text};
use super::script::{ENQUEUE, SETTLE};
use super::{Desk, Inner};
use crate::error::{Error, ErrorKind};
use crate::{Enqueued, JobId, QueueSettings, Settled};

type Answering<R> = Pin<Box<dyn Future<Output = Result<Vec<Result<R, Error>>, Error>> + Send>>;

/// Answers batches of calls that enqueue.
pub(super) fn enqueue_all(
    inner: &Arc<Inner>,
    desk: Weak<Desk>,
) -> impl Fn(Vec<Vec<Vec<u8>>>) -> Answering<Vec<Enqueued>> + Send + Sync + use<> {
    let inner = Arc::downgrade(inner);
    move |calls| {
        let (inner, desk) = (inner.upgrade(), desk.upgrade());
        Box::pin(async move {
            let (Some(inner), Some(desk)) = (inner, desk) else { return Err(gone()) };
            enqueue(&inner, &desk, calls, Timestamp::MIN).await
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
    desk: &Arc<Desk>,
    calls: Vec<Vec<Vec<u8>>>,
    now: Timestamp,
) -> Result<Vec<Result<Vec<Enqueued>, Error>>, Error> {
    let asked: Vec<Vec<Asked>> =
        calls.iter().map(|jobs| jobs.iter().map(|job| Asked::of(job)).collect()).collect();
    let mut arguments = vec![calls.len().to_string().into_bytes()];
    for jobs in calls {
        arguments.push(jobs.len().to_string().into_bytes());
        arguments.extend(jobs);
    }
    let answer = list(inner.change(&ENQUEUE, &desk.base, now, arguments).await?)?;
    let [frame, groups, calls] = &answer[..] else { return Err(damaged()) };
    let frame = Frame::read(frame)?;
    let setting = desk.setting(inner, frame).await?;
    let told = list(groups.clone())?
        .chunks_exact(5)
        .map(|group| Told::read(group, &setting).map(|told| (told.name.clone(), told)))
        .collect::<Result<HashMap<_, _>, _>>()?;
    let calls = list(calls.clone())?;
    Ok(calls.iter().zip(asked).map(|(call, jobs)| read_call(call, &told, &jobs)).collect())
}

/// What was asked for, as far as its answer depends on it.
struct Asked {
    group: String,
    weight: u32,
    starts_later: bool,
}

impl Asked {
    fn of(job: &[u8]) -> Self {
        let (starts_later, weight, group) = pack::of_job(job).unwrap_or((true, 1, ""));
        Self { group: group.to_owned(), weight, starts_later }
    }
}

fn read_call(
    call: &Value,
    told: &HashMap<String, Told<'_>>,
    jobs: &[Asked],
) -> Result<Vec<Enqueued>, Error> {
    let Some(packed) = bytes(call)?.strip_prefix(b"J") else {
        let (word, rest) = text(call)?.split_once(' ').ok_or_else(damaged)?;
        let kind = if word == "FULL" { ErrorKind::Full } else { ErrorKind::Invalid };
        return Err(Error::new(kind, rest));
    };
    let mut read = Reader(packed);
    let mut one = |job: &Asked| {
        let (id, duplicate, ahead) = (read.double()? as u64, read.byte()? == 1, read.double()?);
        // Of a duplicate and of a job that starts later the place is not known here.
        let known = told.get(&job.group).filter(|_| !duplicate && !job.starts_later);
        let ready = known.and_then(|told| told.estimate(ahead as i64, job.weight, Timestamp::MIN));
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
    let lengths: Vec<usize> = calls.iter().map(Vec::len).collect();
    let answer = inner.change(&SETTLE, base, now, calls.into_iter().flatten()).await?;
    let mut all = settled(answer)?.into_iter();
    Ok(lengths.into_iter().map(|length| Ok(all.by_ref().take(length).collect())).collect())
}

impl Desk {
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
        let value = inner.line.ask(&command).await?;
        let settings = Arc::new(unpack_settings(bytes(&value)?)?);
        *self.lock_settings() = Some((version, Arc::clone(&settings)));
        Ok(settings)
    }

    fn lock_settings(&self) -> std::sync::MutexGuard<'_, Option<(u64, Arc<QueueSettings>)>> {
        self.settings.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
