//! Waiting out a denial instead of refusing: in line, bounded in time and in how many may wait.
//!
//! ```text
//! denied ──► worth the wait? ──► a place? ──► the end of the line ──► first: sleep, ask, pass
//!              └ no: refused       └ none:      of requests with        └ deadline: refused
//!                at once             refused    the same keys
//! ```
//!
//! Requests with the same keys under the same limits pass in the order in which they began to wait,
//! and one that comes while others wait goes behind them. Only the first of a line asks the store,
//! so a long line costs the store no more than a short one. Lines of different keys do not hold
//! each other up, even where a limit is common to both.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout_at};
use tollway_core::Verdict;

use crate::demand::Demand;
use crate::gate::{Gate, Passed, Refused};

/// The waiting room of a layer.
#[derive(Debug)]
pub(crate) struct Waiting {
    at_most: Duration,
    places: Arc<Semaphore>,
    /// A line for each demand that somebody waits for; no more of them than places.
    lines: Mutex<HashMap<Vec<u8>, Arc<KeyLock>>>,
}

/// Requests with the same keys. A fair lock: who asked first for it gets it first.
type KeyLock = tokio::sync::Mutex<()>;

impl Waiting {
    pub(crate) fn new(at_most: Duration, places: usize) -> Self {
        let places = places.min(Semaphore::MAX_PERMITS);
        Self { at_most, places: Arc::new(Semaphore::new(places)), lines: Mutex::default() }
    }

    /// Whether requests with the same keys wait already.
    pub(crate) fn has_line(&self, demand: &Demand) -> bool {
        let lines = self.lines();
        !lines.is_empty() && lines.contains_key(&demand.name())
    }

    /// Waits until the request passes, or is to be refused. `refused` is what the store said, if it
    /// was asked.
    pub(crate) async fn out(
        &self,
        gate: &Arc<Gate>,
        demand: &Demand,
        refused: Option<Refused>,
    ) -> Passed {
        // What lies beyond what the clock can say is no deadline.
        let deadline = Instant::now().checked_add(self.at_most);
        let refused = match refused {
            Some(refused) => Some(refused),
            None => gate.look(demand).await,
        };
        // A wait that would miss the deadline is not begun: the client learns now what it would
        // learn then.
        let is_hopeless = |refused: &Refused| wakes_in_time(refused, deadline).is_none();
        let place = match refused {
            Some(refused) if is_hopeless(&refused) => return Err(refused),
            refused => self.join(demand.name()).ok_or(refused),
        };
        let place = match place {
            Ok(place) => place,
            Err(Some(refused)) => return Err(refused),
            Err(None) => return Err(refused_late(gate, demand).await),
        };
        let turn = Arc::clone(&place.line).lock_owned();
        let turn = match deadline {
            Some(deadline) => timeout_at(deadline, turn).await.ok(),
            None => Some(turn.await),
        };
        match turn {
            Some(_turn) => first_in_line(gate, demand, deadline).await,
            None => Err(refused_late(gate, demand).await),
        }
    }

    /// A place at the end of the line of that name, if one is free.
    fn join(&self, name: Vec<u8>) -> Option<WaitSlot<'_>> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        let line = Arc::clone(self.lines().entry(name.clone()).or_default());
        Some(WaitSlot { waiting: self, name, line, _place: place })
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Arc<KeyLock>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request's place in a line, given back when dropped.
struct WaitSlot<'a> {
    waiting: &'a Waiting,
    name: Vec<u8>,
    line: Arc<KeyLock>,
    _place: OwnedSemaphorePermit,
}

impl Drop for WaitSlot<'_> {
    fn drop(&mut self) {
        let mut lines = self.waiting.lines();
        // Let go under the lock, as all are: of two that leave together the second sees it.
        let line = std::mem::take(&mut self.line);
        // The map's and ours: nobody else stands in it, and under the lock nobody joins.
        if Arc::strong_count(&line) <= 2 {
            lines.remove(&self.name);
        }
    }
}

/// Asks, sleeps and asks again until the request passes or its time is over.
async fn first_in_line(gate: &Arc<Gate>, demand: &Demand, deadline: Option<Instant>) -> Passed {
    loop {
        let refused = match gate.check_again(demand).await {
            Err(refused) => refused,
            passed => return passed,
        };
        match wakes_in_time(&refused, deadline) {
            Some(delay) => sleep(delay).await,
            None => return Err(refused),
        }
    }
}

/// How long to sleep until the request is worth another try; `None` if no wait would do.
fn wakes_in_time(refused: &Refused, deadline: Option<Instant>) -> Option<Duration> {
    let delay = refused.verdict.as_ref().and_then(Verdict::retry)?.after()?;
    let wakes = Instant::now().checked_add(delay)?;
    // Zero would spin where the clock of the limiter and that of the runtime differ.
    let delay = delay.max(Duration::from_millis(1));
    deadline.is_none_or(|deadline| wakes <= deadline).then_some(delay)
}

/// The refusal of a request that gave up its wait: what is true now, not what was when it came.
async fn refused_late(gate: &Arc<Gate>, demand: &Demand) -> Refused {
    match gate.look(demand).await {
        Some(refused) => refused,
        // Units there are, but they are those of the line.
        None => Refused::from(crate::Reason::Busy),
    }
}
