//! The service's queues: where they live, which there are, and the pushing of their jobs.
//!
//! ```text
//!   open ──> start ──┬── made ──> calls are answered, jobs are pushed
//!                    └── the store is away ──> calls get 503, retried every second ──> made
//! ```
//!
//! After an outage of the store they are made again: it may have come back without its data. So
//! they are when a call finds one of them missing: an outage may be too short to be seen.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollway_core::Clock;
use tollway_queue::push::{Push, PushTarget};
use tollway_queue::{
    Backend, Embedded, Error, ErrorKind, Health, Limit, Outcome, Queue, QueueName, QueueSettings,
    RedisBackend, RedisSettings, Task, Worker, handler_fn,
};
use tower_service::Service;

use crate::lease_token::Signer;
use crate::outage::{OF_QUEUES, OutageLog};
use crate::queue_watch::QueueWatch;

/// What the configuration says about queues.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct QueuePlan {
    /// `memory`, `redb:PATH` or the URL of a Redis or Valkey; `None` for memory.
    pub store: Option<String>,
    /// Limits that queues share.
    pub shared: Vec<(QueueName, Limit)>,
    /// The queues.
    pub queues: Vec<PlannedQueue>,
}

/// A queue as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedQueue {
    /// Its name.
    pub name: QueueName,
    /// Its settings.
    pub settings: QueueSettings,
    /// Where its jobs are pushed to, if they are not leased.
    pub push: Option<PushTarget>,
}

impl fmt::Debug for QueuePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The store's URL may hold a password.
        f.debug_struct("QueuePlan").field("queues", &self.queues).finish_non_exhaustive()
    }
}

impl QueuePlan {
    /// Whether the service has queues at all.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// The kind of store, for logs.
    fn store_name(&self) -> &'static str {
        match self.store.as_deref().unwrap_or("memory") {
            "memory" => "memory",
            place if place.starts_with("redb:") => "redb",
            _ => "redis",
        }
    }
}

/// How long a call may take while the store is away: whoever asks over HTTP asks again, and must
/// not be kept for long.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often queues are tried to be made in a store that was away at the start.
const MAKE_AGAIN: Duration = Duration::from_secs(1);

/// Opens the store that `place` names: `memory`, `redb:PATH`, or the URL of a Redis or Valkey,
/// which may be away if `start_without`.
///
/// # Errors
///
/// If it cannot be opened or reached.
pub async fn open_queue_store(
    place: Option<&str>,
    start_without: bool,
) -> Result<Arc<dyn Backend>, Error> {
    Ok(match place.unwrap_or("memory") {
        "memory" => Arc::new(Embedded::memory()),
        place => match place.strip_prefix("redb:") {
            Some(path) => Arc::new(Embedded::open(path)?),
            None => {
                let connection =
                    tollway_redis::Settings { start_without, ..tollway_redis::Settings::default() };
                let (answer_timeout, patience) = (PATIENCE, PATIENCE);
                let settings = RedisSettings {
                    answer_timeout,
                    patience,
                    connection,
                    ..RedisSettings::default()
                };
                Arc::new(RedisBackend::connect(place, settings).await?)
            }
        },
    })
}

/// Workers that push jobs, until they are stopped.
#[derive(Debug)]
pub struct Pushing {
    stop: watch::Sender<bool>,
    workers: JoinSet<Result<tollway_queue::Summary, Error>>,
}

impl Pushing {
    /// Leases nothing more, and waits for the calls under way.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while let Some(ended) = self.workers.join_next().await {
            if let Ok(Err(error)) = ended {
                tracing::error!(%error, "a queue is no longer pushed");
            }
        }
    }
}

/// The service's queues.
#[derive(Clone)]
pub struct Queues {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    plan: Arc<QueuePlan>,
    /// There once the queues are made.
    made: Arc<watch::Sender<Option<Made>>>,
    /// Whether a task is about to make them.
    is_making: Arc<AtomicBool>,
    outages: Arc<OutageLog>,
    /// Failed calls that were told of.
    failed_calls: Arc<AtomicU64>,
    store_name: &'static str,
    watch: Arc<QueueWatch>,
}

/// What there is once the queues are made.
struct Made {
    secret: [u8; 32],
    signer: Signer,
}

/// Says that a task makes the queues, until it ends in whatever way.
struct MakingGuard(Arc<AtomicBool>);

impl Drop for MakingGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn new_secret() -> Result<[u8; 32], Error> {
    let mut secret = [0; 32];
    let no_randomness = |_| Error::new(ErrorKind::Unavailable, "the system gives no randomness");
    SystemRandom::new().fill(&mut secret).map_err(no_randomness)?;
    Ok(secret)
}

impl Queues {
    /// Makes the queues of `plan` in `backend`, or changes those that are there; later, if the
    /// store is away now.
    ///
    /// # Errors
    ///
    /// If a setting is out of bounds, or the backend fails.
    pub async fn start(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        plan: &QueuePlan,
    ) -> Result<Self, Error> {
        for planned in &plan.queues {
            planned.settings.validate()?;
        }
        let queues = Self {
            backend,
            clock,
            plan: Arc::new(plan.clone()),
            made: Arc::new(watch::Sender::new(None)),
            is_making: Arc::default(),
            outages: Arc::new(OutageLog::new(OF_QUEUES)),
            failed_calls: Arc::default(),
            store_name: plan.store_name(),
            watch: Arc::default(),
        };
        let is_away = || queues.backend.outage().is_some();
        let made = if is_away() { None } else { Some(queues.make().await) };
        match made {
            Some(Ok(())) => {}
            Some(Err(error)) if !(error.is_transient() && is_away()) => return Err(error),
            _ => {
                queues.look_for_outage();
                queues.make_soon();
            }
        }
        Ok(queues)
    }

    /// Has a task make the queues, unless there is one.
    fn make_soon(&self) {
        if !self.is_making.swap(true, Ordering::AcqRel) {
            let guard = MakingGuard(Arc::clone(&self.is_making));
            tokio::spawn(self.clone().make_later(guard));
        }
    }

    /// Makes the queues as soon as their store answers.
    async fn make_later(self, _guard: MakingGuard) {
        let mut last = String::new();
        loop {
            let is_lasting = match self.make().await {
                Ok(()) => return,
                Err(error) if error.is_transient() => false,
                // It may be mended in the store. Logged once, not once a second.
                Err(error) if error.to_string() == last => true,
                Err(error) => {
                    tracing::error!(%error, "the queues cannot be made");
                    last = error.to_string();
                    true
                }
            };
            tokio::time::sleep(MAKE_AGAIN).await;
            // Once made, they are made again when a call misses one. Before, no call comes so far.
            if is_lasting && self.made.borrow().is_some() {
                return;
            }
        }
    }

    /// What a call to the queue `name` is told that failed with `error`. A queue of the plan that
    /// the store does not know was lost with its data: it is made again, and the call may be
    /// repeated.
    pub(crate) fn told(&self, name: &QueueName, error: Error) -> Error {
        let is_planned = || self.plan.queues.iter().any(|planned| planned.name == *name);
        if error.kind() != ErrorKind::UnknownQueue || !is_planned() {
            return error;
        }
        self.make_soon();
        let message = format!("the queue {name} was lost with its store's data, and is made again");
        Error::new(ErrorKind::Unavailable, message).caused_by(error)
    }

    async fn make(&self) -> Result<(), Error> {
        let known = self.made.borrow().as_ref().map(|made| made.secret);
        // A store that has lost its data is given the secret that it had.
        let proposed = known.map_or_else(new_secret, Ok)?;
        let secret = self.backend.secret(proposed).await?;
        if known == Some(secret) && self.are_there().await? {
            return Ok(());
        }
        for (name, limit) in &self.plan.shared {
            self.backend.put_shared(name, *limit, self.clock.now()).await?;
        }
        for planned in &self.plan.queues {
            self.queue(planned.name.clone()).put(planned.settings.clone()).await?;
        }
        self.made.send_replace(Some(Made { secret, signer: Signer::new(&secret) }));
        Ok(())
    }

    /// Whether the store has all of them: to put settings again costs it a look at every group.
    async fn are_there(&self) -> Result<bool, Error> {
        let there = self.backend.queues().await?;
        let is_there = |planned: &PlannedQueue| there.iter().any(|(name, _)| *name == planned.name);
        Ok(self.plan.queues.iter().all(is_there))
    }

    /// Starts to push the jobs of those queues of `plan` that have a target.
    ///
    /// # Errors
    ///
    /// If a target cannot be used.
    pub fn push(&self, plan: &QueuePlan) -> Result<Pushing, Error> {
        let (stop, stopped) = watch::channel(false);
        let mut workers = JoinSet::new();
        for planned in &plan.queues {
            let Some(target) = &planned.push else { continue };
            let (push, mut stopped) = (self.counted(Push::new(target)?), stopped.clone());
            let worker = Worker::new(self.queue(planned.name.clone()));
            let worker = worker.name("push").concurrency(target.concurrency).grace(target.timeout);
            let queues = self.clone();
            workers.spawn(async move {
                loop {
                    let mut heard = stopped.clone();
                    // Nobody is left to stop it if this fails: it stops.
                    let told = async move { drop(heard.wait_for(|stop| *stop).await) };
                    match worker.clone().run(push.clone(), told).await {
                        // Not made yet, or lost with the store's data.
                        Err(error) if error.kind() == ErrorKind::UnknownQueue => queues.make_soon(),
                        ended => return ended,
                    }
                    let is_stopped = tokio::select! {
                        () = tokio::time::sleep(MAKE_AGAIN) => false,
                        _ = stopped.wait_for(|stop| *stop) => true,
                    };
                    if is_stopped {
                        return Ok(tollway_queue::Summary::default());
                    }
                }
            });
        }
        Ok(Pushing { stop, workers })
    }

    /// A handler that pushes, and counts how long its jobs have waited.
    fn counted(
        &self,
        mut push: Push,
    ) -> impl Service<Task, Response = Outcome, Error = Infallible, Future: Send> + Clone + Send + 'static
    {
        let watch = Arc::clone(&self.watch);
        handler_fn(move |task: Task| {
            watch.leased(task.queue().name().as_str(), [task.lease()], task.queue().now());
            let call = push.call(task);
            async move { call.await.unwrap_or_else(|never| match never {}) }
        })
    }

    /// What they have done of late.
    pub(crate) fn watch(&self) -> &QueueWatch {
        &self.watch
    }

    /// How the place is in which they live.
    pub(crate) fn health(&self) -> Health {
        self.backend.health()
    }

    /// The queue of this name, whether there is one or not.
    pub(crate) fn queue(&self, name: QueueName) -> Queue {
        Queue::new(Arc::clone(&self.backend), Arc::clone(&self.clock), name)
    }

    /// Outages of the place in which they live.
    pub(crate) fn outages(&self) -> &OutageLog {
        &self.outages
    }

    /// Looks whether an outage has begun, goes on, or is over, and how many calls have failed.
    pub(crate) fn look_for_outage(&self) {
        let (told, now) = (self.backend.outage(), self.clock.now());
        let failed = self.health().failed_calls;
        let unanswered = failed - self.failed_calls.swap(failed, Ordering::Relaxed).min(failed);
        if unanswered > 0 {
            self.outages.failed(self.store_name, || told.clone(), unanswered, now);
        }
        let was_up = self.outages.is_up();
        self.outages.look(self.store_name, told.as_ref(), now);
        if !was_up && self.outages.is_up() && self.made.borrow().is_some() {
            self.make_soon();
        }
    }

    /// What signs the tokens of leases; an error until the queues are made.
    pub(crate) fn signer(&self) -> Result<Signer, Error> {
        let signer = self.made.borrow().as_ref().map(|made| made.signer.clone());
        signer.ok_or_else(|| {
            let reason = self.backend.outage().map(|told| told.reason);
            let reason = reason.as_deref().unwrap_or("they are about to be made");
            let message = format!("the queues are not there yet: {reason}");
            Error::new(ErrorKind::Unavailable, message)
        })
    }

    /// Every queue, in order of names.
    ///
    /// # Errors
    ///
    /// If the backend fails.
    pub(crate) async fn all(&self) -> Result<Vec<Queue>, Error> {
        let listed = self.backend.queues().await?;
        Ok(listed.into_iter().map(|(name, _)| self.queue(name)).collect())
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queues")
    }
}
