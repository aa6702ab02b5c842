//! The loop of a worker.

use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tower_service::Service;

use super::{Task, Worker};
use crate::waiting_line::{Turn, Waiter};
use crate::{BATCH_MAX, Beat, Error, ErrorKind, Lease, LeaseToken, Outcome, Queue, Settled};

/// What a worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Jobs whose handler ended and whose outcome was stored.
    pub settled: u64,
    /// Jobs whose lease was lost before that.
    pub lost: u64,
    /// Times that it asked for jobs.
    pub asked: u64,
}

/// A job that runs.
struct Running {
    cancel: watch::Sender<bool>,
    abort: AbortHandle,
}

/// What a handler must be; every service that [`Worker::run`] takes is one.
trait Handler: Clone + Send + 'static
where
    Self: Service<Task, Response: Into<Outcome>, Error: Display + Send, Future: Send>,
{
}

impl<S> Handler for S
where
    S: Service<Task, Response: Into<Outcome>, Error: Display + Send, Future: Send>,
    S: Clone + Send + 'static,
{
}

/// What the loop of a worker holds.
struct WorkLoop {
    worker: Worker,
    running: HashMap<LeaseToken, Running>,
    tasks: JoinSet<(LeaseToken, bool)>,
    summary: Summary,
    /// Itself in the line of those who wait, while it has room for more.
    waiter: Option<Waiter>,
    /// Three times per lease time, of the shortest that was seen.
    beat_every: Duration,
    next_beat: Instant,
}

/// A pause after the backend failed: it reconnects by itself, and this is not to spin meanwhile.
const AFTER_ERROR: Duration = Duration::from_millis(200);

impl Worker {
    /// Runs jobs until `shutdown` is ready, then lets those that run end.
    ///
    /// A backend that fails is asked again; only errors that no repetition can mend end the worker.
    ///
    /// # Errors
    ///
    /// If the queue is unknown or the worker's name cannot be used.
    pub async fn run<S>(
        self,
        handler: S,
        shutdown: impl Future<Output = ()>,
    ) -> Result<Summary, Error>
    where
        S: Service<Task, Response: Into<Outcome>, Error: Display + Send, Future: Send>,
        S: Clone + Send + 'static,
    {
        let beat_every = Duration::from_secs(10);
        let mut work = WorkLoop {
            worker: self,
            running: HashMap::new(),
            tasks: JoinSet::new(),
            summary: Summary::default(),
            waiter: None,
            beat_every,
            next_beat: Instant::now() + beat_every,
        };
        tokio::pin!(shutdown);
        let ended = loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break Ok(()),
                step = work.step(&handler) => if let Err(error) = step { break Err(error) },
            }
        };
        work.wind_down().await;
        ended.map(|()| work.summary)
    }
}

impl WorkLoop {
    /// Leases what there is room for and starts it, or waits for the next thing to happen.
    ///
    /// Dropped on shutdown: a lease granted at that very moment returns when it expires.
    async fn step(&mut self, handler: &impl Handler) -> Result<(), Error> {
        let waiter = match self.waiter.take() {
            None if self.has_room() => Some(self.worker.queue.enter_line()),
            waiter => waiter,
        };
        let turn = self.attend(waiter.as_ref()).await;
        let leased = match turn {
            Ok(None) => return Ok(()),
            Ok(Some(mut turn)) => {
                let room = self.worker.concurrency.saturating_sub(self.running.len());
                self.summary.asked += 1;
                let (queue, name) = (&self.worker.queue, &self.worker.name);
                queue.lease_in_turn(&mut turn, room.min(BATCH_MAX), name).await
            }
            Err(error) => Err(error),
        };
        match leased {
            Ok(leased) => {
                leased.leases.into_iter().for_each(|lease| self.start(lease, handler.clone()));
                // It knows still what it was told, unless others were first meanwhile.
                self.waiter = waiter.filter(|_| self.has_room());
                Ok(())
            }
            Err(error) if error.is_transient() => {
                drop(waiter);
                self.rest().await
            }
            Err(error) => Err(error),
        }
    }

    fn has_room(&self) -> bool {
        self.running.len() < self.worker.concurrency
    }

    /// Waits until a job ends, a heartbeat is due, or (standing in line) it may ask for more.
    async fn attend(&mut self, waiter: Option<&Waiter>) -> Result<Option<Turn>, Error> {
        let queue = self.worker.queue.clone();
        let ready = async {
            match waiter {
                Some(waiter) => queue.ready_turn(waiter).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(ready);
        // With room left, jobs that end do not end the wait: what waits is not theirs to start.
        loop {
            tokio::select! {
                ended = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.note(ended);
                    if waiter.is_none() {
                        return Ok(None);
                    }
                }
                () = tokio::time::sleep_until(self.next_beat), if !self.running.is_empty() => {
                    self.beat().await;
                }
                turn = &mut ready => return turn.map(Some),
            }
        }
    }

    async fn rest(&mut self) -> Result<(), Error> {
        tokio::time::sleep(AFTER_ERROR).await;
        Ok(())
    }

    fn start(&mut self, lease: Lease, handler: impl Handler) {
        let token = lease.token();
        let queue = self.worker.queue.clone();
        let every = (lease.expires_at.since(queue.now()) / 3).max(Duration::from_millis(1));
        if self.running.is_empty() || every < self.beat_every {
            self.beat_every = every;
            self.next_beat = Instant::now() + every;
        }
        let (cancel, cancelled) = watch::channel(false);
        let task = Task::new(lease, queue.clone(), cancelled);
        let abort = self.tasks.spawn(async move {
            let outcome = handle(handler, task).await;
            (token, settle(&queue, token, outcome, every * 3).await)
        });
        self.running.insert(token, Running { cancel, abort });
    }

    /// Notes that a task has ended.
    fn note(&mut self, ended: Option<Result<(LeaseToken, bool), tokio::task::JoinError>>) {
        match ended {
            Some(Ok((token, settled))) => {
                self.running.remove(&token);
                if settled { self.summary.settled += 1 } else { self.summary.lost += 1 }
            }
            // A handler that panicked, or was stopped because its lease was lost: the lease
            // expires.
            Some(Err(_)) => self.summary.lost += 1,
            None => {}
        }
        self.running.retain(|_, running| !running.abort.is_finished());
    }

    /// Prolongs every lease, tells who was cancelled, and stops whose lease is lost.
    async fn beat(&mut self) {
        self.next_beat = Instant::now() + self.beat_every;
        let tokens: Vec<LeaseToken> = self.running.keys().copied().collect();
        for tokens in tokens.chunks(BATCH_MAX) {
            // One that fails is made up for by the next: there are three per lease.
            let Ok(beats) = self.worker.queue.heartbeat(tokens).await else { return };
            for (token, beat) in tokens.iter().zip(beats) {
                let Some(running) = self.running.get(token) else { continue };
                match beat {
                    Beat::Until(_) => {}
                    Beat::Cancelled(_) => {
                        running.cancel.send_replace(true);
                    }
                    Beat::Lost => running.abort.abort(),
                }
            }
        }
    }

    /// Lets running jobs end within the grace, and settles as failed those that do not.
    async fn wind_down(&mut self) {
        let end = Instant::now() + self.worker.grace;
        while !self.tasks.is_empty() {
            tokio::select! {
                ended = self.tasks.join_next() => self.note(ended),
                () = tokio::time::sleep_until(self.next_beat), if !self.running.is_empty() => {
                    self.beat().await;
                }
                () = tokio::time::sleep_until(end) => break,
            }
        }
        self.tasks.shutdown().await;
        let stopped = |token: &LeaseToken| {
            let reason = "the worker stopped before the job was done".to_owned();
            (*token, Outcome::Failed { reason, retry: true })
        };
        let outcomes: Vec<_> = self.running.keys().map(stopped).collect();
        for outcomes in outcomes.chunks(BATCH_MAX) {
            // What cannot be told now, the end of the lease tells.
            let _ = self.worker.queue.settle(outcomes.to_vec()).await;
        }
    }
}

/// Waits until the handler is ready, and runs it.
async fn handle<S: Handler>(mut handler: S, task: Task) -> Outcome {
    let failed = |error: S::Error| Outcome::Failed { reason: error.to_string(), retry: true };
    if let Err(error) = std::future::poll_fn(|context| handler.poll_ready(context)).await {
        return failed(error);
    }
    handler.call(task).await.map_or_else(failed, Into::into)
}

/// Stores the outcome, again and again while the lease may last; whether it was stored.
///
/// Heartbeats have prolonged the lease until now and go on doing so: it may last one more lease
/// time from the end of the job, however long that took.
///
/// What cannot be stored on any try, such as a result that is too long, is a failure for good: left
/// alone, the job would be done again and again until its leases have ended often enough.
async fn settle(queue: &Queue, token: LeaseToken, mut outcome: Outcome, lease: Duration) -> bool {
    let expires = Instant::now() + lease;
    loop {
        let settled = queue.settle(vec![(token, outcome.clone())]).await;
        match settled {
            Ok(settled) => return !matches!(settled.first(), Some(Settled::Lost) | None),
            Err(error) if error.is_transient() && Instant::now() < expires => {
                tokio::time::sleep(AFTER_ERROR).await;
            }
            Err(error)
                if error.kind() == ErrorKind::Invalid
                    && !matches!(outcome, Outcome::Failed { .. }) =>
            {
                outcome = Outcome::Failed { reason: error.to_string(), retry: false };
            }
            Err(_) => return false,
        }
    }
}
