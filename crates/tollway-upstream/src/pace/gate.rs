//! The queue in front of a pacer: async tasks wait their turn, first come, first served.
//!
//! ```text
//!  task ─► queue (FIFO) ─► head waits until may_send_at ─► Pass ─► request ─► Pass::complete
//!                           ▲ wakes on every answer                    └► dropped: lost
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use tokio::sync::Notify;
use tokio::time::Instant;
use tollway_core::{Cost, Timestamp};

use super::{Feedback, Law, Pacer, Sent, Settings};
use crate::profile::Profile;

/// A pacer shared by the tasks of a process. Clones stand for the same pacer: one per token.
///
/// ```no_run
/// # async fn example() {
/// use tollway_core::Cost;
/// use tollway_upstream::pace::{Feedback, Gate, Outcome, Settings};
///
/// let gate = Gate::new(Settings::default());
/// let pass = gate.enter(Cost::ONE).await;
/// // ... the request ...
/// pass.complete(&Feedback::bare(Outcome::Accepted).with_remaining(4_000.0));
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Gate {
    shared: Arc<Shared>,
    profile: Option<Arc<Profile>>,
}

#[derive(Debug)]
struct Shared {
    /// Fair: tokio's mutex admits in order of arrival.
    queue: tokio::sync::Mutex<()>,
    pacer: Mutex<Pacer>,
    news: Notify,
    start: Instant,
}

/// The right to send one request, completed by its answer.
///
/// Dropped without an answer it counts as lost: the pacer then assumes that the server may have
/// counted the request.
#[derive(Debug)]
#[must_use]
pub struct Pass {
    gate: Gate,
    sent: Option<Sent>,
}

impl Gate {
    /// A gate for one token.
    pub fn new(settings: Settings) -> Self {
        let shared = Arc::new(Shared {
            queue: tokio::sync::Mutex::new(()),
            pacer: Mutex::new(Pacer::new(settings)),
            news: Notify::new(),
            start: Instant::now(),
        });
        Self { shared, profile: None }
    }

    /// Reads answers as `profile` says; without one, by what their fields look like.
    pub fn profile(self, profile: Arc<Profile>) -> Self {
        Self { profile: Some(profile), ..self }
    }

    /// Waits until a request of `cost` may leave.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the queue; nothing was sent and nothing is counted.
    pub async fn enter(&self, cost: Cost) -> Pass {
        let _head = self.shared.queue.lock().await;
        loop {
            let news = self.shared.news.notified();
            tokio::pin!(news);
            // Listen before looking: an answer between the two must not be missed.
            news.as_mut().enable();
            match self.shared.try_enter(cost) {
                Ok(sent) => return Pass { gate: self.clone(), sent: Some(sent) },
                Err(wait) => {
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = news => {}
                    }
                }
            }
        }
    }

    /// The time between two requests of this process as of now, for display.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.shared.pacer().interval()
    }

    /// The rule in force.
    #[must_use]
    pub fn law(&self) -> Law {
        self.shared.pacer().law()
    }
}

impl Pass {
    /// Learns from the answer and lets the next in the queue look again.
    pub fn complete(mut self, feedback: &Feedback) {
        self.settle(|pacer, sent, now| pacer.on_response(sent, feedback, now));
    }

    /// Learns from the status and the header fields of a response.
    pub(super) fn complete_with(self, status: StatusCode, headers: &HeaderMap) {
        let feedback = Feedback::read(self.gate.profile.as_deref(), status, headers);
        self.complete(&feedback);
    }

    fn settle(&mut self, learn: impl FnOnce(&mut Pacer, Sent, Timestamp)) {
        if let Some(sent) = self.sent.take() {
            let shared = &self.gate.shared;
            learn(&mut shared.pacer(), sent, shared.now());
            shared.news.notify_waiters();
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.settle(Pacer::on_lost);
    }
}

impl Shared {
    /// Sends now, or how long to wait.
    fn try_enter(&self, cost: Cost) -> Result<Sent, Duration> {
        let now = self.now();
        let mut pacer = self.pacer();
        let at = pacer.may_send_at(cost, now);
        if at <= now { Ok(pacer.on_send(cost, now)) } else { Err(at.since(now)) }
    }

    /// Monotonic time, so that steps of the wall clock do not reach the pacer.
    fn now(&self) -> Timestamp {
        Timestamp::MIN.after(self.start.elapsed())
    }

    /// A task that panicked while it held the pacer left numbers, not a broken invariant.
    fn pacer(&self) -> MutexGuard<'_, Pacer> {
        self.pacer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
