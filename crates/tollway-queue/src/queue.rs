//! A queue by its name: what programs call, over any backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollway_core::{Clock, Timestamp};

use crate::{
    Answer, Backend, Beat, Cancelled, Enqueued, Error, ErrorKind, Group, Job, JobId, Lease,
    LeaseToken, Leased, Limit, NewJob, Outcome, Progress, QueueName, QueueSettings, Recurring,
    Settled, Stats,
};

/// A queue by its name.
///
/// Cheap to clone; clones are the same queue. Every method reads the clock once and asks the
/// backend; what it answers is stored.
#[derive(Clone)]
pub struct Queue {
    name: QueueName,
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
}

impl Queue {
    /// The queue called `name`, which must have been made: see [`Self::put`].
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>, name: QueueName) -> Self {
        Self { name, backend, clock }
    }

    /// Makes the queue, or changes its settings while it runs.
    ///
    /// # Errors
    ///
    /// If a setting is out of bounds, or the backend fails.
    pub async fn put(&self, settings: QueueSettings) -> Result<(), Error> {
        settings.validate()?;
        self.backend.put_queue(&self.name, settings, self.now()).await
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &QueueName {
        &self.name
    }

    /// Where it lives.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Enqueues a job.
    ///
    /// # Errors
    ///
    /// If the job is out of bounds, the queue is full or unknown, or the backend fails. Unless the
    /// error's kind is `Unknown`, nothing was stored; with an idempotency key, simply try again.
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued, Error> {
        let enqueued = self.backend.enqueue(&self.name, vec![job], self.now()).await?;
        let no_answer = || Error::new(ErrorKind::Unknown, "the backend gave no answer for the job");
        enqueued.into_iter().next().ok_or_else(no_answer)
    }

    /// Enqueues all jobs or none; see [`Backend::enqueue`].
    pub fn enqueue_all(&self, jobs: Vec<NewJob>) -> Answer<'_, Vec<Enqueued>> {
        self.backend.enqueue(&self.name, jobs, self.now())
    }

    /// Leases what may start now; see [`Backend::lease`].
    pub fn lease(&self, max: usize, worker: &str) -> Answer<'_, Leased> {
        self.backend.lease(&self.name, max, worker, self.now())
    }

    /// Leases up to `max` jobs, waiting for the first of them for at most `patience`.
    ///
    /// It sleeps exactly until something may start: by the time the backend told, or until it says
    /// that this time has changed. It never polls.
    ///
    /// # Errors
    ///
    /// As [`Backend::lease`].
    ///
    /// # Cancel safety
    ///
    /// Leases that were granted while this was dropped return to their groups when they expire.
    pub async fn wait_for_leases(
        &self,
        max: usize,
        worker: &str,
        patience: Duration,
    ) -> Result<Vec<Lease>, Error> {
        self.wait_for_leases_until(max, worker, tokio::time::sleep(patience)).await
    }

    /// As [`Self::wait_for_leases`], until `give_up` is ready.
    ///
    /// # Errors
    ///
    /// As [`Backend::lease`].
    pub async fn wait_for_leases_until(
        &self,
        max: usize,
        worker: &str,
        give_up: impl Future<Output = ()>,
    ) -> Result<Vec<Lease>, Error> {
        tokio::pin!(give_up);
        loop {
            let leased = self.lease(max, worker).await?;
            if !leased.leases.is_empty() {
                return Ok(leased.leases);
            }
            tokio::select! {
                // Whoever was told that something may start asks for it: nobody else was told.
                biased;
                ready = self.until_ready(&leased) => ready?,
                () = &mut give_up => return Ok(Vec::new()),
            }
        }
    }

    /// Sleeps until something may start, after a lease call that gave nothing.
    ///
    /// # Errors
    ///
    /// As [`Backend::changed`].
    pub async fn until_ready(&self, leased: &Leased) -> Result<(), Error> {
        let Leased { mut next, mut seen, .. } = *leased;
        loop {
            let due = async {
                match next {
                    Some(next) => sleep_for(next.since(self.now())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => return Ok(()),
                wake = self.backend.changed(&self.name, seen) => {
                    let wake = wake?;
                    // What is told may be later: somebody must be there then, too. Who forgot what
                    // is known already for it would come too late.
                    next = next.into_iter().chain(wake.next).min();
                    seen = wake.seen;
                    if next.is_some_and(|next| next <= self.now()) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Says what came of leases; see [`Backend::settle`].
    pub fn settle(&self, outcomes: Vec<(LeaseToken, Outcome)>) -> Answer<'_, Vec<Settled>> {
        self.backend.settle(&self.name, outcomes, self.now())
    }

    /// Says what came of one lease; an error if it was over.
    pub fn settle_one(&self, token: LeaseToken, outcome: Outcome) -> Answer<'_, Settled> {
        self.backend.settle_one(&self.name, token, outcome, self.now())
    }

    /// Prolongs leases; see [`Backend::heartbeat`].
    pub fn heartbeat(&self, tokens: &[LeaseToken]) -> Answer<'_, Vec<Beat>> {
        self.backend.heartbeat(&self.name, tokens, self.now())
    }

    /// Says how far a running job is; whether its lease still holds.
    pub fn progress(&self, token: LeaseToken, progress: Progress) -> Answer<'_, bool> {
        self.backend.progress(&self.name, token, progress, self.now())
    }

    /// Takes a job out of the queue, or asks its worker to stop.
    pub fn cancel(&self, id: JobId) -> Answer<'_, Cancelled> {
        self.backend.cancel(&self.name, id, self.now())
    }

    /// What is known about a job.
    pub fn job(&self, id: JobId) -> Answer<'_, Option<Job>> {
        self.backend.job(&self.name, id, self.now())
    }

    /// The next jobs of a group, in the order in which they start.
    pub fn peek(&self, group: &Group, max: usize) -> Answer<'_, Vec<Job>> {
        self.backend.peek(&self.name, group, max, self.now())
    }

    /// The queue's figures and a page of groups; see [`Backend::stats`].
    pub fn stats(&self, after: Option<&Group>, max: usize) -> Answer<'_, Stats> {
        self.backend.stats(&self.name, after, max, self.now())
    }

    /// Pauses or resumes a group, or the whole queue.
    pub fn pause(&self, group: Option<&Group>, paused: bool) -> Answer<'_, ()> {
        self.backend.pause(&self.name, group, paused, self.now())
    }

    /// Gives a group limits of its own, or takes them back.
    pub fn set_limits(&self, group: &Group, limits: Option<Vec<Limit>>) -> Answer<'_, ()> {
        self.backend.set_limits(&self.name, group, limits, self.now())
    }

    /// A page of dead letters; see [`Backend::dead`].
    pub fn dead(&self, after: Option<JobId>, max: usize) -> Answer<'_, Vec<Job>> {
        self.backend.dead(&self.name, after, max, self.now())
    }

    /// Puts a dead letter back into its group; whether there was one.
    pub fn revive(&self, id: JobId) -> Answer<'_, bool> {
        self.backend.revive(&self.name, id, self.now())
    }

    /// Makes or replaces a recurring job.
    pub fn put_recurring(&self, recurring: Recurring) -> Answer<'_, ()> {
        self.backend.put_recurring(&self.name, recurring, self.now())
    }

    /// Ends a recurring job; whether there was one.
    pub fn remove_recurring(&self, name: &str) -> Answer<'_, bool> {
        self.backend.remove_recurring(&self.name, name, self.now())
    }

    /// Every recurring job, in order of names.
    pub fn recurring(&self) -> Answer<'_, Vec<Recurring>> {
        self.backend.recurring(&self.name)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Sleeps, no less: the timers of the runtime have whole milliseconds and round up.
async fn sleep_for(wait: Duration) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}
