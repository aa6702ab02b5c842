//! One server: a queue, a connection, and the batches between them.
//!
//! ```text
//!   callers ──> queue ──> [ everything that waits ] ──> one write ──> server
//!                 ^                                        │
//!                 └── what is asked meanwhile waits here   └──> answers, one per request
//! ```
//!
//! A request that finds the server idle is sent at once and alone. While
//! [`Settings::in_flight_max`] round trips are under way, others gather; the next round trip takes
//! them all, at the latest after a fiftieth of the budget. So latency is never traded for
//! throughput: batches grow only out of time that would be spent waiting anyway.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;

use crate::address::unavailable;
use crate::dial::Dial;
use crate::job::{Job, Trouble};
use crate::line::{Bounds, Line, drive};
use crate::round_trip::fly;
use crate::settings::Settings;

/// One server.
pub(crate) struct Link {
    /// Where requests go that this server sends elsewhere.
    pub(crate) bounced: mpsc::UnboundedSender<Bounce>,
    /// Whether the server holds slots of a cluster, each of which takes a script of its own.
    pub(crate) by_slot: bool,
    line: Arc<Line>,
    jobs: mpsc::Sender<Job>,
}

/// A request that another server must answer, or this one later.
pub(crate) struct Bounce {
    pub(crate) job: Job,
    pub(crate) to: Destination,
}

/// Where to.
pub(crate) enum Destination {
    /// The slot has moved for good.
    Moved { host: String, port: u16 },
    /// The slot is moving; this once.
    Ask { host: String, port: u16 },
    /// Wherever the slot is by then.
    Later,
    /// The same, once all of the request's keys are on one side of the move.
    OnceMoved,
}

impl Link {
    /// A link that is down until [`Line::up`] or its probe brings it up.
    pub(crate) fn new(
        dial: Dial,
        settings: Arc<Settings>,
        bounced: mpsc::UnboundedSender<Bounce>,
        by_slot: bool,
    ) -> Arc<Self> {
        let (jobs, queue) = mpsc::channel(settings.queue_max.max(1));
        let bounds = Bounds {
            in_flight_max: settings.in_flight_max,
            gather_max: settings.batch_max.saturating_mul(4),
            timeout: settings.timeout,
        };
        let line = Line::new(dial, settings);
        let link = Arc::new(Self { bounced, by_slot, line, jobs });
        let weak = Arc::downgrade(&link);
        let board = move |jobs| weak.upgrade().map(|link| async move { fly(&link, jobs).await });
        tokio::spawn(drive(bounds, queue, board));
        link
    }

    /// Hands over a request. It is answered even if it cannot be sent.
    pub(crate) fn submit(&self, job: Job) {
        if !self.is_up() {
            return self.refuse(job, "the store is down; it is being probed");
        }
        match self.jobs.try_send(job) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(job)) => {
                let reason = "too many requests wait for the store";
                self.outage.failed_by(job.began, reason);
                self.refuse(job, reason);
            }
            Err(mpsc::error::TrySendError::Closed(job)) => {
                self.refuse(job, "the store is being shut down");
            }
        }
    }

    pub(crate) fn refuse(&self, job: Job, message: &str) {
        self.outage.failed(job.began);
        // It was sent before and its answer was lost: the store knows the answer, so it is worth
        // waiting for until whoever asked gives up.
        if job.manner.remember_ms.is_some() && job.hops > 0 && !job.ticket.is_abandoned() {
            if let Err(lost) = self.bounced.send(Bounce { job, to: Destination::Later }) {
                let error = Trouble::store(unavailable("the store is being shut down"));
                let _ = lost.0.job.answer.send(Err(error));
            }
            return;
        }
        self.traffic.failures.fetch_add(1, Ordering::Relaxed);
        // Nobody waits any more if this fails.
        let _ = job.answer.send(Err(Trouble::store(unavailable(message))));
    }
}

impl Deref for Link {
    type Target = Arc<Line>;

    fn deref(&self) -> &Arc<Line> {
        &self.line
    }
}
