//! Resources that were missing lately: asking for them again would only count as invalid.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Entries kept; beyond them the one that ends first is forgotten.
const ENTRIES_MAX: usize = 10_000;

/// Which requests were answered 404 lately, by method and target, and until when that is believed.
///
/// A seeded 64-bit hash stands for the target: it may carry a token.
#[derive(Debug, Default)]
pub(super) struct NotFoundCache {
    seed: RandomState,
    until: Mutex<HashMap<u64, Instant>>,
}

impl NotFoundCache {
    /// How long the resource is still believed to be missing.
    pub(super) fn left(&self, method: &str, target: &str) -> Option<Duration> {
        let key = self.key(method, target);
        let mut table = self.table();
        let left = table.get(&key)?.checked_duration_since(Instant::now());
        if left.is_none() {
            table.remove(&key);
        }
        left
    }

    pub(super) fn remember(&self, method: &str, target: &str, lasting: Duration) {
        let key = self.key(method, target);
        let mut table = self.table();
        if table.len() >= ENTRIES_MAX && !table.contains_key(&key) {
            let now = Instant::now();
            table.retain(|_, until| *until > now);
            let first = table.iter().min_by_key(|(_, until)| **until).map(|(key, _)| *key);
            if let Some(first) = first.filter(|_| table.len() >= ENTRIES_MAX) {
                table.remove(&first);
            }
        }
        table.insert(key, Instant::now() + lasting);
    }

    fn key(&self, method: &str, target: &str) -> u64 {
        self.seed.hash_one((method, target))
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u64, Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn what_was_missing_is_believed_to_be_for_as_long_as_told() {
        let missing = NotFoundCache::default();
        missing.remember("POST", "/webhooks/1/t", MINUTE);
        tokio::time::advance(MINUTE / 2).await;
        assert_eq!(missing.left("POST", "/webhooks/1/t"), Some(MINUTE / 2));
        assert_eq!(missing.left("GET", "/webhooks/1/t"), None);
        tokio::time::advance(MINUTE).await;
        assert_eq!(missing.left("POST", "/webhooks/1/t"), None);
        assert!(missing.table().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn of_too_many_the_one_that_ends_first_is_forgotten() {
        let missing = NotFoundCache::default();
        missing.remember("POST", "/first", MINUTE / 2);
        for number in 0..ENTRIES_MAX {
            missing.remember("POST", &format!("/{number}"), MINUTE);
        }
        assert_eq!(missing.table().len(), ENTRIES_MAX);
        assert_eq!(missing.left("POST", "/first"), None);
        assert_eq!(missing.left("POST", "/0"), Some(MINUTE));
    }
}
