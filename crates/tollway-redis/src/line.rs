//! One connection to one server: whether it is up, how it comes back, and who rides on it.
//!
//! **Circuit breaker.** A server that broke the connection or let a batch's time run out is *down*:
//! requests for it fail in microseconds, and a task of its own probes it with growing pauses until
//! it answers. No caller ever pays for finding out. A server that nobody asks is asked whether it is
//! there, so that an idle process knows of an outage too.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tollway_core::explained;

use crate::dial::Dial;
use crate::outage::{OutageRecord, Proof};
use crate::settings::Settings;

/// The line to one server.
pub(crate) struct Line {
    pub(crate) dial: Dial,
    pub(crate) settings: Arc<Settings>,
    pub(crate) outage: OutageRecord,
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
        let line = Arc::new(Self {
            dial,
            settings,
            outage: OutageRecord::default(),
            traffic: Traffic::default(),
            current: Mutex::default(),
            is_up: AtomicBool::new(false),
        });
        tokio::spawn(watch_idle(Arc::downgrade(&line)));
        line
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
    pub(crate) fn down(self: &Arc<Self>, number: u64, reason: &str) {
        let mut current = self.lock();
        if current.number == number && current.connection.take().is_some() {
            self.is_up.store(false, Ordering::Release);
            drop(current);
            self.probe(reason);
        }
    }

    /// Probes in the background until the server answers, which it does not for this reason.
    pub(crate) fn probe(self: &Arc<Self>, reason: &str) {
        // Whatever was answered before: from now on requests are refused.
        self.outage.failed_by(Instant::now(), reason);
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

/// How much flies at once, and how long what waits may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Flights at once while they land soon.
    pub(crate) in_flight_max: usize,
    /// Passengers of one flight.
    pub(crate) gather_max: usize,
    /// Whoever waits gives up after it, counted from the question.
    pub(crate) timeout: Duration,
}

/// The part of the timeout after which what waits is sent without waiting for a flight to land. Were
/// it a whole round trip, a server further away than half the timeout would answer into the void, and
/// charge for it.
const WAIT_PART: u32 = 50;

/// The most flights beyond `in_flight_max`; one leaves per [`WAIT_PART`] of the timeout, and each is
/// over when the timeout is, but for those that are asked again with their script.
const LATE_FLIGHTS_MAX: usize = 64;

/// Takes everything that waits and lets it fly, as the bounds say. `board` makes a flight of what was
/// taken, or `None` once nobody is left to fly for.
pub(crate) async fn drive<J, F>(
    bounds: Bounds,
    mut queue: mpsc::Receiver<J>,
    board: impl Fn(Vec<J>) -> Option<F>,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let flights = Arc::new(Semaphore::new(bounds.in_flight_max.max(1)));
    let late = Arc::new(Semaphore::new(LATE_FLIGHTS_MAX));
    while let Some(first) = queue.recv().await {
        let flight = leave(&flights, &late, bounds.timeout / WAIT_PART).await;
        let mut jobs = vec![first];
        while jobs.len() < bounds.gather_max
            && let Ok(job) = queue.try_recv()
        {
            jobs.push(job);
        }
        let Some(flying) = board(jobs) else { return };
        tokio::spawn(async move {
            flying.await;
            drop(flight);
        });
    }
}

/// Waits until a flight has landed, or for so long at most while there are not too many.
async fn leave(
    flights: &Arc<Semaphore>,
    late: &Arc<Semaphore>,
    wait: Duration,
) -> Option<OwnedSemaphorePermit> {
    if let Ok(flight) = Arc::clone(flights).try_acquire_owned() {
        return Some(flight);
    }
    let landed = Arc::clone(flights).acquire_owned();
    let overdue = async {
        tokio::time::sleep(wait).await;
        Arc::clone(late).acquire_owned().await
    };
    tokio::select! {
        biased;
        flight = landed => flight.ok(),
        flight = overdue => flight.ok(),
    }
}

/// Connects again and again, with growing pauses, until the server answers or the line is dropped.
async fn revive(line: Weak<Line>) {
    let mut pause = Duration::ZERO;
    loop {
        tokio::time::sleep(pause).await;
        let Some(line) = line.upgrade() else { return };
        let began = Instant::now();
        match line.dial.connect(&line.settings).await {
            Ok(connection) => {
                line.outage.answered(Proof::Alive);
                return line.up(connection);
            }
            Err(error) => line.outage.failed_by(began, &explained(&error)),
        }
        let longest = line.settings.backoff_max;
        pause = (pause * 2).clamp(longest / 100, longest);
    }
}

/// Asks a server that nobody asks whether it is there, until the line is dropped.
async fn watch_idle(line: Weak<Line>) {
    let mut trips = 0;
    let Some(pause) = line.upgrade().map(|line| line.settings.backoff_max) else { return };
    loop {
        tokio::time::sleep(pause.max(Duration::from_millis(10))).await;
        let Some(line) = line.upgrade() else { return };
        let seen = line.traffic.round_trips.load(Ordering::Relaxed);
        if std::mem::replace(&mut trips, seen) == seen {
            ping(&line).await;
        }
    }
}

async fn ping(line: &Arc<Line>) {
    let Some((mut connection, number)) = line.current() else { return };
    let ping = redis::cmd("PING");
    let answer = connection.send_packed_command(&ping);
    match tokio::time::timeout(line.settings.timeout, answer).await {
        // An error is an answer as well: a user may lack the right to ask.
        Ok(Ok(_)) => line.outage.answered(Proof::Alive),
        Ok(Err(error)) => line.down(number, &format!("the connection to the store broke: {error}")),
        Err(_) => line.down(number, "the store did not answer in time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Round trips of `round_trip`, asked for every 3 ms; how long each caller waited.
    async fn waits(round_trip: Duration, timeout: Duration) -> Vec<Duration> {
        let (jobs, queue) = mpsc::channel(1_024);
        let (landed, mut landings) = mpsc::unbounded_channel();
        let board = move |jobs: Vec<Instant>| {
            let landed = landed.clone();
            Some(async move {
                tokio::time::sleep(round_trip).await;
                jobs.into_iter().for_each(|asked| landed.send(asked.elapsed()).unwrap());
            })
        };
        tokio::spawn(drive(Bounds { in_flight_max: 2, gather_max: 256, timeout }, queue, board));
        for _ in 0..500 {
            jobs.send(Instant::now()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        let mut waits = Vec::new();
        while waits.len() < 500 {
            waits.push(landings.recv().await.unwrap());
        }
        waits
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_within_the_timeout_is_in_time_however_far_the_server_is() {
        let timeout = Duration::from_millis(250);
        for round_trip_ms in [1, 40, 130, 200, 240] {
            let waits = waits(Duration::from_millis(round_trip_ms), timeout).await;
            let longest = waits.iter().max().unwrap();
            assert!(*longest < timeout, "{round_trip_ms} ms: {longest:?}");
        }
    }
}
