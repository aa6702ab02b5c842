//! The store that proxies share, as this process uses it.

use tollway_core::{Outage, Store as _};
use tollway_proxy::SharedStore;
use tollway_redis::RedisStore;
use tollway_upstream::shared::Fleet;

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
