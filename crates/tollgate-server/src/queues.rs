//! The service's queues: where they live, which there are, and the pushing of their jobs.

use std::fmt;
use std::sync::Arc;

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate_core::Clock;
use tollgate_queue::push::{Push, PushTarget};
use tollgate_queue::{
    Backend, Embedded, Error, ErrorKind, Health, Limit, Queue, QueueName, QueueSettings,
    RedisBackend, RedisSettings, Worker,
};

use crate::lease_token::Signer;

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
}

/// Opens the store that `place` names: `memory`, `redb:PATH`, or the URL of a Redis or Valkey.
///
/// # Errors
///
/// If it cannot be opened or reached.
pub async fn open(place: Option<&str>) -> Result<Arc<dyn Backend>, Error> {
    Ok(match place.unwrap_or("memory") {
        "memory" => Arc::new(Embedded::memory()),
        place => match place.strip_prefix("redb:") {
            Some(path) => Arc::new(Embedded::open(path)?),
            None => Arc::new(RedisBackend::connect(place, RedisSettings::default()).await?),
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
    signer: Signer,
}

impl Queues {
    /// Makes the queues of `plan` in `backend`, or changes those that are there.
    ///
    /// # Errors
    ///
    /// If a setting is out of bounds, or the backend fails.
    pub async fn start(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        plan: &QueuePlan,
    ) -> Result<Self, Error> {
        let mut proposed = [0; 32];
        let no_randomness =
            |_| Error::new(ErrorKind::Unavailable, "the system gives no randomness");
        SystemRandom::new().fill(&mut proposed).map_err(no_randomness)?;
        let signer = Signer::new(&backend.secret(proposed).await?);
        let queues = Self { backend, clock, signer };
        for (name, limit) in &plan.shared {
            queues.backend.put_shared(name, *limit, queues.clock.now()).await?;
        }
        for planned in &plan.queues {
            queues.queue(planned.name.clone()).put(planned.settings.clone()).await?;
        }
        Ok(queues)
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
            workers.spawn(worker.run(push, async move {
                // Nobody is left to stop it if this fails: it stops.
                let _ = stopped.wait_for(|stop| *stop).await;
            }));
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

    /// What signs the tokens of leases.
    pub(crate) const fn signer(&self) -> &Signer {
        &self.signer
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
