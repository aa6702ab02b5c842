//! The claims of this process that wait for a bucket, and which of them a granted permit goes to.
//!
//! Between processes the store keeps the order of arrival. A place in the store's queue belongs to
//! a process; the [fair queue](crate::fair_queue) decides which of its claims takes it. A permit
//! says what its request takes, so it goes to the first claim that takes as much.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::costs;
use crate::budget::{Claim, Priority, Refusal};
use crate::fair_queue::{FairClock, FairQueue, QueueKey, Requester, has_below};

/// What a waiting claim is told.
#[derive(Debug)]
pub(super) enum ClaimResult {
    /// It may send: the permit, and when it was granted by the server's clock.
    Granted { permit: String, granted_ms: u64 },
    /// It must not.
    Refused(Refusal),
    /// It has to ask again: the bucket has another name now.
    AskAgain,
    /// The store does not answer.
    StoreGone,
}

/// The claims that wait.
#[derive(Debug, Default)]
pub(super) struct ClaimQueue {
    waiting: FairQueue<WaitingClaim>,
    clock: FairClock,
    arrivals: u64,
}

#[derive(Debug)]
struct WaitingClaim {
    result: oneshot::Sender<ClaimResult>,
    deadline: Option<Instant>,
    costs: String,
}

impl ClaimQueue {
    /// Queues a claim; the answer names it.
    pub(super) fn join(
        &mut self,
        claim: &Claim,
        costs: String,
        result: oneshot::Sender<ClaimResult>,
        deadline: Option<Instant>,
    ) -> QueueKey {
        let key = self.clock.key(&Requester::of(claim), self.arrivals);
        self.arrivals += 1;
        self.waiting.insert(key, WaitingClaim { result, deadline, costs });
        key
    }

    /// Gives a permit to whoever is next; false if nobody wants it any more.
    pub(super) fn grant(&mut self, permit: &str, granted_ms: u64) -> bool {
        let costs = costs::of_permit(permit);
        let next =
            |queue: &Self| queue.clock.choose(&[(0, &queue.waiting)], |claim| claim.costs == costs);
        let mut is_taken = false;
        while !is_taken && let Some((_, key)) = next(self) {
            let Some(claim) = self.waiting.remove(&key) else { break };
            self.clock.served(key, has_below(&self.waiting, key.0));
            let granted = ClaimResult::Granted { permit: permit.to_owned(), granted_ms };
            is_taken = claim.result.send(granted).is_ok();
        }
        self.forget_clients();
        is_taken
    }

    /// Leaves without a permit; what the claim would have taken, if it was there.
    pub(super) fn leave(&mut self, key: QueueKey) -> Option<String> {
        let left = self.waiting.remove(&key);
        self.forget_clients();
        left.map(|claim| claim.costs)
    }

    /// Sends everybody away.
    pub(super) fn dismiss(&mut self, say: impl Fn() -> ClaimResult) -> usize {
        let count = self.len();
        for (_, claim) in std::mem::take(&mut self.waiting) {
            let _ = claim.result.send(say());
        }
        self.forget_clients();
        count
    }

    /// Refuses those who cannot wait that long: the first `per_window` of them wait `first`, the
    /// next ones a window more each.
    pub(super) fn refuse_impatient(
        &mut self,
        first: Duration,
        per_window: usize,
        window: Duration,
        now: Instant,
        say: impl Fn(Duration) -> Refusal,
    ) -> usize {
        let wait = |index: usize| {
            let windows = u32::try_from(index / per_window.max(1)).unwrap_or(u32::MAX);
            first + window.saturating_mul(windows)
        };
        let is_hopeless = |(index, (_, claim)): &(usize, (_, &WaitingClaim))| {
            claim.deadline.is_some_and(|deadline| now + wait(*index) > deadline)
        };
        let waiting = self.waiting.iter().enumerate().filter(is_hopeless);
        let hopeless: Vec<_> = waiting.map(|(index, (key, _))| (index, *key)).collect();
        for (index, key) in &hopeless {
            if let Some(claim) = self.waiting.remove(key) {
                let _ = claim.result.send(ClaimResult::Refused(say(wait(*index))));
            }
        }
        hopeless.len()
    }

    /// What those of the tickets take that are more than those who wait to take as much.
    pub(super) fn surplus<'a>(&self, tickets: impl Iterator<Item = &'a String>) -> Vec<String> {
        let mut over: BTreeMap<&str, isize> = BTreeMap::new();
        for ticket in tickets {
            *over.entry(costs::of_permit(ticket)).or_default() += 1;
        }
        for claim in self.waiting.values() {
            *over.entry(&claim.costs).or_default() -= 1;
        }
        let over = over.into_iter().map(|(costs, count)| (costs, usize::try_from(count)));
        over.flat_map(|(costs, count)| vec![costs.to_owned(); count.unwrap_or(0)]).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn forget_clients(&mut self) {
        if self.waiting.is_empty() {
            self.clock.reset();
        }
    }
}

/// The rank of a claim, as the scripts write it.
pub(super) fn rank(claim: &Claim) -> u8 {
    match claim.priority {
        Priority::High => 0,
        Priority::Normal => 1,
        Priority::Low => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Route;

    fn join(queue: &mut ClaimQueue, costs: &str) -> oneshot::Receiver<ClaimResult> {
        let (sender, receiver) = oneshot::channel();
        let claim = Claim::new(Route::new("GET", "/", ""));
        queue.join(&claim, costs.to_owned(), sender, None);
        receiver
    }

    #[test]
    fn a_permit_goes_to_a_claim_that_takes_as_much() {
        let mut queue = ClaimQueue::default();
        let mut results = [":1,1=9", ""].map(|costs| join(&mut queue, costs));
        assert!(queue.grant("p.11", 0));
        assert!(results[1].try_recv().is_ok() && results[0].try_recv().is_err());
        let tickets = ["p.12".to_owned(), "p.13:1,1=9".to_owned()];
        assert_eq!(queue.surplus(tickets.iter()), [""], "nobody waits to take one");
        assert!(!queue.grant("p.12", 0) && queue.grant("p.13:1,1=9", 0));
    }

    #[test]
    fn a_claim_that_is_gone_is_passed_over() {
        let mut queue = ClaimQueue::default();
        drop(join(&mut queue, ""));
        assert!(!queue.grant("p", 0));
        assert!(queue.is_empty());
    }
}
