//! The backend's calls, as runs of scripts.

use std::sync::Arc;

use redis::Value;
use tollway_core::{Outage, Timestamp};

use super::estimate::{Frame, Told};
use super::pack;
use super::read::{self, beats, bytes, damaged, list, number, stats as read_stats, text, unsigned};
use super::script::{BEAT, LOOK, PUT};
use super::{Inner, RedisBackend, answers, recurring};
use crate::error::{Error, ErrorKind};
use crate::settings::{check_limits, longest_result};
use crate::{
    Answer, BATCH_MAX, Backend, Beat, Cancelled, Enqueued, Group, Health, Job, JobId, LeaseToken,
    Leased, Limit, NewJob, Outcome, PAGE_BYTES, Progress, QueueName, QueueSettings, Recurring,
    Settled, Stats, Wake,
};

type Inners = Arc<Inner>;

impl RedisBackend {
    /// Runs a call on the runtime of the backend, whichever asks.
    fn on<T, A>(&self, call: impl FnOnce(Inners) -> A) -> Answer<'_, T>
    where
        T: Send + Unpin + 'static,
        A: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let task = self.inner.runtime.spawn(call(Arc::clone(&self.inner)));
        Answer::pending(async move {
            let gone = |error| {
                let message = "the backend is being shut down";
                Error::new(ErrorKind::Unknown, message).caused_by(error)
            };
            task.await.map_err(gone)?
        })
    }
}

fn word(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn decimal(number: impl std::fmt::Display) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn bounded(length: usize) -> Result<(), Error> {
    if length > BATCH_MAX {
        return Err(Error::invalid(format!("more than {BATCH_MAX} in one call")));
    }
    Ok(())
}

/// The queue's own bounds are checked by the script, which knows them.
fn check(jobs: &[NewJob], now: Timestamp) -> Result<(), Error> {
    bounded(jobs.len())?;
    let any = QueueSettings { payload_max: QueueSettings::PAYLOAD_MAX, ..Default::default() };
    jobs.iter().try_for_each(|job| job.check(&any, now))
}

impl Backend for RedisBackend {
    fn health(&self) -> Health {
        Health { failed_calls: self.inner.client.failed_calls(), ..Health::default() }
    }

    fn outage(&self) -> Option<Outage> {
        self.inner.client.outage()
    }

    fn put_queue(
        &self,
        queue: &QueueName,
        settings: QueueSettings,
        now: Timestamp,
    ) -> Answer<'_, ()> {
        let queue = queue.clone();
        self.on(async move |inner: Inners| inner.put(&queue, settings, now).await)
    }

    fn remove_queue(&self, queue: &QueueName, now: Timestamp) -> Answer<'_, bool> {
        let queue = queue.clone();
        self.on(async move |inner: Inners| {
            let was_there = inner.remove(&queue, now).await?;
            inner.lock().remove(&queue);
            Ok(was_there)
        })
    }

    fn queues(&self) -> Answer<'_, Vec<(QueueName, QueueSettings)>> {
        self.on(async move |inner: Inners| inner.list_queues().await)
    }

    fn put_shared(&self, name: &QueueName, limit: Limit, now: Timestamp) -> Answer<'_, ()> {
        let name = name.clone();
        self.on(async move |inner: Inners| {
            let arguments = [word("shared"), word(name.as_str()), pack::limits(&[limit])];
            inner.look(&PUT, inner.base.as_bytes(), now, arguments).await?;
            Ok(())
        })
    }

    fn secret(&self, proposed: [u8; 32]) -> Answer<'_, [u8; 32]> {
        self.on(async move |inner: Inners| {
            let key = format!("{}~k", inner.base);
            // Whoever is first chooses; what counts is what is there then.
            inner.client.ask(redis::cmd("SET").arg(&key).arg(&proposed[..]).arg("NX")).await?;
            let kept = inner.client.ask(redis::cmd("GET").arg(&key)).await?;
            bytes(&kept)?.try_into().map_err(|_| damaged())
        })
    }

    fn enqueue(
        &self,
        queue: &QueueName,
        jobs: Vec<NewJob>,
        now: Timestamp,
    ) -> Answer<'_, Vec<Enqueued>> {
        let context = match check(&jobs, now).and_then(|()| self.inner.context(queue)) {
            Ok(context) => context,
            Err(error) => return Answer::error(error),
        };
        let packed = pack::call(&jobs);
        if !self.inner.settings.use_callers_time {
            return context.enqueue.ask(packed);
        }
        self.on(async move |inner: Inners| {
            let answers = answers::enqueue(&inner, &context, vec![packed], now).await?;
            answers.into_iter().next().ok_or_else(damaged)?
        })
    }

    fn lease(
        &self,
        queue: &QueueName,
        max: usize,
        worker: &str,
        now: Timestamp,
    ) -> Answer<'_, Leased> {
        let (queue, worker) = (queue.clone(), cut(worker).to_owned());
        self.on(async move |inner: Inners| {
            bounded(max)?;
            // One more time if recurring jobs were due: they are enqueued first.
            for _ in 0..16 {
                let (leased, due, server) = inner.lease(&queue, max, &worker, now).await?;
                if due.is_empty() || !leased.leases.is_empty() {
                    return Ok(leased);
                }
                inner.fire(&queue, due, server, now).await?;
            }
            inner.lease(&queue, max, &worker, now).await.map(|(leased, ..)| leased)
        })
    }

    fn changed(&self, queue: &QueueName, seen: u64) -> Answer<'_, Wake> {
        let queue = queue.clone();
        let inner = Arc::clone(&self.inner);
        // Not on a task of its own: whoever stops waiting must be seen to have stopped.
        Answer::pending(async move {
            let wake = inner.context(&queue)?.watch.changed(seen).await?;
            Ok(Wake { next: wake.next.map(|next| inner.by_caller(next)), ..wake })
        })
    }

    fn heartbeat(
        &self,
        queue: &QueueName,
        tokens: &[LeaseToken],
        now: Timestamp,
    ) -> Answer<'_, Vec<Beat>> {
        let (queue, tokens) = (queue.clone(), tokens.to_vec());
        self.on(async move |inner: Inners| {
            bounded(tokens.len())?;
            let mut arguments = vec![word("beat")];
            arguments.extend(tokens.into_iter().map(pack::token));
            let context = inner.context(&queue)?;
            let answer = beats(inner.look(&BEAT, &context.base, now, arguments).await?)?;
            let by_caller = |beat| match beat {
                Beat::Until(until) => Beat::Until(inner.by_caller(until)),
                Beat::Cancelled(until) => Beat::Cancelled(inner.by_caller(until)),
                Beat::Lost => Beat::Lost,
            };
            Ok(answer.into_iter().map(by_caller).collect())
        })
    }

    fn settle(
        &self,
        queue: &QueueName,
        outcomes: Vec<(LeaseToken, Outcome)>,
        now: Timestamp,
    ) -> Answer<'_, Vec<Settled>> {
        let context = match bounded(outcomes.len()).and_then(|()| self.inner.context(queue)) {
            Ok(context) => context,
            Err(error) => return Answer::error(error),
        };
        let packed: Vec<Vec<u8>> =
            outcomes.iter().flat_map(|(token, outcome)| pack::outcome(*token, outcome)).collect();
        let longest = longest_result(&outcomes);
        if !self.inner.settings.use_callers_time && context.takes_result(longest) {
            return context.settle.ask(packed);
        }
        self.on(async move |inner: Inners| {
            context.check_result(&inner, longest).await?;
            if !inner.settings.use_callers_time {
                return context.settle.ask(packed).await;
            }
            let answers = answers::settle(&inner, &context.base, vec![packed], now).await?;
            answers.into_iter().next().ok_or_else(damaged)?
        })
    }

    fn progress(
        &self,
        queue: &QueueName,
        token: LeaseToken,
        progress: Progress,
        now: Timestamp,
    ) -> Answer<'_, bool> {
        let queue = queue.clone();
        self.on(async move |inner: Inners| {
            let arguments = [word("progress"), pack::progress(token, progress)];
            let context = inner.context(&queue)?;
            let answer = beats(inner.look(&BEAT, &context.base, now, arguments).await?)?;
            Ok(answer.first().is_some_and(|beat| *beat != Beat::Lost))
        })
    }

    fn cancel(&self, queue: &QueueName, id: JobId, now: Timestamp) -> Answer<'_, Cancelled> {
        let queue = queue.clone();
        self.on(async move |inner: Inners| {
            Ok(match inner.control(&queue, now, [word("cancel"), decimal(id)]).await? {
                1 => Cancelled::Removed,
                2 => Cancelled::Requested,
                _ => Cancelled::NotFound,
            })
        })
    }

    fn job(&self, queue: &QueueName, id: JobId, now: Timestamp) -> Answer<'_, Option<Job>> {
        let queue = queue.clone();
        self.on(async move |inner: Inners| {
            let context = inner.context(&queue)?;
            let arguments = [word("job"), decimal(id)];
            let mut answer = list(inner.look(&LOOK, &context.base, now, arguments).await?)?;
            let [frame, sort, ..] = &answer[..] else { return Err(damaged()) };
            let frame = Frame::read(frame)?;
            match (text(sort)?, answer.len()) {
                ("live", 6) => {
                    let ahead = number(&answer[5])?;
                    let setting = context.setting(&inner, frame).await?;
                    let told = Told::read(&list(answer.remove(4))?, &setting)?;
                    let (job, lease) = (bytes(&answer[2])?, bytes(&answer[3])?);
                    if lease.is_empty() {
                        return read::waiting(id.0, job, &told, ahead).map(Some);
                    }
                    read::running(id.0, job, lease).map(Some)
                }
                ("done", 3) => read::over(id.0, bytes(&answer[2])?, false).map(Some),
                ("dead", 3) => read::over(id.0, bytes(&answer[2])?, true).map(Some),
                _ => Ok(None),
            }
        })
    }

    fn peek(
        &self,
        queue: &QueueName,
        group: &Group,
        max: usize,
        now: Timestamp,
    ) -> Answer<'_, Vec<Job>> {
        let (queue, group) = (queue.clone(), group.clone());
        self.on(async move |inner: Inners| {
            bounded(max)?;
            let context = inner.context(&queue)?;
            let most = [decimal(max), decimal(PAGE_BYTES)];
            let arguments = [word("peek"), word(group.as_str())].into_iter().chain(most);
            let mut answer = list(inner.look(&LOOK, &context.base, now, arguments).await?)?;
            if answer.len() < 2 {
                return Err(damaged());
            }
            let setting = context.setting(&inner, Frame::read(&answer[0])?).await?;
            let told = Told::read(&list(answer.remove(1))?, &setting)?;
            let read = |part: &[Value]| {
                read::waiting(unsigned(&part[0])?, bytes(&part[1])?, &told, number(&part[2])?)
            };
            answer[1..].chunks_exact(3).map(read).collect()
        })
    }

    fn stats(
        &self,
        queue: &QueueName,
        after: Option<&Group>,
        max: usize,
        now: Timestamp,
    ) -> Answer<'_, Stats> {
        let (queue, after) = (queue.clone(), after.cloned());
        self.on(async move |inner: Inners| {
            bounded(max)?;
            let context = inner.context(&queue)?;
            let after = after.map_or(String::new(), |group| format!("({group}"));
            let arguments = [word("stats"), after.into_bytes(), decimal(max)];
            let mut stats =
                read_stats(inner.look(&LOOK, &context.base, now, arguments).await?, max)?;
            stats.next = stats.next.map(|next| inner.by_caller(next));
            Ok(stats)
        })
    }

    fn pause(
        &self,
        queue: &QueueName,
        group: Option<&Group>,
        paused: bool,
        now: Timestamp,
    ) -> Answer<'_, ()> {
        let (queue, group) = (queue.clone(), group.cloned());
        self.on(async move |inner: Inners| {
            let mut arguments = vec![word("pause"), decimal(u8::from(paused))];
            arguments.extend(group.map(|group| word(group.as_str())));
            inner.control(&queue, now, arguments).await.map(drop)
        })
    }

    fn set_limits(
        &self,
        queue: &QueueName,
        group: &Group,
        limits: Option<Vec<Limit>>,
        now: Timestamp,
    ) -> Answer<'_, ()> {
        let (queue, group) = (queue.clone(), group.clone());
        self.on(async move |inner: Inners| {
            check_limits(limits.as_deref().unwrap_or_default())?;
            let packed = limits.map_or(Vec::new(), |limits| pack::limits(&limits));
            let arguments = [word("limits"), word(group.as_str()), packed];
            inner.control(&queue, now, arguments).await.map(drop)
        })
    }

    fn dead(
        &self,
        queue: &QueueName,
        after: Option<JobId>,
        max: usize,
        now: Timestamp,
    ) -> Answer<'_, Vec<Job>> {
        let queue = queue.clone();
        self.on(async move |inner: Inners| {
            bounded(max)?;
            let context = inner.context(&queue)?;
            let after = after.map_or(0, |id| id.0);
            let arguments = [word("dead"), decimal(after), decimal(max), decimal(PAGE_BYTES)];
            let answer = list(inner.look(&LOOK, &context.base, now, arguments).await?)?;
            let read = |pair: &[Value]| read::over(unsigned(&pair[0])?, bytes(&pair[1])?, true);
            answer.get(1..).unwrap_or_default().chunks_exact(2).map(read).collect()
        })
    }

    fn revive(&self, queue: &QueueName, id: JobId, now: Timestamp) -> Answer<'_, bool> {
        let queue = queue.clone();
        self.on(async move |inner: Inners| {
            Ok(inner.control(&queue, now, [word("revive"), decimal(id)]).await? == 1)
        })
    }

    fn put_recurring(
        &self,
        queue: &QueueName,
        recurring: Recurring,
        now: Timestamp,
    ) -> Answer<'_, ()> {
        let queue = queue.clone();
        self.on(async move |inner: Inners| {
            recurring.validate()?;
            let server =
                if inner.settings.use_callers_time { now } else { inner.server_time().await? };
            let next = recurring::next(&recurring, server)?;
            let packed = recurring::pack(&recurring);
            let arguments = [word("recur"), word(&recurring.name), packed, decimal(next)];
            inner.control(&queue, now, arguments).await.map(drop)
        })
    }

    fn remove_recurring(&self, queue: &QueueName, name: &str, now: Timestamp) -> Answer<'_, bool> {
        let (queue, name) = (queue.clone(), name.to_owned());
        self.on(async move |inner: Inners| {
            Ok(inner.control(&queue, now, [word("unrecur"), word(&name)]).await? == 1)
        })
    }

    fn recurring(&self, queue: &QueueName) -> Answer<'_, Vec<Recurring>> {
        let queue = queue.clone();
        self.on(async move |inner: Inners| {
            let context = inner.context(&queue)?;
            let arguments = [word("recurring")];
            recurring::read_all(inner.look(&LOOK, &context.base, Timestamp::MIN, arguments).await?)
        })
    }
}

/// A worker's name, as long as it is kept.
fn cut(worker: &str) -> &str {
    let mut end = worker.len().min(255);
    while !worker.is_char_boundary(end) {
        end -= 1;
    }
    &worker[..end]
}
