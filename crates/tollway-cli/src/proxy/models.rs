//! The budgets of language models: a file of rules, and the store that keeps what is left.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use tollway_core::{Store, StoreLimiter};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_proxy::{ModelBudgets, ModelRules};
use tollway_redis::RedisStore;

use crate::misuse::OrMisuse as _;

/// Owners whose budgets are remembered in memory.
const OWNERS_MAX: usize = 100_000;

/// The budgets that a file describes, in the fleet's store or in memory.
pub(super) async fn open(
    path: Option<&Path>,
    store: &str,
    start_without: bool,
) -> Result<Option<ModelBudgets>> {
    let Some(path) = path else { return Ok(None) };
    let place = || format!("--budgets {}", path.display());
    let text = std::fs::read_to_string(path).with_context(place)?;
    let rules = ModelRules::parse(&text).with_context(place).or_misuse()?;
    let store: Arc<dyn Store> = if store == "memory" {
        Arc::new(MemoryStore::new(Capacity::keys(OWNERS_MAX)))
    } else {
        let settings = tollway_redis::Settings { start_without, ..Default::default() };
        // The URL may hold a password: it is not repeated.
        Arc::new(RedisStore::connect(store, settings).await.context("--store")?)
    };
    let limiter = StoreLimiter::new(rules.policies(), store, Arc::new(SystemClock::new()));
    Ok(Some(ModelBudgets::new(rules, limiter)))
}
