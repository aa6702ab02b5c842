//! The service's queues: where they live, which there are, and the pushing of their jobs.
//!
//! ```text
//!   open ──> start ──┬── made ──> calls are answered, jobs are pushed
//!                    └── the store is away ──> calls are answered 503, again once a second ──> made
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::{SetOnce, watch};
use tokio::task::JoinSet;
use tollgate_core::Clock;
use tollgate_queue::push::{Push, PushTarget};
use tollgate_queue::{
    Backend, Embedded, Error, ErrorKind, Health, Limit, Queue, QueueName, QueueSettings,
    RedisBackend, RedisSettings, Worker,
};

use crate::lease_token::Signer;
use crate::outage::{OF_QUEUES, OutageLog};

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
    #[must_use]
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

/// How long a call may take while the store is away: whoever asks over HTTP asks again, and must not
/// be kept for long.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often queues are tried to be made in a store that was away at the start.
const MAKE_AGAIN: Duration = Duration::from_secs(1);

/// Opens the store that `place` names: `memory`, `redb:PATH`, or the URL of a Redis or Valkey, which
/// may be away if `start_without`.
///
/// # Errors
///
/// If it cannot be opened or reached.
pub async fn open(place: Option<&str>, start_without: bool) -> Result<Arc<dyn Backend>, Error> {
    Ok(match place.unwrap_or("memory") {
        "memory" => Arc::new(Embedded::memory()),
        place => match place.strip_prefix("redb:") {
            Some(path) => Arc::new(Embedded::open(path)?),
            None => {
                let connection = tollgate_redis::Settings {
                    start_without,
                    ..tollgate_redis::Settings::default()
                };
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
    workers: JoinSet<Result<tollgate_queue::Summary, Error>>,
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
    /// There once the queues are made.
    signer: Arc<SetOnce<Signer>>,
    outages: Arc<OutageLog>,
    /// Failed calls that were told of.
    failed_calls: Arc<AtomicU64>,
    store_name: &'static str,
}

impl Queues {
    /// Makes the queues of `plan` in `backend`, or changes those that are there; later, if the store
    /// is away now.
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
            signer: Arc::default(),
            outages: Arc::new(OutageLog::new(OF_QUEUES)),
            failed_calls: Arc::default(),
            store_name: plan.store_name(),
        };
        let is_away = || queues.backend.outage().is_some();
        let made = if is_away() { None } else { Some(queues.make(plan).await) };
        match made {
            Some(Ok(())) => {}
            Some(Err(error)) if !(error.is_transient() && is_away()) => return Err(error),
            _ => {
                queues.look_for_outage();
                tokio::spawn(queues.clone().make_later(plan.clone()));
            }
        }
        Ok(queues)
    }

    /// Makes the queues of `plan` as soon as their store answers.
    async fn make_later(self, plan: QueuePlan) {
        let mut last = String::new();
        loop {
            tokio::time::sleep(MAKE_AGAIN).await;
            match self.make(&plan).await {
                Ok(()) => return,
                Err(error) if error.is_transient() => {}
                // It may be mended in the store. Logged once, not once a second.
                Err(error) if error.to_string() == last => {}
                Err(error) => {
                    tracing::error!(%error, "the queues cannot be made");
                    last = error.to_string();
                }
            }
        }
    }

    async fn make(&self, plan: &QueuePlan) -> Result<(), Error> {
        let mut proposed = [0; 32];
        let no_randomness =
            |_| Error::new(ErrorKind::Unavailable, "the system gives no randomness");
        SystemRandom::new().fill(&mut proposed).map_err(no_randomness)?;
        let signer = Signer::new(&self.backend.secret(proposed).await?);
        for (name, limit) in &plan.shared {
            self.backend.put_shared(name, *limit, self.clock.now()).await?;
        }
        for planned in &plan.queues {
            self.queue(planned.name.clone()).put(planned.settings.clone()).await?;
        }
        // It is there already only if two make the same queues, with the secret that both found.
        let _ = self.signer.set(signer);
        Ok(())
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
            let (push, mut stopped) = (Push::new(target)?, stopped.clone());
            let worker = Worker::new(self.queue(planned.name.clone()));
            let worker = worker.name("push").concurrency(target.concurrency).grace(target.timeout);
            let made = Arc::clone(&self.signer);
            workers.spawn(async move {
                // A queue that is not made yet would end its worker. Nobody is left to stop it if
                // waiting for that fails: it stops.
                let early = tokio::select! {
                    _ = made.wait() => false,
                    _ = stopped.wait_for(|stop| *stop) => true,
                };
                if early {
                    return Ok(tollgate_queue::Summary::default());
                }
                let told = async move { drop(stopped.wait_for(|stop| *stop).await) };
                worker.run(push, told).await
            });
        }
        Ok(Pushing { stop, workers })
    }

    /// How the place is in which they live.
    #[must_use]
    pub fn health(&self) -> Health {
        self.backend.health()
    }

    /// The queue of this name, whether there is one or not.
    #[must_use]
    pub fn queue(&self, name: QueueName) -> Queue {
        Queue::new(Arc::clone(&self.backend), Arc::clone(&self.clock), name)
    }

    /// Outages of the place in which they live.
    #[must_use]
    pub fn outages(&self) -> &OutageLog {
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
        self.outages.look(self.store_name, told.as_ref(), now);
    }

    /// What signs the tokens of leases; an error until the queues are made.
    pub(crate) fn signer(&self) -> Result<&Signer, Error> {
        self.signer.get().ok_or_else(|| {
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
    pub async fn all(&self) -> Result<Vec<Queue>, Error> {
        let listed = self.backend.queues().await?;
        Ok(listed.into_iter().map(|(name, _)| self.queue(name)).collect())
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queues")
    }
}
