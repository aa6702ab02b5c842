//! Outages of the store that proxies share, as lines on standard error.

use tollway_core::outages::OutageEvent;
use tollway_core::{Outage, Store as _};
use tollway_proxy::SharedStore;
use tollway_redis::RedisStore;
use tollway_upstream::shared::Fleet;

use super::invalid_requests::say;

/// The store as this process uses it: for budgets, and for the count of invalid requests.
pub(super) struct Shared {
    pub(super) fleet: Fleet,
    pub(super) counts: Option<RedisStore>,
}

impl SharedStore for Shared {
    fn outage(&self) -> Option<Outage> {
        let counts = self.counts.as_ref().and_then(RedisStore::outage);
        self.fleet.outage().into_iter().chain(counts).max_by_key(|outage| outage.lasted)
    }

    fn failures(&self) -> u64 {
        let counts = self.counts.as_ref().map_or(0, |store| store.status().failures);
        self.fleet.failures() + counts
    }
}

/// One line when an outage begins, one when it is over.
pub(super) fn tell(turn: &OutageEvent) {
    match turn {
        OutageEvent::Began(outage) => {
            let reason = &outage.reason;
            say(&format!("WARN the store does not answer, budgets are kept here alone: {reason}"));
        }
        OutageEvent::Ended(outage, lasted) => {
            let (seconds, unanswered) = (lasted.as_secs_f64(), outage.unanswered);
            say(&format!(
                "INFO the store answers again, after {seconds:.1} s and {unanswered} calls without \
                 an answer"
            ));
        }
    }
}
