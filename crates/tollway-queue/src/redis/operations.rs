//! Commands, carried out as runs of scripts.

use std::sync::Arc;
use std::time::Instant;

use redis::Value;
use tollway_core::{Outage, Timestamp};

use super::decode::{
    beats, bytes, damaged, ended, list, moment_of, number, over, past, running, stats, stored,
    text, unsigned, waiting,
};
use super::encode::{self, moment};
use super::estimate::{Frame, GroupTold};
use super::script::{CONTROL, HEARTBEAT, LEASE, QUERY};
use super::{Inner, QueueContext, RedisBackend, batch_runs, recurring};
use crate::error::{Error, ErrorKind};
use crate::schedule::runs_already;
use crate::settings::longest_result;
use crate::{
    Backend, Beat, Call, Cancelled, Command, EndWatch, Health, Job, JobId, Lease, LeaseToken,
    Leased, Operation, Outcome, PAGE_BYTES, QueueName, Reply, WaitingLine, Wake,
};

fn word(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn decimal(number: impl std::fmt::Display) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn pack_outcomes(outcomes: &[(LeaseToken, Outcome)]) -> Vec<Vec<u8>> {
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
        let control = async |arguments: &[&[u8]]| {
            let arguments = arguments.iter().map(|argument| argument.to_vec());
            number(&self.change(&CONTROL, (base, now), arguments).await?)
        };
        let query =
            async |arguments: Vec<Vec<u8>>| self.query(&QUERY, (base, now), arguments).await;
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
            Operation::Lease { max, worker } => {
                self.lease_and_recur(context, max, &worker, now).await?.into()
            }
            Operation::Wake => Wake { next: None, seen: context.watch.seen() }.into(),
            Operation::Heartbeat(tokens) => {
                let tokens = tokens.into_iter().map(encode::token);
                let arguments = std::iter::once(word("beat")).chain(tokens);
                let mut told = beats(self.query(&HEARTBEAT, (base, now), arguments).await?)?;
                for beat in &mut told {
                    if let Beat::Until(until) | Beat::Cancelled(until) = beat {
                        *until = self.by_caller(*until);
                    }
                }
                told.into()
            }
            Operation::Settle(outcomes) => {
                context.check_bytes(self, "result", longest_result(&outcomes)).await?;
                let packed = pack_outcomes(&outcomes);
                if !self.settings.use_callers_time {
                    return context.settle.ask(packed).await;
                }
                let replies = batch_runs::settle(self, context, vec![packed], now).await?;
                replies.into_iter().next().ok_or_else(damaged)??
            }
            Operation::Progress(token, progress) => {
                let arguments = [word("progress"), encode::progress(token, progress)];
                let told = beats(self.query(&HEARTBEAT, (base, now), arguments).await?)?;
                told.first().is_some_and(|beat| *beat != Beat::Lost).into()
            }
            Operation::Hold(token, wait) => {
                let (id, attempt) = (decimal(token.id), decimal(token.attempt));
                let wait = decimal(wait.as_micros());
                (control(&[b"hold", &id, &attempt, &wait]).await? == 1).into()
            }
            Operation::Cancel(id) => match control(&[b"cancel", &decimal(id)]).await? {
                1 => Cancelled::Removed.into(),
                2 => Cancelled::Requested.into(),
                _ => Cancelled::NotFound.into(),
            },
            Operation::Reschedule { id, start } => {
                let [kind, time] = encode::start(start);
                match control(&[b"reschedule", &decimal(id), &kind, &time]).await? {
                    0 => Reply::Job(None),
                    1 => {
                        let answer = list(query(vec![word("job"), decimal(id)]).await?)?;
                        self.read_job(context, id, answer).await?.into()
                    }
                    _ => return Err(runs_already(id)),
                }
            }
            Operation::Job(id) => {
                let answer = list(query(vec![word("job"), decimal(id)]).await?)?;
                self.read_job(context, id, answer).await?.into()
            }
            Operation::Ended { after, max } => {
                let [at, id] = after.map(encode::end_mark).unwrap_or_default();
                let arguments = vec![word("ended"), at, id, decimal(PAGE_BYTES), decimal(max)];
                ended(&list(query(arguments).await?)?, after)?.into()
            }
            Operation::Peek { group, max } => {
                let page = [decimal(max), decimal(PAGE_BYTES)];
                let arguments = [word("peek"), word(group.as_str())].into_iter().chain(page);
                self.read_line(context, list(query(arguments.collect()).await?)?).await?.into()
            }
            Operation::Stats { after, max } => {
                let after = after.map_or(String::new(), |group| format!("({group}"));
                let arguments = vec![word("stats"), after.into_bytes(), decimal(max)];
                let mut stats = stats(query(arguments).await?, max)?;
                stats.next = stats.next.map(|next| self.by_caller(next));
                stats.into()
            }
            Operation::Pause { group, paused } => {
                let paused: &[u8] = if paused { b"1" } else { b"0" };
                let group = group.as_ref().map(|group| group.as_str().as_bytes());
                let arguments: Vec<&[u8]> = [b"pause", paused].into_iter().chain(group).collect();
                control(&arguments).await?;
                ().into()
            }
            Operation::SetLimits { group, limits } => {
                let packed = limits.map_or(Vec::new(), |limits| encode::limits(&limits));
                control(&[b"limits", group.as_str().as_bytes(), &packed]).await?;
                ().into()
            }
            Operation::Dead { after, max } => {
                let after = decimal(after.map_or(0, |id| id.0));
                let arguments = vec![word("dead"), after, decimal(max), decimal(PAGE_BYTES)];
                let answer = list(query(arguments).await?)?;
                let read = |pair: &[Value]| over(unsigned(&pair[0])?, bytes(&pair[1])?, true);
                let pairs = answer.get(1..).unwrap_or_default().chunks_exact(2);
                pairs.map(read).collect::<Result<Vec<Job>, _>>()?.into()
            }
            Operation::Running { after, max } => {
                let after = decimal(after.map_or(0, |id| id.0));
                let arguments = vec![word("running"), after, decimal(max), decimal(PAGE_BYTES)];
                let answer = list(query(arguments).await?)?;
                let read = |part: &[Value]| {
                    let job = running(unsigned(&part[0])?, bytes(&part[1])?, bytes(&part[2])?)?;
                    Ok::<_, Error>(Job { past: past(bytes(&part[3])?)?, ..job })
                };
                let parts = answer.get(1..).unwrap_or_default().chunks_exact(4);
                parts.map(read).collect::<Result<Vec<Job>, _>>()?.into()
            }
            Operation::Revive(id) => (control(&[b"revive", &decimal(id)]).await? == 1).into(),
            Operation::PutRecurring(new) => {
                context.check_bytes(self, "payload", new.job.payload.len()).await?;
                let server =
                    if self.settings.use_callers_time { now } else { self.server_time().await? };
                let next = decimal(encode::micros_at(new.next_after(server)?));
                let packed = recurring::pack(&new);
                control(&[b"recur", new.name.as_bytes(), &packed, &next]).await?;
                ().into()
            }
            Operation::RemoveRecurring(name) => {
                (control(&[b"unrecur", name.as_bytes()]).await? == 1).into()
            }
            Operation::Recurring => {
                recurring::read_all(query(vec![word("recurring")]).await?)?.into()
            }
        })
    }

    /// Leases, after recurring jobs that are due were enqueued if there is nothing else.
    async fn lease_and_recur(
        self: &Arc<Self>,
        context: &Arc<QueueContext>,
        max: usize,
        worker: &str,
        now: Timestamp,
    ) -> Result<Leased, Error> {
        // A bound, since others may enqueue and lease the same ones meanwhile.
        for _ in 0..16 {
            let (leased, due, server) = self.lease(context, max, worker, now).await?;
            if due.is_empty() || !leased.leases.is_empty() {
                return Ok(leased);
            }
            self.fire(context, due, server, now).await?;
        }
        self.lease(context, max, worker, now).await.map(|(leased, ..)| leased)
    }

    /// Leases, and what recurring jobs are due, and the server's time.
    async fn lease(
        &self,
        context: &QueueContext,
        max: usize,
        worker: &str,
        now: Timestamp,
    ) -> Result<(Leased, Vec<Value>, Timestamp), Error> {
        // Read before the server is asked: what it marks meanwhile must count as new.
        let seen = context.watch.seen();
        let asked = Instant::now();
        let arguments = [decimal(max), word(worker), decimal(PAGE_BYTES)];
        let mut answer = list(self.change(&LEASE, (&context.base[..], now), arguments).await?)?;
        if answer.len() < 4 {
            return Err(damaged());
        }
        let jobs = answer.split_off(4);
        let server = moment(unsigned(&answer[0])?);
        self.compare_clocks(now, asked, server);
        let next = moment_of(&answer[1])?.map(|next| self.by_caller(next));
        let leased_at = self.by_caller(server);
        let expires_at = self.by_caller(moment(unsigned(&answer[3])?));
        let read = |pair: &[Value]| {
            let (lease, _) = stored(unsigned(&pair[0])?, bytes(&pair[1])?)?;
            // What is stored counts the attempts before this one.
            Ok(Lease { attempt: lease.attempt + 1, leased_at, expires_at, ..lease })
        };
        let leases = jobs.chunks_exact(2).map(read).collect::<Result<Vec<_>, Error>>()?;
        Ok((Leased { leases, next, seen }, list(answer.swap_remove(2))?, server))
    }

    /// A job from the answer of `QUERY` about it.
    async fn read_job(
        &self,
        context: &QueueContext,
        id: JobId,
        mut answer: Vec<Value>,
    ) -> Result<Option<Job>, Error> {
        let [frame, sort, ..] = &answer[..] else { return Err(damaged()) };
        let frame = Frame::read(frame)?;
        match (text(sort)?, answer.len()) {
            ("live", 7) => {
                let ahead = number(&answer[5])?;
                let past = past(bytes(&answer[6])?)?;
                let setting = context.setting(self, frame).await?;
                let told = GroupTold::read(&list(answer.remove(4))?, &setting)?;
                let (job, lease) = (bytes(&answer[2])?, bytes(&answer[3])?);
                let found = if lease.is_empty() {
                    waiting(id.0, job, &told, ahead)
                } else {
                    running(id.0, job, lease)
                };
                found.map(|job| Some(Job { past, ..job }))
            }
            ("done", 3) => over(id.0, bytes(&answer[2])?, false).map(Some),
            ("dead", 3) => over(id.0, bytes(&answer[2])?, true).map(Some),
            _ => Ok(None),
        }
    }

    /// The waiting jobs of a group from the answer of `QUERY` about it.
    async fn read_line(
        &self,
        context: &QueueContext,
        mut answer: Vec<Value>,
    ) -> Result<Vec<Job>, Error> {
        if answer.len() < 2 {
            return Err(damaged());
        }
        let setting = context.setting(self, Frame::read(&answer[0])?).await?;
        let told = GroupTold::read(&list(answer.remove(1))?, &setting)?;
        let read = |part: &[Value]| {
            let job = waiting(unsigned(&part[0])?, bytes(&part[1])?, &told, number(&part[2])?)?;
            Ok(Job { past: past(bytes(&part[3])?)?, ..job })
        };
        answer[1..].chunks_exact(4).map(read).collect()
    }

    async fn server_time(&self) -> Result<Timestamp, Error> {
        let answer = list(self.client.ask(&redis::cmd("TIME")).await?)?;
        let [seconds, micros] = &answer[..] else { return Err(damaged()) };
        Ok(moment(unsigned(seconds)? * 1_000_000 + unsigned(micros)?))
    }
}
