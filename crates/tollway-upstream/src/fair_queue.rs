//! Who goes next: by priority, then clients in turn by weight, then in order of arrival.
//!
//! Start-time fair queueing: each request is stamped with the virtual time at which it would start
//! if every client had its share, and the lowest stamp goes first. A single client is served in
//! order of arrival. At most [`OVERTAKES_MAX`] requests in a row overtake one of lower priority.
//!
//! [`FairClock`] stamps, [`FairQueue`] holds those who wait. They are two types because the queues
//! of a bucket's sub-limits, and the ready buckets of a credential, each share one clock. The local
//! and the Redis ledger both queue with these types, so a priority means the same in both.

use std::collections::{BTreeMap, HashMap};

use crate::budget::{Claim, Priority};

/// Requests of higher priority that may go in a row while a lower one waits.
const OVERTAKES_MAX: u32 = 15;
/// Virtual time of one request at weight 1. A power of two, so that common weights divide it
/// evenly.
const UNIT: u64 = 1 << 20;
/// Clients whose last stamp is remembered: 64 KiB. The stamps of further clients begin at the
/// present: client names are untrusted, and an entry for each would be unbounded.
const CLIENTS_MAX: usize = 4_096;

/// Clients for which a clock that nobody waits at keeps room, to save an allocation per request.
const CLIENTS_KEPT: usize = 8;

/// Where a request stands in a queue: priority, stamp, arrival.
pub(crate) type QueueKey = (Priority, u64, u64);

/// Those who wait.
pub(crate) type FairQueue<T> = BTreeMap<QueueKey, T>;

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requester {
    client: u64,
    weight: u32,
    pub(crate) priority: Priority,
}

impl Requester {
    pub(crate) fn of(claim: &Claim) -> Self {
        Self { client: claim.client, weight: claim.weight, priority: claim.priority }
    }
}

/// Stamps requests, and chooses the next one.
#[derive(Clone, Debug, Default)]
pub(crate) struct FairClock {
    now: u64,
    /// When the last request of each client ends, in virtual time.
    ends: HashMap<u64, u64>,
    /// The virtual time at which `ends` was last found full of clients that are ahead of it.
    full_at: Option<u64>,
    overtakes: u32,
}

impl FairClock {
    /// The key of a client's next request, the `arrival`th of all.
    pub(crate) fn key(&mut self, of: &Requester, arrival: u64) -> QueueKey {
        // Only after time has passed: a sweep with every request would cost 4,096 steps each.
        if self.ends.len() >= CLIENTS_MAX && self.full_at != Some(self.now) {
            let now = self.now;
            self.ends.retain(|_, end| *end > now);
            self.full_at = (self.ends.len() >= CLIENTS_MAX).then_some(now);
        }
        let known = self.ends.get(&of.client).copied();
        let start = known.map_or(self.now, |end| end.max(self.now));
        if known.is_some() || self.ends.len() < CLIENTS_MAX {
            self.ends.insert(of.client, start + UNIT / u64::from(of.weight.max(1)).min(UNIT));
        }
        (of.priority, start, arrival)
    }

    /// The key to serve next in `queues`, with the index of its queue, of those that `fits`
    /// accepts.
    pub(crate) fn choose<T>(
        &self,
        queues: &[(usize, &FairQueue<T>)],
        fits: impl Fn(&T) -> bool,
    ) -> Option<(usize, QueueKey)> {
        if self.overtakes < OVERTAKES_MAX {
            // Keys are in the order of their priorities: the first is of the highest that waits.
            let first = queues.iter().filter_map(|(index, queue)| {
                let (key, _) = queue.iter().find(|(_, value)| fits(value))?;
                Some((*index, *key))
            });
            return first.min_by_key(|(_, key)| *key);
        }
        let first = |priority| {
            let keys = queues.iter().filter_map(|(index, queue)| {
                let mut of_priority =
                    queue.range((priority, 0, 0)..=(priority, u64::MAX, u64::MAX));
                of_priority.find(|(_, value)| fits(value)).map(|(key, _)| (*index, *key))
            });
            keys.min_by_key(|(_, key)| *key)
        };
        [Priority::Low, Priority::Normal, Priority::High].into_iter().find_map(first)
    }

    /// Forgets all clients. Call it when nobody waits any more: then nobody is ahead of anybody,
    /// and there is a clock per bucket, so it must not keep the room that many clients took.
    pub(crate) fn reset(&mut self) {
        let mut ends = std::mem::take(&mut self.ends);
        ends.clear();
        ends.shrink_to(CLIENTS_KEPT);
        *self = Self { ends, ..Self::default() };
    }

    /// The request at `key` goes; `lower` says whether one of lower priority waits on.
    pub(crate) fn served(&mut self, key: QueueKey, lower: bool) {
        self.now = self.now.max(key.1);
        self.overtakes = if lower { self.overtakes.saturating_add(1) } else { 0 };
    }
}

/// Whether one of lower priority than `than` waits.
pub(crate) fn has_below<T>(queue: &FairQueue<T>, than: Priority) -> bool {
    queue.last_key_value().is_some_and(|((priority, ..), _)| *priority > than)
}

/// How many have that priority or a higher one.
pub(crate) fn count_to<T>(queue: &FairQueue<T>, priority: Priority) -> usize {
    queue.range(..=(priority, u64::MAX, u64::MAX)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Route;

    fn claim() -> Claim {
        Claim::new(Route::new("GET", "/", ""))
    }

    /// Queues all, serves all, and tells the order in which they went.
    fn order(claims: &[Claim]) -> Vec<usize> {
        let (mut clock, mut queue) = (FairClock::default(), FairQueue::new());
        for (arrival, claim) in claims.iter().enumerate() {
            queue.insert(clock.key(&Requester::of(claim), arrival as u64), arrival);
        }
        let mut went = Vec::new();
        while let Some((_, key)) = clock.choose(&[(0, &queue)], |_| true) {
            went.extend(queue.remove(&key));
            clock.served(key, has_below(&queue, key.0));
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
        assert_eq!(order(&claims), [0, 3, 4, 1, 5, 6, 2]);
    }

    #[test]
    fn a_higher_priority_overtakes_fifteen_times_in_a_row_and_no_more() {
        let [low, high] = [Priority::Low, Priority::High].map(|rank| claim().priority(rank));
        assert_eq!(order(&[low.clone(), claim(), high.clone()]), [2, 1, 0]);
        let mut claims = vec![low];
        claims.resize(41, high);
        let went = order(&claims);
        assert_eq!(went.iter().position(|index| *index == 0), Some(OVERTAKES_MAX as usize));
    }

    #[test]
    fn a_hundred_thousand_client_names_take_bounded_memory() {
        let mut clock = FairClock::default();
        for client in 0..100_000 {
            let key = clock.key(&Requester::of(&claim().client(client)), client);
            assert!(clock.ends.len() <= CLIENTS_MAX);
            // Time passes now and then, so that sweeps happen too.
            clock.served(key, false);
        }
        let mut standing = FairClock::default();
        for client in 0..100_000 {
            standing.key(&Requester::of(&claim().client(client)), client);
        }
        assert_eq!(standing.ends.len(), CLIENTS_MAX);
    }
}
