//! The count of invalid requests: in the fleet's store, or in memory and a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::task::JoinHandle;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Clock as _, Policy, Quota, Store, StoreLimiter, explained};
use tollway_memory::{Capacity, MemoryStore, SystemClock};
use tollway_proxy::Guard;
use tollway_redis::RedisStore;
use tracing::{info, warn};

use crate::misuse::OrMisuse as _;
use crate::snapshot::{self, Refused, Snapshot};

/// The name of the policy, part of its key in a shared store.
const POLICY: &str = "upstream-invalid";
/// How often the file is written.
const EVERY: Duration = Duration::from_secs(2);
/// The period is counted in so many parts.
const PARTS: u64 = 60;

/// Where invalid requests are counted.
pub(super) struct InvalidCounter {
    limiter: Option<StoreLimiter>,
    file: Option<File>,
    /// The fleet's store, if it is counted there.
    pub(super) store: Option<RedisStore>,
}

/// The count in memory, and the file in which it outlives the process.
#[derive(Clone)]
struct File {
    memory: Arc<MemoryStore>,
    clock: Arc<SystemClock>,
    path: PathBuf,
}

impl InvalidCounter {
    /// Counts nothing.
    pub(super) const fn off() -> Self {
        Self { limiter: None, file: None, store: None }
    }

    /// Counts in the store that proxies share; `start_without` starts although the store is away.
    pub(super) async fn in_store(quota: &str, store: &str, start_without: bool) -> Result<Self> {
        let policy = policy(quota)?;
        let settings = tollway_redis::Settings { start_without, ..Default::default() };
        // The URL may hold a password: it is not repeated.
        let store = RedisStore::connect(store, settings).await.context("--store")?;
        let shared: Arc<dyn Store> = Arc::new(store.clone());
        let limiter = StoreLimiter::new([policy], shared, Arc::new(SystemClock::new()));
        Ok(Self { limiter: Some(limiter), file: None, store: Some(store) })
    }

    /// Counts in this process and, if there is one, in a `file`; one that cannot be used is set
    /// aside unless it `is_required`.
    pub(super) fn in_memory(quota: &str, file: Option<&Path>, is_required: bool) -> Result<Self> {
        let policy = policy(quota)?;
        let capacity = Capacity::keys(1_000);
        let memory = Arc::new(match file {
            Some(path) => restored(path, is_required, capacity)?,
            None => MemoryStore::new(capacity),
        });
        let clock = Arc::new(snapshot::clock(&memory));
        let store: Arc<dyn Store> = Arc::clone(&memory) as _;
        let limiter = StoreLimiter::new([policy], store, Arc::clone(&clock) as _);
        let file = file.map(|path| File { memory, clock, path: path.to_owned() });
        Ok(Self { limiter: Some(limiter), file, store: None })
    }

    /// What asks before a request is sent.
    pub(super) fn guard(&self) -> Result<Option<Guard>> {
        let Some(limiter) = &self.limiter else { return Ok(None) };
        Guard::new(limiter.clone(), POLICY).map(Some).context("no such policy")
    }

    /// Writes the file from time to time: a crash forgets seconds, not all.
    pub(super) fn keep_file(&self) -> JoinHandle<()> {
        let file = self.file.clone();
        tokio::spawn(async move {
            let Some(file) = file else { return };
            let mut is_failing = false;
            loop {
                tokio::time::sleep(EVERY).await;
                let file = file.clone();
                // It waits for the disk, which requests must not.
                let written = tokio::task::spawn_blocking(move || file.write()).await;
                // Once for as long as it lasts, not every two seconds.
                match &written {
                    Ok(Err(error)) if !is_failing => warn!("{}", explained(&**error)),
                    Ok(Ok(())) if is_failing => info!("--state is written again"),
                    _ => {}
                }
                is_failing = !matches!(written, Ok(Ok(())));
            }
        })
    }

    /// Writes the file a last time.
    pub(super) fn save(&self) -> Result<()> {
        self.file.as_ref().map_or(Ok(()), File::write)
    }
}

impl File {
    fn write(&self) -> Result<()> {
        let written = self.memory.dump(&self.path, self.clock.now());
        written.with_context(|| format!("cannot write --state {}", self.path.display()))
    }
}

fn policy(quota: &str) -> Result<Policy> {
    let invalid = || format!("invalid --invalid {quota:?}: expected off, or for example 10000/10m");
    let quota: Quota = quota.parse().with_context(invalid).or_misuse()?;
    let window = SlidingWindow::new(quota, PARTS).with_context(invalid).or_misuse()?;
    Policy::new(POLICY, window).with_context(invalid)
}

fn restored(path: &Path, is_required: bool, capacity: Capacity) -> Result<MemoryStore> {
    let opened = Snapshot { flag: "--state", path, is_required }.open(capacity)?;
    if let Some(reason) = opened.unwritable {
        warn!("--state {} cannot be written now: {reason}", path.display());
    }
    if let Some(Refused { reason, aside }) = opened.refused {
        let (path, aside) = (path.display(), aside.display());
        warn!("--state {path} was set aside as {aside}, counting anew: {reason}");
    }
    Ok(opened.memory)
}
