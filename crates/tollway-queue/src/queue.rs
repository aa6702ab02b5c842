//! A queue by its name: what programs call, over any backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollway_core::{Clock, Timestamp};

use crate::waiting_line::{Turn, Waiter};
use crate::{
    Author, Backend, Beat, Call, Cancelled, Changed, Described, EndMark, Ended, Enqueued, Error,
    ErrorKind, Group, Job, JobId, Lease, LeaseToken, Leased, Limit, NewJob, Operation, Outcome,
    Progress, QueueName, QueueSettings, Recurring, Reply, Settled, Start, Stats, Wake,
};

/// How often whoever waits for a job looks at it although nothing was told of it.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// A queue by its name.
///
/// Cheap to clone; clones are the same queue. Every method checks its input, reads the clock once
/// and asks the backend; what it answers is stored. An error of kind [`ErrorKind::Invalid`] names
/// what is outside its bounds, what was found and what was expected.
#[derive(Clone)]
pub struct Queue {
    name: QueueName,
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
}

impl Queue {
    /// The queue called `name`, which must have been made: see [`Self::put`].
    pub fn new(backend: Arc<dyn Backend>, clock: Arc<dyn Clock>, name: QueueName) -> Self {
        Self { name, backend, clock }
    }

    /// Makes the queue, or changes its settings while it runs.
    ///
    /// # Errors
    ///
    /// If a setting is out of bounds, or the backend fails.
    pub async fn put(&self, settings: QueueSettings) -> Result<Changed, Error> {
        self.change(settings, Author::CALL).await
    }

    /// Makes the queue, or changes its settings while it runs, if the change is newer than what is
    /// in force; see [`Author`].
    pub fn change(&self, settings: QueueSettings, author: Author) -> Call<Changed> {
        self.call(Operation::Change { settings: Box::new(settings), author })
    }

    /// Its settings and their version.
    pub fn describe(&self) -> Call<Described> {
        self.call(Operation::Describe)
    }

    /// Forgets the queue and everything in it; whether there was one.
    pub fn remove(&self) -> Call<bool> {
        self.call(Operation::Remove)
    }

    /// Forgets the queue unless it holds jobs that wait, are delayed or run, or dead letters;
    /// whether there was one. The error is [`ErrorKind::Conflict`] if it does.
    pub fn remove_empty(&self) -> Call<bool> {
        self.call(Operation::RemoveEmpty)
    }

    /// Its name.
    pub const fn name(&self) -> &QueueName {
        &self.name
    }

    /// Where it lives.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn call<T: TryFrom<Reply, Error = Error>>(&self, operation: Operation) -> Call<T> {
        self.backend.on(&self.name, operation, self.now()).read()
    }

    /// Enqueues a job.
    ///
    /// # Errors
    ///
    /// If the job is out of bounds, the queue is full or unknown, or the backend fails. Unless the
    /// error's kind is `Unknown`, nothing was stored; with an idempotency key, simply try again.
    pub async fn enqueue(&self, job: NewJob) -> Result<Enqueued, Error> {
        let enqueued = self.enqueue_all(vec![job]).await?;
        let no_answer = || Error::new(ErrorKind::Unknown, "the backend gave no answer for the job");
        enqueued.into_iter().next().ok_or_else(no_answer)
    }

    /// Enqueues all jobs (at most [`crate::BATCH_MAX`]) or none; one answer per job, in order.
    pub fn enqueue_all(&self, jobs: Vec<NewJob>) -> Call<Vec<Enqueued>> {
        self.call(Operation::Enqueue(jobs))
    }

    /// Leases up to `max` jobs that may start now, to `worker` (at most
    /// [`Operation::WORKER_LEN_MAX`] bytes).
    ///
    /// Fewer come if fewer may start, if they fill a [page](crate::PAGE_BYTES), and if `max` is
    /// above [`crate::BATCH_MAX`], which is then meant.
    pub fn lease(&self, max: usize, worker: &str) -> Call<Leased> {
        self.call(Operation::Lease { max, worker: worker.to_owned() })
    }

    /// Leases up to `max` jobs, waiting for the first of them for at most `patience`.
    ///
    /// It sleeps exactly until something may start: by the time the backend told, or until it says
    /// that this time has changed. It never polls. Of those who wait in this process for the same
    /// queue on the same backend one asks at a time, in the order in which they came.
    ///
    /// # Errors
    ///
    /// As [`Self::lease`].
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
    /// As [`Self::lease`].
    pub async fn wait_for_leases_until(
        &self,
        max: usize,
        worker: &str,
        give_up: impl Future<Output = ()>,
    ) -> Result<Vec<Lease>, Error> {
        tokio::pin!(give_up);
        let waiter = self.enter_line();
        loop {
            let mut turn = tokio::select! {
                // Whoever was told that something may start asks for it: nobody else was told.
                biased;
                turn = self.ready_turn(&waiter) => turn?,
                () = &mut give_up => return Ok(Vec::new()),
            };
            let leased = self.lease_in_turn(&mut turn, max, worker).await?;
            if !leased.leases.is_empty() {
                return Ok(leased.leases);
            }
        }
    }

    /// One more who waits for jobs, last in line.
    pub(crate) fn enter_line(&self) -> Waiter {
        Waiter::at_the_end_of(self.backend.waiting_line(&self.name))
    }

    /// Waits to be first in line, and then until something may start.
    pub(crate) async fn ready_turn(&self, waiter: &Waiter) -> Result<Turn, Error> {
        let mut turn = waiter.turn().await;
        let ready = self.until_ready(&mut turn).await;
        if ready.is_err() {
            // Whoever is next must not rely on what this one could not listen to.
            *turn = None;
        }
        ready.map(|()| turn)
    }

    /// Leases, and notes for whoever is first next when to ask again.
    pub(crate) async fn lease_in_turn(
        &self,
        turn: &mut Turn,
        max: usize,
        worker: &str,
    ) -> Result<Leased, Error> {
        // If this is given up or fails, nobody knows what is left: the next one asks.
        **turn = None;
        let leased = self.lease(max, worker).await?;
        **turn = Some(Wake { next: leased.next, seen: leased.seen });
        Ok(leased)
    }

    /// Sleeps until something may start by what was told, which is brought up to date; not at all
    /// if nothing is known.
    async fn until_ready(&self, turn: &mut Turn) -> Result<(), Error> {
        loop {
            let Some(told) = &mut **turn else { return Ok(()) };
            let due = async {
                match told.next {
                    Some(next) => sleep_for(next.since(self.now())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => return Ok(()),
                wake = self.backend.changed(&self.name, told.seen) => {
                    let wake = wake?;
                    // What is told may be later: somebody must be there then, too. Who forgot what
                    // is known already for it would come too late.
                    told.next = told.next.into_iter().chain(wake.next).min();
                    told.seen = wake.seen;
                    if told.next.is_some_and(|next| next <= self.now()) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Says what came of leases (at most [`crate::BATCH_MAX`]); one answer per outcome, in order.
    /// May be repeated.
    pub fn settle(&self, outcomes: Vec<(LeaseToken, Outcome)>) -> Call<Vec<Settled>> {
        self.call(Operation::Settle(outcomes))
    }

    /// Says what came of one lease.
    ///
    /// # Errors
    ///
    /// Of kind [`ErrorKind::LeaseLost`] if it was over.
    pub async fn settle_one(&self, token: LeaseToken, outcome: Outcome) -> Result<Settled, Error> {
        match self.settle(vec![(token, outcome)]).await?.first() {
            Some(Settled::Lost) | None => Err(Error::new(
                ErrorKind::LeaseLost,
                format!("attempt {} at job {} is over", token.attempt, token.id),
            )),
            Some(settled) => Ok(*settled),
        }
    }

    /// Prolongs leases (at most [`crate::BATCH_MAX`]) by the queue's lease time; one answer per
    /// token, in order.
    pub fn heartbeat(&self, tokens: &[LeaseToken]) -> Call<Vec<Beat>> {
        self.call(Operation::Heartbeat(tokens.to_vec()))
    }

    /// Says how far a running job is; whether its lease still holds.
    pub fn progress(&self, token: LeaseToken, progress: Progress) -> Call<bool> {
        self.call(Operation::Progress(token, progress))
    }

    /// Has the group of a running job start nothing for this long (at most
    /// [`Outcome::LIMITED_MAX`]), because the answer to the job's call said that the limit is
    /// spent; whether the job's lease still holds. The job itself is not touched: settle it
    /// afterwards.
    pub fn hold(&self, token: LeaseToken, wait: Duration) -> Call<bool> {
        self.call(Operation::Hold(token, wait))
    }

    /// Takes a job out of the queue, or asks its worker to stop.
    pub fn cancel(&self, id: JobId) -> Call<Cancelled> {
        self.call(Operation::Cancel(id))
    }

    /// What is known about a job.
    pub fn job(&self, id: JobId) -> Call<Option<Job>> {
        self.call(Operation::Job(id))
    }

    /// Has a job that waits or is delayed start at another time; priority and deadline stay. The
    /// job as it is then; `None` if there is no such job among those that are not over.
    ///
    /// The error is [`ErrorKind::Conflict`] if it runs already.
    pub fn reschedule(&self, id: JobId, start: Start) -> Call<Option<Job>> {
        self.call(Operation::Reschedule { id, start })
    }

    /// Waits for a job to end, for at most `patience`; the job as it is then. `None` if nothing is
    /// known about it: it was cancelled, or is not kept ([`QueueSettings::retention`]).
    ///
    /// # Errors
    ///
    /// If the queue is unknown, or the backend fails.
    pub async fn wait_for_end(&self, id: JobId, patience: Duration) -> Result<Option<Job>, Error> {
        self.wait_for_end_until(id, tokio::time::sleep(patience)).await
    }

    /// As [`Self::wait_for_end`], until `give_up` is ready.
    ///
    /// # Errors
    ///
    /// As [`Self::wait_for_end`].
    pub async fn wait_for_end_until(
        &self,
        id: JobId,
        give_up: impl Future<Output = ()>,
    ) -> Result<Option<Job>, Error> {
        tokio::pin!(give_up);
        let mut waiter = self.backend.end_watch(&self.name).enter(id);
        let watch = Arc::clone(&waiter.watch);
        loop {
            let job = self.job(id).await?;
            if job.as_ref().is_none_or(|job| job.end_mark().is_some()) {
                return Ok(job);
            }
            tokio::select! {
                () = waiter.told() => {}
                error = watch.read(self) => return Err(error),
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                () = &mut give_up => return Ok(job),
            }
        }
    }

    /// A [page](crate::PAGE_BYTES) of at most `max` jobs (and at most [`crate::BATCH_MAX`]) that
    /// ended after `after`, those first that ended first; without it none, and where to begin if
    /// only what ends from now on is of interest. Known are those that are kept:
    /// [`QueueSettings::retention`].
    pub fn ended(&self, after: Option<EndMark>, max: usize) -> Call<Ended> {
        self.call(Operation::Ended { after, max })
    }

    /// Waits until jobs have ended after `after`, and gives a page of them; see [`Self::ended`].
    ///
    /// # Errors
    ///
    /// If the queue is unknown, or the backend fails.
    pub async fn wait_for_ends(&self, after: EndMark, max: usize) -> Result<Ended, Error> {
        let watch = self.backend.end_watch(&self.name);
        let mut listener = watch.listen();
        loop {
            let ended = self.ended(Some(after), max).await?;
            if !ended.jobs.is_empty() {
                return Ok(ended);
            }
            listener.next().await;
        }
    }

    /// The next jobs of a group (at most [`crate::BATCH_MAX`], and a [page](crate::PAGE_BYTES) at
    /// most) in the order in which they start.
    pub fn peek(&self, group: &Group, max: usize) -> Call<Vec<Job>> {
        self.call(Operation::Peek { group: group.clone(), max })
    }

    /// The queue's figures and a page of at most `max` groups (and at most [`crate::BATCH_MAX`])
    /// whose names are after `after`.
    pub fn stats(&self, after: Option<&Group>, max: usize) -> Call<Stats> {
        self.call(Operation::Stats { after: after.cloned(), max })
    }

    /// Pauses or resumes a group, or the whole queue. What runs is not touched.
    pub fn pause(&self, group: Option<&Group>, paused: bool) -> Call<()> {
        self.call(Operation::Pause { group: group.cloned(), paused })
    }

    /// Gives a group limits of its own in place of the queue's `group_limits`; `None` takes them
    /// back. What is in use stays in use.
    pub fn set_limits(&self, group: &Group, limits: Option<Vec<Limit>>) -> Call<()> {
        self.call(Operation::SetLimits { group: group.clone(), limits })
    }

    /// A [page](crate::PAGE_BYTES) of at most `max` dead letters (and at most
    /// [`crate::BATCH_MAX`]) whose ids are after `after`, in order of their ids. It may be shorter
    /// though more are there: the last one is empty.
    pub fn dead(&self, after: Option<JobId>, max: usize) -> Call<Vec<Job>> {
        self.call(Operation::Dead { after, max })
    }

    /// A [page](crate::PAGE_BYTES) of at most `max` jobs (and at most [`crate::BATCH_MAX`]) that
    /// run and whose ids are after `after`, in order of their ids; the last one is empty.
    pub fn running(&self, after: Option<JobId>, max: usize) -> Call<Vec<Job>> {
        self.call(Operation::Running { after, max })
    }

    /// Puts a dead letter back into its group, as if it had never failed; whether there was one.
    pub fn revive(&self, id: JobId) -> Call<bool> {
        self.call(Operation::Revive(id))
    }

    /// Makes a recurring job, or replaces the one of that name.
    pub fn put_recurring(&self, recurring: Recurring) -> Call<()> {
        self.call(Operation::PutRecurring(Box::new(recurring)))
    }

    /// Ends a recurring job; whether there was one.
    pub fn remove_recurring(&self, name: &str) -> Call<bool> {
        self.call(Operation::RemoveRecurring(name.to_owned()))
    }

    /// Every recurring job, in order of names.
    pub fn recurring(&self) -> Call<Vec<Recurring>> {
        self.call(Operation::Recurring)
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
