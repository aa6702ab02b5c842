//! Those who wait for one lane of a bucket in this process, and whose turn it is.
//!
//! Between processes the store keeps the order of arrival. A place in its line belongs to a
//! process; which of its waiters takes it is decided here: each client has a virtual clock that
//! goes slower the more weight it has, and the waiter with the earliest reading goes first. With one
//! client that is the order of arrival. A rank is a handicap, so nobody waits for ever. A place says
//! what its request takes, so it goes to the first waiter that takes as much.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::costs;
use crate::budget::{Claim, Priority, Refusal};

/// What a waiter is told.
#[derive(Debug)]
pub(super) enum Turn {
    /// It may send: the permit, and when it was granted by the server's clock.
    Go { permit: String, granted_ms: u64 },
    /// It must not.
    Refused(Refusal),
    /// It has to ask again: the bucket has another name now.
    AskAgain,
    /// The store does not answer.
    Gone,
}

/// Who waits.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiters: BTreeMap<(u64, u64), Waiter>,
    clocks: HashMap<u64, u64>,
    now: u64,
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    turn: oneshot::Sender<Turn>,
    deadline: Option<Instant>,
    rank: u8,
    costs: String,
}

/// What one request of a client of weight one moves its clock.
const STEP: u64 = 1 << 20;
/// Requests of one client by which a rank is later than the one above it.
const HANDICAP: u64 = 256 * STEP;

impl Line {
    /// Lines up; the answer names the waiter.
    pub(super) fn join(
        &mut self,
        claim: &Claim,
        costs: String,
        turn: oneshot::Sender<Turn>,
        deadline: Option<Instant>,
    ) -> (u64, u64) {
        let rank = rank(claim);
        let clock = self.clocks.entry(claim.client_id()).or_insert(0);
        *clock = (*clock).max(self.now) + STEP / u64::from(claim.client_weight());
        let key = (*clock + u64::from(rank) * HANDICAP, self.next);
        self.next += 1;
        self.waiters.insert(key, Waiter { turn, deadline, rank, costs });
        key
    }

    /// Gives the turn to whoever is next; false if nobody wants it any more.
    pub(super) fn go(&mut self, permit: &str, granted_ms: u64) -> bool {
        let costs = costs::of_permit(permit);
        let next = |waiters: &BTreeMap<_, Waiter>| {
            waiters.iter().find(|(_, waiter)| waiter.costs == costs).map(|(key, _)| *key)
        };
        while let Some(key) = next(&self.waiters) {
            let Some(waiter) = self.waiters.remove(&key) else { break };
            self.now = self.now.max(key.0.saturating_sub(u64::from(waiter.rank) * HANDICAP));
            if waiter.turn.send(Turn::Go { permit: permit.to_owned(), granted_ms }).is_ok() {
                self.tidy();
                return true;
            }
        }
        self.tidy();
        false
    }

    /// Leaves without a turn; what it would have taken, if it was there.
    pub(super) fn leave(&mut self, waiter: (u64, u64)) -> Option<String> {
        let left = self.waiters.remove(&waiter);
        self.tidy();
        left.map(|waiter| waiter.costs)
    }

    /// Sends everybody away.
    pub(super) fn dismiss(&mut self, say: impl Fn() -> Turn) -> usize {
        let count = self.waiters.len();
        for (_, waiter) in std::mem::take(&mut self.waiters) {
            let _ = waiter.turn.send(say());
        }
        self.tidy();
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
            first
                + window
                    .saturating_mul(u32::try_from(index / per_window.max(1)).unwrap_or(u32::MAX))
        };
        let hopeless: Vec<_> = self
            .waiters
            .iter()
            .enumerate()
            .filter(|(index, (_, waiter))| {
                waiter.deadline.is_some_and(|deadline| now + wait(*index) > deadline)
            })
            .map(|(index, (key, _))| (index, *key))
            .collect();
        for (index, key) in &hopeless {
            if let Some(waiter) = self.waiters.remove(key) {
                let _ = waiter.turn.send(Turn::Refused(say(wait(*index))));
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
        for waiter in self.waiters.values() {
            *over.entry(&waiter.costs).or_default() -= 1;
        }
        let over = over.into_iter().map(|(costs, count)| (costs, usize::try_from(count)));
        over.flat_map(|(costs, count)| vec![costs.to_owned(); count.unwrap_or(0)]).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// An empty line remembers nobody.
    fn tidy(&mut self) {
        if self.waiters.is_empty() {
            self.clocks.clear();
            self.now = 0;
        }
    }
}

/// The rank of a claim, as the scripts write it.
pub(super) fn rank(claim: &Claim) -> u8 {
    match claim.rank() {
        Priority::High => 0,
        Priority::Normal => 1,
        Priority::Low => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Route;

    fn claim() -> Claim {
        Claim::new(Route::new("GET", "/", ""))
    }

    /// Joins all, lets all go, and tells the order in which they went.
    fn order(claims: &[Claim]) -> Vec<usize> {
        let mut line = Line::default();
        let mut turns: Vec<_> = claims
            .iter()
            .map(|claim| {
                let (sender, receiver) = oneshot::channel();
                line.join(claim, String::new(), sender, None);
                receiver
            })
            .collect();
        let mut went = Vec::new();
        while line.go("p", 0) {
            let next = (0..turns.len()).find(|index| turns[*index].try_recv().is_ok());
            went.push(next.expect("somebody has gone"));
        }
        went
    }

    #[test]
    fn one_client_goes_in_order_of_arrival() {
        assert_eq!(order(&vec![claim(); 5]), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn clients_take_turns_by_weight() {
        let [a, b] = [claim().client(1), claim().client(2).weight(2)];
        let claims = [a.clone(), a.clone(), a, b.clone(), b.clone(), b.clone(), b];
        let went = order(&claims);
        let first_three = &went[..3];
        assert_eq!(first_three.iter().filter(|index| **index >= 3).count(), 2, "{went:?}");
    }

    #[test]
    fn a_high_rank_overtakes() {
        let [low, high] = [Priority::Low, Priority::High].map(|rank| claim().priority(rank));
        assert_eq!(order(&[low, claim(), high]), [2, 1, 0]);
    }

    #[test]
    fn a_place_goes_to_a_waiter_that_takes_as_much() {
        let mut line = Line::default();
        let mut turns = [":1,1=9", ""].map(|costs| {
            let (sender, receiver) = oneshot::channel();
            line.join(&claim(), costs.to_owned(), sender, None);
            receiver
        });
        assert!(line.go("p.11", 0));
        assert!(turns[1].try_recv().is_ok() && turns[0].try_recv().is_err());
        let tickets = ["p.12".to_owned(), "p.13:1,1=9".to_owned()];
        assert_eq!(line.surplus(tickets.iter()), [""], "nobody waits to take one");
        assert!(!line.go("p.12", 0) && line.go("p.13:1,1=9", 0));
    }

    #[test]
    fn a_waiter_that_is_gone_is_passed_over() {
        let mut line = Line::default();
        let (gone, receiver) = oneshot::channel();
        line.join(&claim(), String::new(), gone, None);
        drop(receiver);
        assert!(!line.go("p", 0));
        assert_eq!(line.len(), 0);
    }
}
