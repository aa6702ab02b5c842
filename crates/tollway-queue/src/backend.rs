//! Where queues live: what every backend can do.

use tollway_core::{Outage, Timestamp};

use crate::answer::Answer;
use crate::error::{Error, ErrorKind};
use crate::{
    Beat, Cancelled, Enqueued, Group, Job, JobId, LeaseToken, Leased, Limit, NewJob, Outcome,
    Progress, QueueName, QueueSettings, Recurring, Settled, Stats,
};

/// Where queues live. Every change is stored when its answer is ready, and either all of a call
/// takes effect or nothing does, unless an error says [`ErrorKind::Unknown`].
///
/// A backend copies what it needs before it returns, so an answer borrows only the backend. `now` is
/// the caller's clock; a backend with a clock of its own (Redis) ignores it.
pub trait Backend: Send + Sync {
    /// How the place is in which queues live, as far as it is known here without asking.
    fn health(&self) -> Health {
        Health::default()
    }

    /// The outage under way of a server on which queues live, if there is one. A backend in this
    /// process has none.
    fn outage(&self) -> Option<Outage> {
        None
    }

    /// Makes a queue, or changes the settings of one while it runs.
    fn put_queue(
        &self,
        queue: &QueueName,
        settings: QueueSettings,
        now: Timestamp,
    ) -> Answer<'_, ()>;

    /// Forgets a queue and everything in it; whether there was one.
    fn remove_queue(&self, queue: &QueueName, now: Timestamp) -> Answer<'_, bool>;

    /// Every queue and its settings, in order of their names.
    fn queues(&self) -> Answer<'_, Vec<(QueueName, QueueSettings)>>;

    /// Makes or changes a limit that queues share by its name.
    fn put_shared(&self, name: &QueueName, limit: Limit, now: Timestamp) -> Answer<'_, ()>;

    /// Enqueues all of `jobs` (at most [`BATCH_MAX`]) or none.
    fn enqueue(
        &self,
        queue: &QueueName,
        jobs: Vec<NewJob>,
        now: Timestamp,
    ) -> Answer<'_, Vec<Enqueued>>;

    /// Leases up to `max` jobs (at most [`BATCH_MAX`], and a [page](PAGE_BYTES) at most) that may
    /// start now, to `worker`.
    fn lease(
        &self,
        queue: &QueueName,
        max: usize,
        worker: &str,
        now: Timestamp,
    ) -> Answer<'_, Leased>;

    /// Waits until something may start earlier than [`Leased::next`] said; gives the new time, and
    /// what to compare with from then on. A spurious answer is allowed, and one that is later than
    /// what was said (which still counts); a missed one is not.
    fn changed(&self, queue: &QueueName, seen: u64) -> Answer<'_, Wake>;

    /// Prolongs leases by the queue's lease time; one answer per token, in order.
    fn heartbeat(
        &self,
        queue: &QueueName,
        tokens: &[LeaseToken],
        now: Timestamp,
    ) -> Answer<'_, Vec<Beat>>;

    /// Says what came of leases; one answer per outcome, in order. May be repeated.
    fn settle(
        &self,
        queue: &QueueName,
        outcomes: Vec<(LeaseToken, Outcome)>,
        now: Timestamp,
    ) -> Answer<'_, Vec<Settled>>;

    /// Says how far a running job is; whether its lease still holds.
    fn progress(
        &self,
        queue: &QueueName,
        token: LeaseToken,
        progress: Progress,
        now: Timestamp,
    ) -> Answer<'_, bool>;

    /// Takes a job out of the queue, or asks its worker to stop.
    fn cancel(&self, queue: &QueueName, id: JobId, now: Timestamp) -> Answer<'_, Cancelled>;

    /// What is known about a job.
    fn job(&self, queue: &QueueName, id: JobId, now: Timestamp) -> Answer<'_, Option<Job>>;

    /// The next jobs of a group (at most [`BATCH_MAX`], and a [page](PAGE_BYTES) at most) in the
    /// order in which they start.
    fn peek(
        &self,
        queue: &QueueName,
        group: &Group,
        max: usize,
        now: Timestamp,
    ) -> Answer<'_, Vec<Job>>;

    /// The queue's figures and a page of at most `max` groups whose names are after `after`.
    fn stats(
        &self,
        queue: &QueueName,
        after: Option<&Group>,
        max: usize,
        now: Timestamp,
    ) -> Answer<'_, Stats>;

    /// Pauses (or resumes) a group, or the whole queue. What runs is not touched.
    fn pause(
        &self,
        queue: &QueueName,
        group: Option<&Group>,
        paused: bool,
        now: Timestamp,
    ) -> Answer<'_, ()>;

    /// Gives a group limits of its own in place of the queue's `group_limits`; `None` takes them
    /// back. What is in use stays in use.
    fn set_limits(
        &self,
        queue: &QueueName,
        group: &Group,
        limits: Option<Vec<Limit>>,
        now: Timestamp,
    ) -> Answer<'_, ()>;

    /// A [page](PAGE_BYTES) of at most `max` dead letters whose ids are after `after`, in order of
    /// their ids. It may be shorter though more are there: the last one is empty.
    fn dead(
        &self,
        queue: &QueueName,
        after: Option<JobId>,
        max: usize,
        now: Timestamp,
    ) -> Answer<'_, Vec<Job>>;

    /// Puts a dead letter back into its group, as if it had never failed; whether there was one.
    fn revive(&self, queue: &QueueName, id: JobId, now: Timestamp) -> Answer<'_, bool>;

    /// Makes a recurring job, or replaces the one of that name.
    fn put_recurring(
        &self,
        queue: &QueueName,
        recurring: Recurring,
        now: Timestamp,
    ) -> Answer<'_, ()>;

    /// Ends a recurring job; whether there was one.
    fn remove_recurring(&self, queue: &QueueName, name: &str, now: Timestamp) -> Answer<'_, bool>;

    /// Every recurring job, in order of names.
    fn recurring(&self, queue: &QueueName) -> Answer<'_, Vec<Recurring>>;

    /// Keeps `proposed` as the secret of these queues, unless they have one; the one they have. What
    /// is signed with it is known again by every process that has these queues, and after a restart.
    /// A backend that does not keep it answers what is proposed.
    fn secret(&self, proposed: [u8; 32]) -> Answer<'_, [u8; 32]> {
        Answer::Ready(Ok(proposed))
    }

    /// Settles one lease; an error of kind [`ErrorKind::LeaseLost`] if it was over.
    fn settle_one(
        &self,
        queue: &QueueName,
        token: LeaseToken,
        outcome: Outcome,
        now: Timestamp,
    ) -> Answer<'_, Settled> {
        self.settle(queue, vec![(token, outcome)], now).and_then(move |settled| {
            match settled.first() {
                Some(Settled::Lost) | None => Err(Error::new(
                    ErrorKind::LeaseLost,
                    format!("attempt {} at job {} is over", token.attempt, token.id),
                )),
                Some(settled) => Ok(*settled),
            }
        })
    }
}

/// How the place is in which queues live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether the disk is full: jobs are read, leased and settled, and new ones are refused.
    pub is_full: bool,
    /// Commits that failed since the start.
    pub failed_commits: u64,
    /// Calls since the start that the server on which they live did not answer.
    pub failed_calls: u64,
}

/// The most jobs, leases or outcomes in one call.
pub const BATCH_MAX: usize = 1_000;

/// A page of jobs is full when their payloads (and reasons) have this many bytes, and ends with the
/// job that fills it: a thousand of the largest payloads would be an answer of 16 GB, which neither
/// end could hold. Enough for thousands of usual jobs, and little beside the memory of a process.
pub const PAGE_BYTES: usize = 8 << 20;

/// What a worker that waits is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// When to ask for leases; see [`Leased::next`].
    pub next: Option<Timestamp>,
    /// What to compare with from now on.
    pub seen: u64,
}
