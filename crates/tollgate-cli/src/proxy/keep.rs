//! The count of invalid requests: in the fleet's store, or in memory and a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::task::JoinHandle;
use tollgate_core::sliding_window::SlidingWindow;
use tollgate_core::{Clock as _, Limiter, Policy, Quota, Store};
use tollgate_memory::{Capacity, MemoryStore, SystemClock};
use tollgate_redis::RedisStore;
use tollgate_upstream::proxy::Guard;

/// The name of the policy, part of its key in a shared store.
const POLICY: &str = "upstream-invalid";
/// How often the file is written.
const EVERY: Duration = Duration::from_secs(2);
/// The period is counted in so many parts.
const PARTS: u64 = 60;

/// Where invalid requests are counted.
pub(super) struct Kept {
    limiter: Option<Limiter>,
    file: Option<(Arc<MemoryStore>, PathBuf)>,
}

impl Kept {
    /// Counts by `quota` in the store; `off` counts nothing.
    pub(super) async fn open(store: &str, file: Option<PathBuf>, quota: &str) -> Result<Self> {
        if quota == "off" {
            return Ok(Self { limiter: None, file: None });
        }
        let quota: Quota = quota.parse().with_context(|| format!("--invalid {quota}"))?;
        let window = SlidingWindow::new(quota, PARTS).context("--invalid")?;
        let policy = Policy::new(POLICY, window).context("--invalid")?;
        let clock = Arc::new(SystemClock::new());
        if store != "memory" {
            // The URL may hold a password: it is not repeated.
            let connected = RedisStore::connect(store, tollgate_redis::Settings::default()).await;
            let store: Arc<dyn Store> = Arc::new(connected.context("--store")?);
            return Ok(Self { limiter: Some(Limiter::new([policy], store, clock)), file: None });
        }
        let capacity = Capacity::keys(1_000);
        let memory = match file.as_ref().filter(|path| path.exists()) {
            Some(path) => MemoryStore::restore(path, capacity)
                .with_context(|| format!("--state {}", path.display()))?,
            None => MemoryStore::new(capacity),
        };
        let memory = Arc::new(memory);
        let store: Arc<dyn Store> = Arc::clone(&memory) as _;
        let limiter = Limiter::new([policy], store, clock);
        Ok(Self { limiter: Some(limiter), file: file.map(|path| (memory, path)) })
    }

    /// What asks before a request is sent.
    pub(super) fn guard(&self) -> Result<Option<Guard>> {
        let Some(limiter) = &self.limiter else { return Ok(None) };
        Guard::new(limiter.clone(), POLICY).map(Some).context("no such policy")
    }

    /// Writes the file from time to time: a crash forgets seconds, not all.
    pub(super) fn keep(&self) -> JoinHandle<()> {
        let file = self.file.clone();
        tokio::spawn(async move {
            let Some((memory, path)) = file else { return };
            loop {
                tokio::time::sleep(EVERY).await;
                let (memory, path) = (Arc::clone(&memory), path.clone());
                // It waits for the disk, which requests must not.
                let _ = tokio::task::spawn_blocking(move || write(&memory, &path)).await;
            }
        })
    }

    /// Writes the file a last time.
    pub(super) fn save(&self) {
        if let Some((memory, path)) = &self.file {
            write(memory, path);
        }
    }
}

fn write(memory: &MemoryStore, path: &PathBuf) {
    if let Err(error) = memory.dump(path, SystemClock::new().now()) {
        use std::io::Write as _;
        // Whoever cannot be told either is told at the next start, by a file that is old.
        let _ = writeln!(std::io::stderr(), "cannot write {}: {error}", path.display());
    }
}
