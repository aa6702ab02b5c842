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
//! them all. So latency is never traded for throughput: batches grow only out of time that would be
//! spent waiting anyway.
//!
//! **Circuit breaker.** A server that broke the connection or let a batch's time run out is *down*:
//! requests for it fail in microseconds, and a task of its own probes it with growing pauses until
//! it answers. No caller ever pays for finding out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::{Semaphore, mpsc};

use crate::address::unavailable;
use crate::dial::Dial;
use crate::flight::fly;
use crate::job::{Job, Trouble};
use crate::outage::Outage;
use crate::settings::Settings;

/// One server.
pub(crate) struct Link {
    pub(crate) dial: Dial,
    pub(crate) settings: Arc<Settings>,
    /// Where requests go that this server sends elsewhere.
    pub(crate) bounced: mpsc::UnboundedSender<Bounce>,
    pub(crate) outage: Outage,
    pub(crate) traffic: Traffic,
    /// Whether the server holds slots of a cluster, each of which takes a script of its own.
    pub(crate) by_slot: bool,
    jobs: mpsc::Sender<Job>,
    line: Mutex<Line>,
    is_up: AtomicBool,
}

/// The connection, and how many there were before it: a batch that failed on an earlier one says
/// nothing about this one.
#[derive(Default)]
struct Line {
    connection: Option<MultiplexedConnection>,
    number: u64,
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
}

/// What went over one link.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) requests: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) round_trips: AtomicU64,
    pub(crate) failures: AtomicU64,
}

impl Link {
    /// A link that is down until [`Self::up`] or its probe brings it up.
    pub(crate) fn new(
        dial: Dial,
        settings: Arc<Settings>,
        bounced: mpsc::UnboundedSender<Bounce>,
        by_slot: bool,
    ) -> Arc<Self> {
        let (jobs, queue) = mpsc::channel(settings.queue_max.max(1));
        let link = Arc::new(Self {
            dial,
            settings,
            bounced,
            outage: Outage::default(),
            traffic: Traffic::default(),
            by_slot,
            jobs,
            line: Mutex::default(),
            is_up: AtomicBool::new(false),
        });
        tokio::spawn(drive(Arc::downgrade(&link), queue));
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
                self.refuse(job, "too many requests wait for the store");
            }
            Err(mpsc::error::TrySendError::Closed(job)) => {
                self.refuse(job, "the store is being shut down");
            }
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// Starts to use a connection.
    pub(crate) fn up(&self, connection: MultiplexedConnection) {
        let mut line = self.line();
        line.number += 1;
        line.connection = Some(connection);
        self.is_up.store(true, Ordering::Release);
    }

    /// Stops using the connection of that number, and probes until there is another.
    pub(crate) fn down(self: &Arc<Self>, number: u64) {
        let mut line = self.line();
        if line.number == number && line.connection.take().is_some() {
            self.is_up.store(false, Ordering::Release);
            drop(line);
            self.probe();
        }
    }

    /// Probes in the background until the server answers.
    pub(crate) fn probe(self: &Arc<Self>) {
        tokio::spawn(revive(Arc::downgrade(self)));
    }

    /// The connection and its number, if there is one.
    pub(crate) fn current(&self) -> Option<(MultiplexedConnection, u64)> {
        let line = self.line();
        line.connection.clone().map(|connection| (connection, line.number))
    }

    pub(crate) fn refuse(&self, job: Job, message: &str) {
        self.outage.failed();
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

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes everything that waits and sends it, a bounded number of times at once.
async fn drive(link: Weak<Link>, mut queue: mpsc::Receiver<Job>) {
    let Some((in_flight_max, gather_max)) = link.upgrade().map(|link| {
        let settings = &link.settings;
        (settings.in_flight_max.max(1), settings.batch_max.max(1).saturating_mul(4))
    }) else {
        return;
    };
    let flights = Arc::new(Semaphore::new(in_flight_max));
    loop {
        let Ok(flight) = Arc::clone(&flights).acquire_owned().await else { return };
        let mut jobs = Vec::new();
        if queue.recv_many(&mut jobs, gather_max).await == 0 {
            return;
        }
        let Some(link) = link.upgrade() else { return };
        tokio::spawn(async move {
            fly(&link, jobs).await;
            drop(flight);
        });
    }
}

/// Connects again and again, with growing pauses, until the server answers or the store is dropped.
async fn revive(link: Weak<Link>) {
    let mut pause = Duration::ZERO;
    loop {
        tokio::time::sleep(pause).await;
        let Some(link) = link.upgrade() else { return };
        if let Ok(connection) = link.dial.connect(&link.settings).await {
            return link.up(connection);
        }
        let longest = link.settings.backoff_max;
        pause = (pause * 2).clamp(longest / 100, longest);
    }
}
