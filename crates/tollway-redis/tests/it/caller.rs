//! Callers: stores, policies and charges as the tests need them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tollway_core::{Charge, Cost, Key, Policy, Store, StoreError, Timestamp, Verdict};
use tollway_redis::{RedisStore, Settings};
use tollway_testkit::servers::Server;

/// Settings with a prefix that no other test has, and time enough for a busy machine.
pub(crate) fn settings() -> Settings {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("t{}:", NEXT.fetch_add(1, Ordering::Relaxed));
    Settings { prefix, timeout: Duration::from_secs(20), ..Settings::default() }
}

pub(crate) async fn connect(url: &str, settings: &Settings) -> RedisStore {
    RedisStore::connect(url, settings.clone()).await.unwrap()
}

/// One unit of the policy for the key.
pub(crate) async fn check(
    store: &RedisStore,
    policy: &Policy,
    key: &str,
) -> Result<Verdict, StoreError> {
    store.check(&[charge(policy, key)], Timestamp::MIN).await
}

pub(crate) fn charge<'a>(policy: &'a Policy, key: &'a str) -> Charge<'a> {
    Charge::new(policy, Key::new(key).unwrap())
}

pub(crate) fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

/// The keys under a prefix that hold anything of keys; numbers of policies are kept beside them.
pub(crate) fn kept_keys(server: &Server, settings: &Settings) -> Vec<String> {
    let numbers = format!("{}2n:", settings.prefix);
    let all = server.tell(&["KEYS", &format!("{}*", settings.prefix)]);
    let all = all.lines().filter(|line| line.starts_with(&settings.prefix));
    all.filter(|line| !line.starts_with(&numbers)).map(str::to_owned).collect()
}

/// How many of `clients × requests` single charges on one key are allowed, each client with a
/// connection of its own.
pub(crate) async fn admitted(
    url: &str,
    settings: &Settings,
    policy: &Policy,
    clients: usize,
    requests: usize,
) -> u64 {
    let policy = Arc::new(policy.clone());
    let mut callers = Vec::new();
    for _ in 0..clients {
        let (store, policy) = (connect(url, settings).await, Arc::clone(&policy));
        callers.push(tokio::spawn(async move {
            let mut allowed = 0;
            for _ in 0..requests {
                let verdict = check(&store, &policy, "hot").await.unwrap();
                assert!(!verdict.is_degraded());
                allowed += u64::from(verdict.is_allowed());
            }
            allowed
        }));
    }
    let mut total = 0;
    for caller in callers {
        total += caller.await.unwrap();
    }
    total
}
