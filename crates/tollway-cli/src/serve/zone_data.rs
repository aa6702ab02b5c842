//! Tells the operator that a process of the fleet has other data for a time zone than this one.

use std::time::Duration;

use tollway_redis::RedisStore;
use tracing::warn;

/// How often the store is asked what it has seen, which costs no call.
const EVERY: Duration = Duration::from_secs(60);

/// Looks until the process ends.
pub(super) fn watch(store: &RedisStore) {
    let store = store.clone();
    tokio::spawn(async move {
        let mut told = 0;
        loop {
            tokio::time::sleep(EVERY).await;
            let windows = store.status().windows_by_other_rules;
            if windows > told {
                warn!(
                    windows = windows - told,
                    "calendar windows end at other moments than by the time zones of this system: \
                     another process has opened them with other data, which holds until they end; \
                     update tzdata and restart the older ones"
                );
                told = windows;
            }
        }
    });
}
