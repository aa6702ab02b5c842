//! What batches of calls are told and answered.

use std::pin::Pin;
use std::sync::{Arc, Weak};

use redis::Value;
use tollgate_core::Timestamp;

use super::estimate::{Frame, Told};
use super::pack::unpack_settings;
use super::read::{bytes, damaged, list, number, settled, text, unsigned};
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
    let weights: Vec<Vec<(u32, bool)>> =
        calls.iter().map(|jobs| jobs.iter().map(|job| weight_of(job)).collect()).collect();
    let mut arguments = vec![calls.len().to_string().into_bytes()];
    for jobs in calls {
        arguments.push(jobs.len().to_string().into_bytes());
        arguments.extend(jobs);
    }
    let answer = list(inner.change(&ENQUEUE, &desk.base, now, arguments).await?)?;
    let [frame @ .., calls, groups, heaviest] = &answer[..] else { return Err(damaged()) };
    let frame = Frame::read(frame, heaviest)?;
    let settings = desk.settings(inner, frame.version).await?;
    let told = list(groups.clone())?
        .into_iter()
        .map(|group| Told::read(group, frame, &settings))
        .collect::<Result<Vec<_>, _>>()?;
    let calls = list(calls.clone())?;
    Ok(calls.into_iter().zip(weights).map(|(call, jobs)| read_call(call, &told, &jobs)).collect())
}

/// The weight of a packed job, and whether it starts later.
fn weight_of(job: &[u8]) -> (u32, bool) {
    let weight =
        job.get(10..14).and_then(|bytes| bytes.try_into().ok()).map_or(1, u32::from_le_bytes);
    (weight, job.first().is_some_and(|start| *start != 0))
}

fn read_call(call: Value, told: &[Told], jobs: &[(u32, bool)]) -> Result<Vec<Enqueued>, Error> {
    if let Value::BulkString(_) | Value::SimpleString(_) = call {
        let (word, rest) = text(&call)?.split_once(' ').ok_or_else(damaged)?;
        let kind = if word == "FULL" { ErrorKind::Full } else { ErrorKind::Invalid };
        return Err(Error::new(kind, rest));
    }
    let one = |(value, (weight, later)): (Value, &(u32, bool))| {
        let parts = list(value)?;
        let [id, duplicate, group, ahead] = &parts[..] else { return Err(damaged()) };
        let duplicate = number(duplicate)? == 1;
        let group = text(group)?;
        // Of a duplicate and of a job that starts later the place is not known here.
        let known = told.iter().find(|told| told.name == group && !duplicate && !*later);
        let ahead = number(ahead)?;
        let ready = known.and_then(|told| told.estimate(ahead, *weight, Timestamp::MIN));
        Ok(Enqueued { id: JobId(unsigned(id)?), duplicate, ready })
    };
    list(call)?.into_iter().zip(jobs).map(one).collect()
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
    /// The settings of that version: as read before, or read now.
    pub(super) async fn settings(
        &self,
        inner: &Inner,
        version: u64,
    ) -> Result<Arc<QueueSettings>, Error> {
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
