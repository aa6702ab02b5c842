//! The service's queues: where they live, which there are, and the pushing of their jobs.

use std::fmt;
use std::sync::Arc;

use tollgate_core::Clock;
use tollgate_queue::{Backend, Error, Limit, Queue, QueueName, QueueSettings};

/// What the configuration says about queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
}

impl QueuePlan {
    /// Whether the service has queues at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }
}

/// The service's queues.
#[derive(Clone)]
pub struct Queues {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
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
        let queues = Self { backend, clock };
        for (name, limit) in &plan.shared {
            queues.backend.put_shared(name, *limit, queues.clock.now()).await?;
        }
        for planned in &plan.queues {
            queues.queue(planned.name.clone()).put(planned.settings.clone()).await?;
        }
        Ok(queues)
    }

    /// The queue of this name, whether there is one or not.
    #[must_use]
    pub fn queue(&self, name: QueueName) -> Queue {
        Queue::new(Arc::clone(&self.backend), Arc::clone(&self.clock), name)
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
