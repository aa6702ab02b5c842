//! Waiting for a limit: first come, first served, per key.
//!
//! Whoever has to wait queues behind the others that wait for the same key; only the one at the
//! head sleeps until its time and asks again. A thousand waiters cost one timer and one check per
//! admission, not a thousand. There are at most [`Limiter::WAITERS_MAX`] of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tollway_core::{Cost, Decision, Retry};

use crate::Limiter;

/// Everybody who waits.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queues: Mutex<Queues>,
}

/// The keys that somebody waits for, each with the queue of its waiters.
#[derive(Debug, Default)]
struct Queues {
    by_key: HashMap<Box<[u8]>, KeyQueue>,
    waiting: usize,
}

/// One at a time, in order of arrival, and how many there are.
#[derive(Debug)]
struct KeyQueue {
    head: Arc<Semaphore>,
    waiting: usize,
}

impl Limiter {
    /// How many may wait at once, over all keys; whoever comes then is denied at once.
    pub const WAITERS_MAX: usize = 65_536;

    /// Waits until one unit of `key` is allowed, and takes it.
    ///
    /// Returns a denial only if no wait can help, or too many wait already.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it gives up its place in the queue and has taken nothing.
    pub async fn acquire(&self, key: impl AsRef<[u8]>) -> Decision {
        self.acquire_within(key, Cost::ONE, Duration::MAX).await
    }

    /// As [`Self::acquire`], for `cost` units, but denies at once when the wait from the head of
    /// the queue would be longer than `wait_max`, and gives up when it has been.
    ///
    /// # Cancel safety
    ///
    /// As [`Self::acquire`].
    pub async fn acquire_within(
        &self,
        key: impl AsRef<[u8]>,
        cost: Cost,
        wait_max: Duration,
    ) -> Decision {
        let key = key.as_ref();
        // Whoever comes while others wait may not take what the first of them waits for.
        let decision = if self.waiters.somebody_waits_for(key) {
            self.would_be(key, cost)
        } else {
            self.check_cost(key, cost)
        };
        match decision.retry() {
            Some(Retry::After(wait)) if wait <= wait_max => {
                let queued = tokio::time::timeout(wait_max, self.queue(key, cost)).await;
                // The first answer is as old as the wait was long.
                queued.ok().flatten().unwrap_or_else(|| self.would_be(key, cost))
            }
            _ => decision,
        }
    }

    /// Waits for its turn and then for its units; `None` if too many wait already.
    async fn queue(&self, key: &[u8], cost: Cost) -> Option<Decision> {
        let head = self.waiters.enter(key)?;
        let _leaving = Leaving { waiters: &self.waiters, key };
        let _turn = head.acquire().await.expect("the semaphore is never closed");
        loop {
            let decision = self.check_cost(key, cost);
            let Some(Retry::After(wait)) = decision.retry() else { return Some(decision) };
            tokio::time::sleep(wait).await;
        }
    }
}

impl Waiters {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn somebody_waits_for(&self, key: &[u8]) -> bool {
        self.queues().by_key.contains_key(key)
    }

    fn enter(&self, key: &[u8]) -> Option<Arc<Semaphore>> {
        let mut queues = self.queues();
        if queues.waiting >= Limiter::WAITERS_MAX {
            return None;
        }
        queues.waiting += 1;
        let fresh = || KeyQueue { head: Arc::new(Semaphore::new(1)), waiting: 0 };
        let queue = queues.by_key.entry(key.into()).or_insert_with(fresh);
        queue.waiting += 1;
        Some(Arc::clone(&queue.head))
    }
}

/// Leaves the queue when dropped; the last one takes the key along.
struct Leaving<'a> {
    waiters: &'a Waiters,
    key: &'a [u8],
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        let mut queues = self.waiters.queues();
        queues.waiting -= 1;
        if let Some(queue) = queues.by_key.get_mut(self.key) {
            queue.waiting -= 1;
            if queue.waiting == 0 {
                queues.by_key.remove(self.key);
            }
        }
    }
}
