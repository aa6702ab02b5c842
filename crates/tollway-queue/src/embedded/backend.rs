//! The backend's calls, as closures on the schedule.

use tollway_core::Timestamp;

use super::{Embedded, Runner};
use crate::answer::Answer;
use crate::backend::{BATCH_MAX, Backend, Health, Wake};
use crate::error::{Error, ErrorKind};
use crate::schedule::{Change, Queue, Scope};
use crate::settings::{check_limits, longest_result};
use crate::{
    Beat, Cancelled, Enqueued, Group, Job, JobId, LeaseToken, Leased, Limit, NewJob, Outcome,
    Progress, QueueName, QueueSettings, Recurring, Settled, Stats,
};

impl Embedded {
    /// Runs `operation` on one queue.
    fn on<T: Send + Unpin + 'static>(
        &self,
        queue: &QueueName,
        now: Timestamp,
        operation: impl FnOnce(&mut Queue, &mut Scope<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Answer<'_, T> {
        let queue = queue.clone();
        self.submit(move |workspace| workspace.schedule.with(&queue, now, operation))
    }
}

impl Backend for Embedded {
    fn health(&self) -> Health {
        match &self.runner {
            Runner::Memory(_) => Health::default(),
            #[cfg(feature = "redb")]
            Runner::File(writer) => writer.health(),
        }
    }

    fn put_queue(
        &self,
        queue: &QueueName,
        settings: QueueSettings,
        now: Timestamp,
    ) -> Answer<'_, ()> {
        let queue = queue.clone();
        self.submit(move |workspace| workspace.schedule.put_queue(&queue, settings, now))
    }

    fn remove_queue(&self, queue: &QueueName, now: Timestamp) -> Answer<'_, bool> {
        let (queue, signals) = (queue.clone(), self.signals.clone());
        self.submit(move |workspace| {
            signals.end(&queue);
            Ok(workspace.schedule.remove_queue(&queue, now))
        })
    }

    fn queues(&self) -> Answer<'_, Vec<(QueueName, QueueSettings)>> {
        self.submit(|workspace| Ok(workspace.schedule.settings()))
    }

    fn put_shared(&self, name: &QueueName, limit: Limit, _now: Timestamp) -> Answer<'_, ()> {
        let name = name.clone();
        self.submit(move |workspace| workspace.schedule.put_shared(&name, limit))
    }

    fn secret(&self, proposed: [u8; 32]) -> Answer<'_, [u8; 32]> {
        self.submit(move |workspace| Ok(workspace.schedule.secret(proposed)))
    }

    fn enqueue(
        &self,
        queue: &QueueName,
        jobs: Vec<NewJob>,
        now: Timestamp,
    ) -> Answer<'_, Vec<Enqueued>> {
        if let Err(error) = check_batch(jobs.len()) {
            return Answer::error(error);
        }
        let name = queue.clone();
        self.submit_as(true, move |workspace| {
            workspace.schedule.with(&name, now, |queue, scope| queue.enqueue(jobs, scope))
        })
    }

    fn lease(
        &self,
        queue: &QueueName,
        max: usize,
        worker: &str,
        now: Timestamp,
    ) -> Answer<'_, Leased> {
        if worker.len() > 256 {
            return Answer::error(Error::invalid("a worker's name is at most 256 bytes"));
        }
        let (queue, worker) = (queue.clone(), worker.to_owned());
        self.submit(move |workspace| workspace.lease(&queue, max.min(BATCH_MAX), &worker, now))
    }

    fn changed(&self, queue: &QueueName, seen: u64) -> Answer<'_, Wake> {
        let name = queue.clone();
        let current = {
            let name = name.clone();
            self.submit(move |workspace| {
                let number = workspace.schedule.number(&name)?;
                Ok(workspace.schedule.queues[&number].wake)
            })
        };
        // Listen first, look then: what happens in between is seen by either.
        let mut receiver = self.signals.subscribe(queue, Wake { next: None, seen });
        Answer::pending(async move {
            let current = current.await?;
            if current.seen > seen {
                return Ok(current);
            }
            let wake = receiver.wait_for(|wake| wake.seen > seen).await;
            wake.map(|wake| *wake).map_err(|_| {
                Error::new(ErrorKind::UnknownQueue, format!("the queue {name} is gone"))
            })
        })
    }

    fn heartbeat(
        &self,
        queue: &QueueName,
        tokens: &[LeaseToken],
        now: Timestamp,
    ) -> Answer<'_, Vec<Beat>> {
        if let Err(error) = check_batch(tokens.len()) {
            return Answer::error(error);
        }
        let tokens = tokens.to_vec();
        self.on(queue, now, move |queue, scope| {
            Ok(tokens.into_iter().map(|token| queue.heartbeat(token, scope)).collect())
        })
    }

    fn settle(
        &self,
        queue: &QueueName,
        outcomes: Vec<(LeaseToken, Outcome)>,
        now: Timestamp,
    ) -> Answer<'_, Vec<Settled>> {
        if let Err(error) = check_batch(outcomes.len()) {
            return Answer::error(error);
        }
        self.on(queue, now, move |queue, scope| {
            queue.settings.check_result(longest_result(&outcomes))?;
            let settle = |(token, outcome)| queue.settle(token, outcome, scope);
            Ok(outcomes.into_iter().map(settle).collect())
        })
    }

    fn progress(
        &self,
        queue: &QueueName,
        token: LeaseToken,
        progress: Progress,
        now: Timestamp,
    ) -> Answer<'_, bool> {
        self.on(queue, now, move |queue, _| Ok(queue.progress(token, progress)))
    }

    fn cancel(&self, queue: &QueueName, id: JobId, now: Timestamp) -> Answer<'_, Cancelled> {
        self.on(queue, now, move |queue, scope| Ok(queue.cancel(id, scope)))
    }

    fn job(&self, queue: &QueueName, id: JobId, now: Timestamp) -> Answer<'_, Option<Job>> {
        let name = queue.clone();
        self.submit(move |workspace| {
            let job =
                workspace.schedule.with(&name, now, |queue, scope| Ok(queue.job(id, scope)))?;
            Ok(workspace.complete(&name, job)?.pop())
        })
    }

    fn peek(
        &self,
        queue: &QueueName,
        group: &Group,
        max: usize,
        now: Timestamp,
    ) -> Answer<'_, Vec<Job>> {
        let (name, group, max) = (queue.clone(), group.clone(), max.min(BATCH_MAX));
        self.submit(move |workspace| {
            let jobs = workspace
                .schedule
                .with(&name, now, |queue, scope| Ok(queue.peek(&group, max, scope)))?;
            workspace.complete(&name, jobs)
        })
    }

    fn stats(
        &self,
        queue: &QueueName,
        after: Option<&Group>,
        max: usize,
        now: Timestamp,
    ) -> Answer<'_, Stats> {
        let (after, max) = (after.cloned(), max.min(BATCH_MAX));
        self.on(queue, now, move |queue, scope| Ok(queue.stats(after.as_ref(), max, scope.now)))
    }

    fn pause(
        &self,
        queue: &QueueName,
        group: Option<&Group>,
        paused: bool,
        now: Timestamp,
    ) -> Answer<'_, ()> {
        let group = group.cloned();
        self.on(queue, now, move |queue, scope| {
            let Some(name) = group else {
                queue.paused = paused;
                scope.changes.push(Change::Queue(scope.queue));
                return Ok(());
            };
            if !paused && queue.groups.find(name.as_str()).is_none() {
                return Ok(());
            }
            let number = queue.group_to_change(&name)?;
            queue.groups.get_mut(number).paused = paused;
            scope.group_changed(&name);
            queue.settle_down(number, scope.now);
            Ok(())
        })
    }

    fn set_limits(
        &self,
        queue: &QueueName,
        group: &Group,
        limits: Option<Vec<Limit>>,
        now: Timestamp,
    ) -> Answer<'_, ()> {
        if let Err(error) = check_limits(limits.as_deref().unwrap_or_default()) {
            return Answer::error(error);
        }
        let (queue, name) = (queue.clone(), group.clone());
        self.submit(move |workspace| {
            workspace.schedule.refits += 1;
            workspace.schedule.with(&queue, now, move |queue, scope| {
                if limits.is_none() && queue.groups.find(name.as_str()).is_none() {
                    return Ok(());
                }
                let number = queue.group_to_change(&name)?;
                queue.groups.get_mut(number).own_limits = limits.map(Vec::into_boxed_slice);
                queue.refit_group(number, scope);
                Ok(())
            })
        })
    }

    fn dead(
        &self,
        queue: &QueueName,
        after: Option<JobId>,
        max: usize,
        now: Timestamp,
    ) -> Answer<'_, Vec<Job>> {
        let (name, max) = (queue.clone(), max.min(BATCH_MAX));
        self.submit(move |workspace| {
            let jobs = workspace
                .schedule
                .with(&name, now, |queue, scope| Ok(queue.dead(after, max, scope)))?;
            workspace.complete(&name, jobs)
        })
    }

    fn revive(&self, queue: &QueueName, id: JobId, now: Timestamp) -> Answer<'_, bool> {
        self.on(queue, now, move |queue, scope| Ok(queue.revive(id, scope)))
    }

    fn put_recurring(
        &self,
        queue: &QueueName,
        recurring: Recurring,
        now: Timestamp,
    ) -> Answer<'_, ()> {
        let name = queue.clone();
        let put = move |queue: &mut Queue, scope: &mut Scope<'_>| {
            recurring.validate()?;
            recurring.job.check(&queue.settings, scope.now)?;
            let known = queue.history.recurring.contains_key(&recurring.name);
            if !known && queue.history.recurring.len() >= Recurring::COUNT_MAX {
                return Err(Error::new(
                    ErrorKind::Full,
                    "a queue has at most 10000 recurring jobs",
                ));
            }
            if queue.put_recurring(recurring, scope) {
                return Ok(());
            }
            Err(Error::invalid("the recurring job's time never comes"))
        };
        self.submit_as(true, move |workspace| workspace.schedule.with(&name, now, put))
    }

    fn remove_recurring(&self, queue: &QueueName, name: &str, now: Timestamp) -> Answer<'_, bool> {
        let name = name.to_owned();
        self.on(queue, now, move |queue, scope| Ok(queue.remove_recurring(&name, scope)))
    }

    fn recurring(&self, queue: &QueueName) -> Answer<'_, Vec<Recurring>> {
        let name = queue.clone();
        self.submit(move |workspace| {
            let number = workspace.schedule.number(&name)?;
            let recurring = workspace.schedule.queues[&number].history.recurring.values();
            Ok(recurring.map(|(recurring, _)| recurring.clone()).collect())
        })
    }
}

impl Queue {
    /// The number of a group that is to be paused or limited, which is made if there is room.
    fn group_to_change(&mut self, name: &Group) -> Result<u32, Error> {
        let known = self.groups.find(name.as_str()).is_some();
        if !known && self.groups.len() >= self.settings.groups_max as usize {
            return Err(Error::new(ErrorKind::Full, "the queue may have no more groups"));
        }
        Ok(self.groups.number(name))
    }
}

fn check_batch(len: usize) -> Result<(), Error> {
    if len > BATCH_MAX {
        return Err(Error::invalid(format!("{len} in one call; at most {BATCH_MAX}")));
    }
    Ok(())
}
