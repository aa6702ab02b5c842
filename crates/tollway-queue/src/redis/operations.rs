//! Commands, carried out as runs of scripts.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tollway_core::{Outage, Timestamp};

use super::decode::{bytes, damaged, list, number, unsigned};
use super::encode::{self, moment};
use super::script::{CONTROL, QUERY};
use super::{Inner, QueueContext, RedisBackend, batch_runs, recurring};
use crate::error::{Error, ErrorKind};
use crate::schedule::runs_already;
use crate::settings::longest_result;
use crate::{
    Backend, Call, Cancelled, Command, EndWatch, Group, Health, Job, JobId, LeaseToken, Operation,
    Outcome, QueueName, Recurring, Reply, Start, WaitingLine, Wake,
};

pub(super) fn word(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

pub(super) fn decimal(number: impl std::fmt::Display) -> Vec<u8> {
    number.to_string().into_bytes()
}

pub(super) fn pack_outcomes(outcomes: &[(LeaseToken, Outcome)]) -> Vec<Vec<u8>> {
    outcomes.iter().flat_map(|(token, outcome)| encode::outcome(*token, outcome)).collect()
}

impl Backend for RedisBackend {
    fn run(&self, command: Command, now: Timestamp) -> Call<Reply> {
        if let Command::Queue(queue, operation) = &command {
            match self.inner.gather(queue, operation) {
                Ok(Some(call)) => return call,
                Ok(None) => {}
                Err(error) => return Call::ready(Err(error)),
            }
        }
        // On the runtime of the backend, whichever asks: its connection lives there.
        let inner = Arc::clone(&self.inner);
        let task = self.inner.runtime.spawn(async move { inner.carry_out(command, now).await });
        Call::pending(async move {
            let gone = |error| {
                let message = "the backend is being shut down";
                Error::new(ErrorKind::Unknown, message).caused_by(error)
            };
            task.await.map_err(gone)?
        })
    }

    fn changed(&self, queue: &QueueName, seen: u64) -> Call<Wake> {
        let (queue, inner) = (queue.clone(), Arc::clone(&self.inner));
        // Not on a task of its own: whoever stops waiting must be seen to have stopped.
        Call::pending(async move {
            let wake = inner.context(&queue)?.watch.changed(seen).await?;
            Ok(Wake { next: wake.next.map(|next| inner.by_caller(next)), ..wake })
        })
    }

    fn waiting_line(&self, queue: &QueueName) -> Arc<WaitingLine> {
        // Who cannot be told of changes will be told why when it listens.
        self.inner.context(queue).map_or_else(|_| Arc::default(), |context| context.line.clone())
    }

    fn end_watch(&self, queue: &QueueName) -> Arc<EndWatch> {
        self.inner.context(queue).map_or_else(|_| Arc::default(), |context| context.ends.clone())
    }

    fn health(&self) -> Health {
        Health { failed_calls: self.inner.client.failed_calls(), ..Health::default() }
    }

    fn outage(&self) -> Option<Outage> {
        self.inner.client.outage()
    }
}

impl Inner {
    /// Has a call go together with others in the next run of its script, if it may.
    fn gather(
        self: &Arc<Self>,
        queue: &QueueName,
        operation: &Operation,
    ) -> Result<Option<Call<Reply>>, Error> {
        Ok(match operation {
            // Each call has a time of its own then.
            _ if self.settings.use_callers_time => None,
            Operation::Enqueue(jobs) => Some(self.context(queue)?.enqueue.ask(encode::call(jobs))),
            Operation::Settle(outcomes) => {
                let context = self.context(queue)?;
                let fits = context.takes_result(longest_result(outcomes));
                fits.then(|| context.settle.ask(pack_outcomes(outcomes)))
            }
            _ => None,
        })
    }

    async fn carry_out(self: &Arc<Self>, command: Command, now: Timestamp) -> Result<Reply, Error> {
        Ok(match command {
            Command::Queues => self.list_queues().await?.into(),
            Command::Secret(proposed) => {
                let key = format!("{}~k", self.base);
                // Whoever is first chooses; what counts is what is there then.
                self.client.ask(redis::cmd("SET").arg(&key).arg(&proposed[..]).arg("NX")).await?;
                let kept = self.client.ask(redis::cmd("GET").arg(&key)).await?;
                <[u8; 32]>::try_from(bytes(&kept)?).map_err(|_| damaged())?.into()
            }
            Command::ChangeShared(name, limit, author) => {
                self.change_shared(&name, limit, &author, now).await?.into()
            }
            Command::Shared => self.shared_limits().await?.into(),
            Command::RemoveShared(name) => self.remove_shared(&name, now).await?.into(),
            Command::Queue(queue, operation) => {
                let context = self.context(&queue)?;
                return self.operate(&queue, &context, operation, now).await;
            }
        })
    }

    async fn operate(
        self: &Arc<Self>,
        queue: &QueueName,
        context: &Arc<QueueContext>,
        operation: Operation,
        now: Timestamp,
    ) -> Result<Reply, Error> {
        let base = &context.base[..];
        let call = QueueCall { inner: self, context, now };
        Ok(match operation {
            Operation::Change { settings, author } => {
                self.change_queue(queue, base, &settings, &author, now).await?.into()
            }
            Operation::Describe => self.describe(queue, base).await?.into(),
            Operation::Remove | Operation::RemoveEmpty => {
                let only_empty = matches!(operation, Operation::RemoveEmpty);
                let was_there = self.remove(queue, base, only_empty, now).await?;
                self.lock().remove(queue);
                was_there.into()
            }
            Operation::Enqueue(jobs) => {
                let calls = vec![encode::call(&jobs)];
                let replies = batch_runs::enqueue(self, context, calls, now).await?;
                replies.into_iter().next().ok_or_else(damaged)??
            }
            Operation::Lease { max, worker } => call.lease_and_recur(max, &worker).await?.into(),
            Operation::Wake => Wake { next: None, seen: context.watch.seen() }.into(),
            Operation::Heartbeat(tokens) => call.heartbeat(tokens).await?.into(),
            Operation::Settle(outcomes) => call.settle(&outcomes).await?,
            Operation::Progress(token, progress) => call.progress(token, progress).await?.into(),
            Operation::Hold(token, wait) => call.hold(token, wait).await?.into(),
            Operation::Cancel(id) => call.cancel(id).await?.into(),
            Operation::Reschedule { id, start } => call.reschedule(id, start).await?.into(),
            Operation::Job(id) => call.job(id).await?.into(),
            Operation::Ended { after, max } => call.ended(after, max).await?.into(),
            Operation::Peek { group, max } => call.peek(&group, max).await?.into(),
            Operation::Stats { after, max } => call.stats(after, max).await?.into(),
            Operation::Pause { group, paused } => call.pause(group.as_ref(), paused).await?.into(),
            Operation::SetLimits { group, limits } => {
                let packed = limits.map_or(Vec::new(), |limits| encode::limits(&limits));
                call.control(&[b"limits", group.as_str().as_bytes(), &packed]).await?;
                ().into()
            }
            Operation::Dead { after, max } => call.dead(after, max).await?.into(),
            Operation::Running { after, max } => call.running(after, max).await?.into(),
            Operation::Revive(id) => call.control_one(&[b"revive", &decimal(id)]).await?.into(),
            Operation::PutRecurring(new) => call.put_recurring(&new).await?.into(),
            Operation::RemoveRecurring(name) => {
                call.control_one(&[b"unrecur", name.as_bytes()]).await?.into()
            }
            Operation::Recurring => {
                recurring::read_all(call.query(vec![word("recurring")]).await?)?.into()
            }
        })
    }

    async fn server_time(&self) -> Result<Timestamp, Error> {
        let answer = list(self.client.ask(&redis::cmd("TIME")).await?)?;
        let [seconds, micros] = &answer[..] else { return Err(damaged()) };
        Ok(moment(unsigned(seconds)? * 1_000_000 + unsigned(micros)?))
    }
}

/// One call of one queue: what its operation needs, whichever it is.
#[derive(Clone, Copy)]
pub(super) struct QueueCall<'a> {
    pub(super) inner: &'a Arc<Inner>,
    pub(super) context: &'a Arc<QueueContext>,
    pub(super) now: Timestamp,
}

impl QueueCall<'_> {
    /// The keys of the queue, and the caller's time.
    pub(super) fn base(&self) -> (&[u8], Timestamp) {
        (&self.context.base[..], self.now)
    }

    /// Asks for something that changes nothing.
    pub(super) async fn query(&self, arguments: Vec<Vec<u8>>) -> Result<Value, Error> {
        self.inner.query(&QUERY, self.base(), arguments).await
    }

    /// Changes one thing by a word and what it needs.
    async fn control(&self, arguments: &[&[u8]]) -> Result<i64, Error> {
        let arguments = arguments.iter().map(|argument| argument.to_vec());
        number(&self.inner.change(&CONTROL, self.base(), arguments).await?)
    }

    /// As [`Self::control`]: whether there was such a thing.
    async fn control_one(&self, arguments: &[&[u8]]) -> Result<bool, Error> {
        Ok(self.control(arguments).await? == 1)
    }

    async fn hold(&self, token: LeaseToken, wait: Duration) -> Result<bool, Error> {
        let (id, attempt) = (decimal(token.id), decimal(token.attempt));
        self.control_one(&[b"hold", &id, &attempt, &decimal(wait.as_micros())]).await
    }

    async fn cancel(&self, id: JobId) -> Result<Cancelled, Error> {
        Ok(match self.control(&[b"cancel", &decimal(id)]).await? {
            1 => Cancelled::Removed,
            2 => Cancelled::Requested,
            _ => Cancelled::NotFound,
        })
    }

    async fn reschedule(&self, id: JobId, start: Start) -> Result<Option<Job>, Error> {
        let [kind, time] = encode::start(start);
        match self.control(&[b"reschedule", &decimal(id), &kind, &time]).await? {
            0 => Ok(None),
            1 => self.job(id).await,
            _ => Err(runs_already(id)),
        }
    }

    async fn pause(&self, group: Option<&Group>, paused: bool) -> Result<(), Error> {
        let paused: &[u8] = if paused { b"1" } else { b"0" };
        let group = group.map(|group| group.as_str().as_bytes());
        let arguments: Vec<&[u8]> = [b"pause", paused].into_iter().chain(group).collect();
        self.control(&arguments).await.map(drop)
    }

    async fn put_recurring(&self, new: &Recurring) -> Result<(), Error> {
        let (inner, length) = (self.inner, new.job.payload.len());
        self.context.check_bytes(inner, "payload", length).await?;
        let of_caller = inner.settings.use_callers_time;
        let server = if of_caller { self.now } else { inner.server_time().await? };
        let next = decimal(encode::micros_at(new.next_after(server)?));
        let packed = recurring::pack(new);
        self.control(&[b"recur", new.name.as_bytes(), &packed, &next]).await.map(drop)
    }
}
