//! Who waits in this process for jobs of one queue to end: one of them reads, and tells the others.
//!
//! ```text
//!   backend: a job has ended ─> the one who reads: which ones? ─> those who wait for one of them
//! ```
//!
//! So the end of a job costs one call, however many wait for jobs to end. Whoever waits for a job
//! looks at it once it was told, and now and then by itself: of a job that was cancelled, or is not
//! kept, nothing can be read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::backend::BATCH_MAX;
use crate::error::Error;
use crate::{EndMark, Ended, JobId, Queue};

/// Where those who wait in this process for jobs of one queue to end hear of it.
///
/// A backend says with [`Self::tell`] that jobs have ended.
#[derive(Debug)]
pub struct EndWatch {
    ends: watch::Sender<()>,
    /// After how long to look although nothing was told: others may end jobs, too.
    look_again: Option<Duration>,
    /// How long to wait after something was told, for more.
    gather: Duration,
    /// Up to where whoever reads has read; `None` if nobody has since the last one left.
    read: tokio::sync::Mutex<Option<EndMark>>,
    waiting: Mutex<HashMap<JobId, watch::Sender<()>>>,
}

impl EndWatch {
    /// Of a backend that tells of every job that ends.
    pub fn of_all() -> Self {
        Self {
            ends: watch::Sender::new(()),
            look_again: None,
            gather: Duration::ZERO,
            read: tokio::sync::Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    /// Of a backend on which other processes end jobs, too: it is looked at every `look_again`, and
    /// `gather` after this process has ended some.
    pub fn shared(look_again: Duration, gather: Duration) -> Self {
        Self { look_again: Some(look_again), gather, ..Self::of_all() }
    }

    /// Says that jobs have ended.
    pub fn tell(&self) {
        self.ends.send_replace(());
    }

    pub(crate) fn listen(&self) -> Listener<'_> {
        Listener { watch: self, heard: self.ends.subscribe() }
    }

    /// One more who waits for `id`.
    pub(crate) fn enter(self: Arc<Self>, id: JobId) -> Waiter {
        let told = self.lock().entry(id).or_insert_with(|| watch::Sender::new(())).subscribe();
        Waiter { watch: self, id, told }
    }

    /// Reads which jobs end, and tells those who wait for them; whoever else does so waits. Ends
    /// with an error only.
    pub(crate) async fn read(&self, queue: &Queue) -> Error {
        let mut read = self.read.lock().await;
        loop {
            let page = match *read {
                Some(mark) => queue.wait_for_ends(mark, BATCH_MAX).await,
                None => queue.ended(None, 0).await,
            };
            let Ended { jobs, mark } = match page {
                Ok(page) => page,
                Err(error) => return error,
            };
            let waiting = self.lock();
            if read.replace(mark).is_none() {
                // What ended between their look and now, nobody would read.
                waiting.values().for_each(|told| told.send_replace(()));
            }
            for told in jobs.iter().filter_map(|job| waiting.get(&job.id)) {
                told.send_replace(());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, watch::Sender<()>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for EndWatch {
    /// Of a backend that tells nothing.
    fn default() -> Self {
        Self::shared(Duration::from_millis(250), Duration::ZERO)
    }
}

/// One who hears that jobs have ended.
pub(crate) struct Listener<'w> {
    watch: &'w EndWatch,
    heard: watch::Receiver<()>,
}

impl Listener<'_> {
    /// Waits until jobs may have ended since this listens, or has last heard of some.
    pub(crate) async fn next(&mut self) {
        let told = async {
            // The sender lives as long as this.
            let _ = self.heard.changed().await;
            tokio::time::sleep(self.watch.gather).await;
        };
        match self.watch.look_again {
            None => told.await,
            Some(look_again) => drop(tokio::time::timeout(look_again, told).await),
        }
    }
}

/// One who waits for a job to end. To drop it is to leave.
pub(crate) struct Waiter {
    pub(crate) watch: Arc<EndWatch>,
    id: JobId,
    told: watch::Receiver<()>,
}

impl Waiter {
    /// Waits until the job may have ended since this waits, or was last told.
    pub(crate) async fn told(&mut self) {
        let _ = self.told.changed().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut waiting = self.watch.lock();
        if waiting.get(&self.id).is_some_and(|told| told.receiver_count() <= 1) {
            waiting.remove(&self.id);
        }
        // Whoever reads has it locked, and forgets when it is the last.
        if waiting.is_empty()
            && let Ok(mut read) = self.watch.read.try_lock()
        {
            *read = None;
        }
    }
}
