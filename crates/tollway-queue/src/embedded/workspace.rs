//! What an operation has at hand: the schedule, and the bytes that it does not hold.

use bytes::Bytes;
use tollway_core::Timestamp;

use crate::error::Error;
use crate::job::{Job, JobState, Lease, Leased};
use crate::schedule::{Grant, Schedule};
use crate::{JobId, QueueName};

/// Where payloads and results are.
pub(crate) trait RowStore {
    /// Stores what the schedule says has changed.
    fn store(&mut self, schedule: &mut Schedule) -> Result<(), Error>;

    /// The payload of a job that is not done.
    fn payload(&mut self, queue: u32, id: u64) -> Result<Bytes, Error>;

    /// The result of a job that is done.
    fn result(&mut self, queue: u32, id: u64) -> Result<Option<Bytes>, Error>;
}

/// What an operation has at hand.
pub(crate) struct Workspace<'a> {
    pub(crate) schedule: &'a mut Schedule,
    pub(crate) rows: &'a mut dyn RowStore,
}

impl Workspace<'_> {
    pub(super) fn lease(
        &mut self,
        name: &QueueName,
        max: usize,
        worker: &str,
        now: Timestamp,
    ) -> Result<Leased, Error> {
        let number = self.schedule.number(name)?;
        let grants =
            self.schedule.with(name, now, |queue, scope| Ok(queue.lease(max, worker, scope)))?;
        self.rows.store(self.schedule)?;
        let leases: Result<Vec<Lease>, Error> =
            grants.into_iter().map(|grant| self.fill(number, grant)).collect();
        let wake = self.schedule.queues[&number].wake;
        Ok(Leased { leases: leases?, next: wake.next, seen: wake.seen })
    }

    fn fill(&mut self, number: u32, grant: Grant) -> Result<Lease, Error> {
        Ok(Lease {
            id: JobId(grant.id),
            attempt: grant.entry.attempt,
            failures: grant.entry.failures,
            group: grant.group,
            payload: self.rows.payload(number, grant.id)?,
            priority: grant.entry.priority,
            weight: grant.entry.weight,
            enqueued_at: grant.entry.enqueued_at,
            expires_at: grant.expires_at,
        })
    }

    /// Adds the bytes to what the schedule knows of jobs.
    pub(super) fn complete(
        &mut self,
        name: &QueueName,
        jobs: impl IntoIterator<Item = Job>,
    ) -> Result<Vec<Job>, Error> {
        let number = self.schedule.number(name)?;
        self.rows.store(self.schedule)?;
        let complete = |mut job: Job| {
            match &mut job.state {
                JobState::Done { result, .. } => *result = self.rows.result(number, job.id.0)?,
                _ => job.payload = self.rows.payload(number, job.id.0)?,
            }
            Ok(job)
        };
        jobs.into_iter().map(complete).collect()
    }
}
