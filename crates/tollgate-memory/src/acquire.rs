//! Waiting for a limit: first come, first served, per key.
//!
//! Whoever has to wait queues behind the others that wait for the same key; only the one at the
//! head sleeps until its time and asks again. A thousand waiters cost one timer and one check per
//! admission, not a thousand.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tollgate_core::{Cost, Decision, Retry};

use crate::Limiter;

/// The keys that somebody waits for, each with the turn that its waiters take.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    turns: Mutex<HashMap<Box<[u8]>, Arc<Semaphore>>>,
}

impl Limiter {
    /// Waits until one unit of `key` is allowed, and takes it.
    ///
    /// Returns a denial only if no wait can help.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it gives up its place in the queue and has taken nothing.
    pub async fn acquire(&self, key: impl AsRef<[u8]>) -> Decision {
        self.acquire_within(key, Cost::ONE, Duration::MAX).await
    }

    /// As [`Self::acquire`], for `cost` units, but denies at once when the wait from the head of the
    /// queue would be longer than `wait_max`, and gives up when it has been.
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
        let decision = self.check_cost(key, cost);
        match decision.retry() {
            Some(Retry::After(wait)) if wait <= wait_max => {
                let queued = self.queue(key, cost);
                tokio::time::timeout(wait_max, queued).await.unwrap_or(decision)
            }
            _ => decision,
        }
    }

    async fn queue(&self, key: &[u8], cost: Cost) -> Decision {
        let turn = self.waiters.turn(key);
        let _cleanup = Cleanup { waiters: &self.waiters, key };
        let _head = turn.acquire().await.expect("the semaphore is never closed");
        loop {
            let decision = self.check_cost(key, cost);
            let Some(Retry::After(wait)) = decision.retry() else { return decision };
            tokio::time::sleep(wait).await;
        }
    }
}

impl Waiters {
    fn turn(&self, key: &[u8]) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(turns.entry(key.into()).or_insert_with(|| Arc::new(Semaphore::new(1))))
    }
}

/// Forgets the key when the last of its waiters leaves.
struct Cleanup<'a> {
    waiters: &'a Waiters,
    key: &'a [u8],
}

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        let mut turns = self.waiters.turns.lock().unwrap_or_else(PoisonError::into_inner);
        // Two: the map's and the leaving waiter's own.
        if turns.get(self.key).is_some_and(|turn| Arc::strong_count(turn) <= 2) {
            turns.remove(self.key);
        }
    }
}
