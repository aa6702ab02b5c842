//! Resources that were missing lately: asking for them again would only count as invalid.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Entries kept; beyond them the one that ends first is forgotten.
const ENTRIES_MAX: usize = 10_000;

/// Which requests were answered 404 lately, by method and path, and until when that is believed.
///
/// A seeded 64-bit hash stands for the path: it may carry a token.
#[derive(Debug, Default)]
pub(super) struct Missing {
    seed: RandomState,
    until: Mutex<HashMap<u64, Instant>>,
}

impl Missing {
    /// How long the resource is still believed to be missing.
    pub(super) fn left(&self, method: &str, path: &str) -> Option<Duration> {
        let key = self.key(method, path);
        let mut table = self.table();
        let left = table.get(&key)?.checked_duration_since(Instant::now());
        if left.is_none() {
            table.remove(&key);
        }
        left
    }

    pub(super) fn remember(&self, method: &str, path: &str, lasting: Duration) {
        let key = self.key(method, path);
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

    fn key(&self, method: &str, path: &str) -> u64 {
        self.seed.hash_one((method, path))
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u64, Instant>> {
        self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
