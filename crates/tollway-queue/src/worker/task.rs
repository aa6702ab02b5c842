//! A job in the hands of a handler.

use std::time::Duration;

use tokio::sync::watch;

use crate::{Error, Lease, Progress, Queue};

/// A job in the hands of a handler.
#[derive(Clone, Debug)]
pub struct Task {
    lease: Lease,
    queue: Queue,
    cancelled: watch::Receiver<bool>,
}

impl Task {
    pub(crate) const fn new(lease: Lease, queue: Queue, cancelled: watch::Receiver<bool>) -> Self {
        Self { lease, queue, cancelled }
    }

    /// What is to be done.
    pub const fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The queue that it comes from.
    pub const fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Says how far the job is; whether its lease still holds.
    ///
    /// # Errors
    ///
    /// If the backend fails.
    pub async fn progress(&self, done: u64, total: u64) -> Result<bool, Error> {
        self.queue.progress(self.lease.token(), Progress { done, total }).await
    }

    /// Has the job's group start nothing for this long: the answer to its call said that the limit
    /// is spent. Whether the job's lease still holds.
    ///
    /// # Errors
    ///
    /// If the backend fails.
    pub async fn hold_group(&self, wait: Duration) -> Result<bool, Error> {
        self.queue.hold(self.lease.token(), wait).await
    }

    /// Waits until somebody cancels the job. The handler should end then; whatever it says, the job
    /// is not tried again.
    pub async fn cancelled(&mut self) {
        // The worker that knew is gone only when this task is.
        let _ = self.cancelled.wait_for(|cancelled| *cancelled).await;
    }

    /// Whether somebody has cancelled the job, as far as the last heartbeat told.
    pub fn is_cancelled(&self) -> bool {
        *self.cancelled.borrow()
    }
}
