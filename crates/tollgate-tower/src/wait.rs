//! Waiting out a denial instead of refusing: bounded in time and in how many may wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep};
use tollgate_core::Retry;

/// The waiting room of a layer.
#[derive(Debug)]
pub(crate) struct Waiting {
    at_most: Duration,
    places: Arc<Semaphore>,
}

impl Waiting {
    pub(crate) fn new(at_most: Duration, places: usize) -> Self {
        let places = places.min(Semaphore::MAX_PERMITS);
        Self { at_most, places: Arc::new(Semaphore::new(places)) }
    }

    /// One request's wait; its time runs from here.
    pub(crate) fn begin(&self) -> Wait {
        let deadline = Instant::now().checked_add(self.at_most);
        Wait { deadline, places: Arc::clone(&self.places), place: None }
    }
}

/// One request's place and deadline.
pub(crate) struct Wait {
    /// `None` lies beyond what the clock can say.
    deadline: Option<Instant>,
    places: Arc<Semaphore>,
    place: Option<OwnedSemaphorePermit>,
}

impl Wait {
    /// Waits until a retry is worth it; false, at once, if no wait would do.
    ///
    /// A wait that would miss the deadline is not begun: the client learns now what it would learn
    /// then. Waiters of one key wake together and the first to ask gets in; there is no queue.
    pub(crate) async fn out(&mut self, retry: Retry) -> bool {
        let Some(delay) = retry.after() else { return false };
        let wakes = Instant::now().checked_add(delay);
        let in_time = match (wakes, self.deadline) {
            (Some(wakes), Some(deadline)) => wakes <= deadline,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if !in_time || !self.take_place() {
            return false;
        }
        // Zero would spin where the clock of the limiter and that of the runtime differ.
        sleep(delay.max(Duration::from_millis(1))).await;
        true
    }

    fn take_place(&mut self) -> bool {
        if self.place.is_none() {
            self.place = Arc::clone(&self.places).try_acquire_owned().ok();
        }
        self.place.is_some()
    }
}
