//! One connection to one server: whether it is up, how it comes back, and who rides on it.
//!
//! **Circuit breaker.** A server that broke the connection or let a batch's time run out is *down*:
//! requests for it fail in microseconds, and a task of its own probes it with growing pauses until
//! it answers. No caller ever pays for finding out.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::{Semaphore, mpsc};

use crate::dial::Dial;
use crate::outage::Outage;
use crate::settings::Settings;

/// The line to one server.
pub(crate) struct Line {
    pub(crate) dial: Dial,
    pub(crate) settings: Arc<Settings>,
    pub(crate) outage: Outage,
    pub(crate) traffic: Traffic,
    current: Mutex<Current>,
    is_up: AtomicBool,
}

/// The connection, and how many there were before it: a batch that failed on an earlier one says
/// nothing about this one.
#[derive(Default)]
struct Current {
    connection: Option<MultiplexedConnection>,
    number: u64,
}

/// What went over one line.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) requests: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) round_trips: AtomicU64,
    pub(crate) failures: AtomicU64,
}

impl Traffic {
    /// Notes a round trip that carried so many requests in so many commands.
    pub(crate) fn sent(&self, requests: usize, commands: usize) {
        self.requests.fetch_add(requests as u64, Ordering::Relaxed);
        self.commands.fetch_add(commands as u64, Ordering::Relaxed);
        self.round_trips.fetch_add(1, Ordering::Relaxed);
    }
}

impl Line {
    /// A line that is down until [`Self::up`] or its probe brings it up.
    pub(crate) fn new(dial: Dial, settings: Arc<Settings>) -> Arc<Self> {
        Arc::new(Self {
            dial,
            settings,
            outage: Outage::default(),
            traffic: Traffic::default(),
            current: Mutex::default(),
            is_up: AtomicBool::new(false),
        })
    }

    pub(crate) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    /// Starts to use a connection.
    pub(crate) fn up(&self, connection: MultiplexedConnection) {
        let mut current = self.lock();
        current.number += 1;
        current.connection = Some(connection);
        self.is_up.store(true, Ordering::Release);
    }

    /// Stops using the connection of that number, and probes until there is another.
    pub(crate) fn down(self: &Arc<Self>, number: u64) {
        let mut current = self.lock();
        if current.number == number && current.connection.take().is_some() {
            self.is_up.store(false, Ordering::Release);
            drop(current);
            self.probe();
        }
    }

    /// Probes in the background until the server answers.
    pub(crate) fn probe(self: &Arc<Self>) {
        tokio::spawn(revive(Arc::downgrade(self)));
    }

    /// The connection and its number, if there is one.
    pub(crate) fn current(&self) -> Option<(MultiplexedConnection, u64)> {
        let current = self.lock();
        current.connection.clone().map(|connection| (connection, current.number))
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes everything that waits and lets it fly, `in_flight_max` flights of at most `gather_max` at
/// once. `board` makes a flight of what was taken, or `None` once nobody is left to fly for.
pub(crate) async fn drive<J, F>(
    (in_flight_max, gather_max): (usize, usize),
    mut queue: mpsc::Receiver<J>,
    board: impl Fn(Vec<J>) -> Option<F>,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let flights = Arc::new(Semaphore::new(in_flight_max.max(1)));
    loop {
        let Ok(flight) = Arc::clone(&flights).acquire_owned().await else { return };
        let mut jobs = Vec::new();
        if queue.recv_many(&mut jobs, gather_max.max(1)).await == 0 {
            return;
        }
        let Some(flying) = board(jobs) else { return };
        tokio::spawn(async move {
            flying.await;
            drop(flight);
        });
    }
}

/// Connects again and again, with growing pauses, until the server answers or the line is dropped.
async fn revive(line: Weak<Line>) {
    let mut pause = Duration::ZERO;
    loop {
        tokio::time::sleep(pause).await;
        let Some(line) = line.upgrade() else { return };
        if let Ok(connection) = line.dial.connect(&line.settings).await {
            return line.up(connection);
        }
        let longest = line.settings.backoff_max;
        pause = (pause * 2).clamp(longest / 100, longest);
    }
}
