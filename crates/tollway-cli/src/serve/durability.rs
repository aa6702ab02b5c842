//! Tells the operator that a shared store keeps less than its durable policies promise.

use tollway_redis::{Persistence, RedisStore};
use tollway_server::Rules;
use tracing::warn;

/// Looks once, if any policy is durable: what a server is told later is not known here.
pub(super) async fn look(store: &RedisStore, rules: &Rules) {
    let policies: Vec<&str> = rules.durable().collect();
    if policies.is_empty() {
        return;
    }
    match store.persistence().await {
        Some(Persistence::Always) => {}
        Some(weaker) => warn!(
            found = weaker.name(),
            ?policies,
            "durable policies may lose what was acknowledged when the store loses its power; \
             expected appendonly yes and appendfsync always"
        ),
        None => warn!(
            ?policies,
            "the store does not say what it keeps when its power goes; durable policies need \
             appendonly yes and appendfsync always"
        ),
    }
}
