//! The claims of this process that wait for one kind of permit, and which of them gets the next.
//!
//! Between processes the documents keep the order of arrival. A place there belongs to a process;
//! the [fair queue](crate::fair_queue) decides which of its claims takes it.

use tokio::sync::oneshot;

use crate::budget::{Claim, Refusal};
use crate::fair_queue::{FairClock, FairQueue, QueueKey, Requester, has_below};

/// What a waiting claim is told.
#[derive(Debug)]
pub(super) enum ClaimResult {
    /// It may send: the number of its permit.
    Granted(u64),
    /// It must not.
    Refused(Refusal),
    /// The store does not answer.
    StoreGone,
}

/// The claims that wait.
#[derive(Debug, Default)]
pub(super) struct ClaimQueue {
    waiting: FairQueue<oneshot::Sender<ClaimResult>>,
    clock: FairClock,
    arrivals: u64,
}

impl ClaimQueue {
    /// Queues a claim; the answer names it.
    pub(super) fn join(&mut self, claim: &Claim, result: oneshot::Sender<ClaimResult>) -> QueueKey {
        let key = self.clock.key(&Requester::of(claim), self.arrivals);
        self.arrivals += 1;
        self.waiting.insert(key, result);
        key
    }

    /// Gives a permit to whoever is next; false if nobody wants it any more.
    pub(super) fn grant(&mut self, number: u64) -> bool {
        let mut is_taken = false;
        while !is_taken && let Some((_, key)) = self.clock.choose(&[(0, &self.waiting)], |_| true) {
            let Some(result) = self.waiting.remove(&key) else { break };
            self.clock.served(key, has_below(&self.waiting, key.0));
            is_taken = result.send(ClaimResult::Granted(number)).is_ok();
        }
        is_taken
    }

    /// Leaves without a permit; whether it was there.
    pub(super) fn leave(&mut self, key: QueueKey) -> bool {
        self.waiting.remove(&key).is_some()
    }

    /// Refuses one; false if it has been served.
    pub(super) fn refuse(&mut self, key: QueueKey, refusal: Refusal) -> bool {
        let found = self.waiting.remove(&key);
        found.map(|result| result.send(ClaimResult::Refused(refusal))).is_some()
    }

    /// Sends everybody away.
    pub(super) fn dismiss(&mut self, say: impl Fn() -> ClaimResult) -> usize {
        let all = std::mem::take(&mut self.waiting);
        let count = all.len();
        for result in all.into_values() {
            let _ = result.send(say());
        }
        count
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Route;

    #[test]
    fn a_claim_that_is_gone_is_passed_over() {
        let mut queue = ClaimQueue::default();
        let claim = Claim::new(Route::new("GET", "/", ""));
        let (gone, _) = oneshot::channel();
        queue.join(&claim, gone);
        let (sender, mut result) = oneshot::channel();
        queue.join(&claim, sender);
        assert!(queue.grant(7) && !queue.grant(8));
        assert!(matches!(result.try_recv(), Ok(ClaimResult::Granted(7))));
    }
}
