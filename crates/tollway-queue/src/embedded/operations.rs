//! Commands, carried out on the schedule and on the rows beside it.

use tollway_core::Timestamp;

use super::row_store::RowStore;
use crate::error::Error;
use crate::schedule::Schedule;
use crate::{Command, Ended, Job, JobState, Leased, Operation, PAGE_BYTES, QueueName, Reply, Wake};

/// What a command works on.
pub(super) struct Workspace<'a> {
    pub(super) schedule: &'a mut Schedule,
    pub(super) rows: &'a mut dyn RowStore,
}

impl Workspace<'_> {
    /// Carries out `command`. What it changed is in the schedule, and yet to be stored.
    pub(super) fn run(&mut self, command: Command, now: Timestamp) -> Result<Reply, Error> {
        Ok(match command {
            Command::Queues => self.schedule.settings().into(),
            Command::Secret(proposed) => self.schedule.secret(proposed).into(),
            Command::ChangeShared(name, limit, author) => {
                self.schedule.change_shared(&name, limit, &author, now)?.into()
            }
            Command::Shared => self.schedule.shared_limits().into(),
            Command::RemoveShared(name) => self.schedule.remove_shared(&name)?.into(),
            Command::Queue(name, operation) => return self.operate(&name, operation, now),
        })
    }

    fn operate(
        &mut self,
        name: &QueueName,
        operation: Operation,
        now: Timestamp,
    ) -> Result<Reply, Error> {
        let reply = match operation {
            Operation::Change { settings, author } => {
                self.schedule.change_queue(name, *settings, &author, now)?.into()
            }
            Operation::Describe => self.schedule.queue(name)?.described().into(),
            Operation::RemoveEmpty => self.schedule.remove_empty(name, now)?.into(),
            Operation::Remove => self.schedule.remove_queue(name, now).into(),
            Operation::Wake => self.schedule.queue(name)?.wake.into(),
            Operation::Recurring => self.schedule.queue(name)?.history.recurring().into(),
            Operation::Lease { max, worker } => self.lease(name, max, &worker, now)?.into(),
            operation => {
                self.schedule.with(name, now, |queue, scope| queue.run(operation, scope))?
            }
        };
        self.complete(name, reply)
    }

    fn lease(
        &mut self,
        name: &QueueName,
        max: usize,
        worker: &str,
        now: Timestamp,
    ) -> Result<Leased, Error> {
        let mut leases =
            self.schedule.with(name, now, |queue, scope| Ok(queue.lease(max, worker, scope)))?;
        self.rows.store(self.schedule)?;
        let number = self.schedule.number(name)?;
        for lease in &mut leases {
            lease.payload = self.rows.payload(number, lease.id.0)?;
        }
        // After the schedule has looked at what is left: when to ask again.
        let Wake { next, seen } = self.schedule.queues[&number].wake;
        Ok(Leased { leases, next, seen })
    }

    /// Adds the bytes to what the schedule knows of jobs.
    fn complete(&mut self, name: &QueueName, mut reply: Reply) -> Result<Reply, Error> {
        let jobs: &mut [Job] = match &mut reply {
            Reply::Job(Some(job)) => std::slice::from_mut(job),
            Reply::Jobs(jobs) => jobs,
            Reply::Ended(Ended { jobs, .. }) => jobs,
            _ => return Ok(reply),
        };
        let number = self.schedule.number(name)?;
        // A job that has just been put back, or died of age, has its row from this.
        self.rows.store(self.schedule)?;
        for job in jobs {
            match &mut job.state {
                JobState::Done { result, .. } => *result = self.rows.result(number, job.id.0)?,
                _ => job.payload = self.rows.payload(number, job.id.0)?,
            }
        }
        if let Reply::Ended(ended) = &mut reply {
            cut_to_page(ended);
        }
        Ok(reply)
    }
}

/// Leaves as many jobs as fill a page with their results.
fn cut_to_page(ended: &mut Ended) {
    let mut left = PAGE_BYTES;
    let fits = ended.jobs.iter().take_while(|job| {
        let had_room = left > 0;
        let result = match &job.state {
            JobState::Done { result: Some(result), .. } => result.len(),
            _ => job.payload.len(),
        };
        left = left.saturating_sub(result);
        had_room
    });
    let many = fits.count();
    ended.jobs.truncate(many);
    if let Some(last) = ended.jobs.last().and_then(Job::end_mark) {
        ended.mark = last;
    }
}
