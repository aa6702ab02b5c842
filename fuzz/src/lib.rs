//! What the targets share: a service in memory whose clock stands still.

use std::sync::Arc;

use tollway_core::{Timestamp, VirtualClock};
use tollway_memory::{Capacity, MemoryStore};
use tollway_server::config::{Config, Overrides};
use tollway_server::{Backing, Metrics, Service};

/// One policy per algorithm, named as the seeds name them, and a domain.
const RULES: &str = r#"
[[policies]]
name = "api"
quota = "5/1s"
[[policies]]
name = "window"
quota = "5/1m"
algorithm = "sliding-window"
buckets = 6
[[policies]]
name = "slots"
algorithm = "concurrency"
limit = 3
lease = "10s"
[[domains]]
domain = "edge"
[[domains.descriptors]]
key = "user"
rate_limit = { unit = "minute", requests_per_unit = 2, name = "per_user" }
"#;

/// A service with a few policies; every call makes a new one.
///
/// # Panics
///
/// If the rules do not read, which is a mistake here.
#[must_use]
pub fn service() -> Arc<Service> {
    let metrics = Metrics::default();
    let texts = [("rules.toml".to_owned(), RULES.to_owned())];
    let config = Config::from_texts(&texts, &Overrides::default(), &metrics).expect("rules read");
    let memory = Backing::Memory(Arc::new(MemoryStore::new(Capacity::keys(1_000))));
    let clock = Arc::new(VirtualClock::at(Timestamp::from_millis(1_000_000)));
    Arc::new(Service::new(config.rules, metrics, memory, clock, config.settings))
}

/// Runs a future that never waits for time or for others.
///
/// # Panics
///
/// If there is no runtime to be had.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime starts").block_on(future)
}
