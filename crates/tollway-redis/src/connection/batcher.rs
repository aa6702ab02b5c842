//! Calls that find a server busy go together in the next round trip.
//!
//! ```text
//!   callers ──> queue ──> [ everything that waits ] ──> one round trip ──> server
//!                 ^
//!                 └── what is asked meanwhile waits here
//! ```
//!
//! A call that finds the server idle is sent at once and alone. While as many round trips as
//! allowed are under way, others gather; the next round trip takes them all. So latency is never
//! traded for throughput: batches grow only out of time that would be spent waiting anyway.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// How much is under way at once, and how much waits.
#[derive(Clone, Copy, Debug)]
pub struct BatchBounds {
    /// The most calls that wait; more are given back to whoever asks.
    pub waiting_max: usize,
    /// The most calls in one round trip.
    pub calls_max: usize,
    /// About the most bytes in one round trip: the call that exceeds them is its last.
    pub bytes_max: usize,
    /// The most round trips under way while they end soon.
    pub in_flight_max: usize,
    /// After this long a round trip begins although as many as allowed are under way; `None` if
    /// what waits may wait for one to end, however long that takes.
    pub late_after: Option<Duration>,
    /// How often other tasks run before a round trip is put together: whoever was just answered may
    /// ask again at once and go with those that wait. Where nobody does, three of them take about a
    /// microsecond.
    pub yields: usize,
}

impl BatchBounds {
    /// For callers who give up after `timeout`.
    ///
    /// What waits leaves after a fiftieth of that time at the latest. Were it a whole round trip, a
    /// server further away than half the timeout would answer into the void, and charge for it.
    pub(crate) fn within(timeout: Duration, calls_max: usize, settings: &crate::Settings) -> Self {
        Self {
            waiting_max: settings.queue_max,
            calls_max,
            bytes_max: usize::MAX,
            in_flight_max: settings.in_flight_max,
            late_after: Some(timeout / 50),
            yields: 0,
        }
    }
}

/// The most round trips beyond `in_flight_max`. One begins per `late_after`, and each is over when
/// the timeout is, but for those that are sent again with the source of their script.
const LATE_MAX: usize = 64;

/// Where calls wait for a round trip.
#[derive(Debug)]
pub struct Batcher<C> {
    calls: mpsc::Sender<C>,
}

/// A call that was not taken.
#[derive(Debug)]
pub enum Rejected<C> {
    /// Too many wait.
    Full(C),
    /// Nobody makes round trips any more.
    Closed(C),
}

impl<C: Send + 'static> Batcher<C> {
    /// Starts to gather. `size` is the bytes of a call. `run` makes the round trip for what was
    /// gathered, or answers `None` once nobody is left to make it for.
    pub fn start<F>(
        runtime: &Handle,
        bounds: BatchBounds,
        size: impl Fn(&C) -> usize + Send + 'static,
        run: impl Fn(Vec<C>) -> Option<F> + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (calls, waiting) = mpsc::channel(bounds.waiting_max.max(1));
        runtime.spawn(gather(bounds, waiting, size, run));
        Self { calls }
    }

    /// Hands a call over.
    ///
    /// # Errors
    ///
    /// The call, if it was not taken.
    pub fn submit(&self, call: C) -> Result<(), Rejected<C>> {
        self.calls.try_send(call).map_err(|error| match error {
            mpsc::error::TrySendError::Full(call) => Rejected::Full(call),
            mpsc::error::TrySendError::Closed(call) => Rejected::Closed(call),
        })
    }
}

async fn gather<C, F>(
    bounds: BatchBounds,
    mut waiting: mpsc::Receiver<C>,
    size: impl Fn(&C) -> usize,
    run: impl Fn(Vec<C>) -> Option<F>,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let in_time = Arc::new(Semaphore::new(bounds.in_flight_max.max(1)));
    let late = Arc::new(Semaphore::new(LATE_MAX));
    while let Some(first) = waiting.recv().await {
        let permit = begin(&in_time, &late, bounds.late_after).await;
        for _ in 0..bounds.yields {
            tokio::task::yield_now().await;
        }
        let mut bytes = size(&first);
        let mut calls = vec![first];
        while calls.len() < bounds.calls_max
            && bytes < bounds.bytes_max
            && let Ok(call) = waiting.try_recv()
        {
            bytes += size(&call);
            calls.push(call);
        }
        let Some(round_trip) = run(calls) else { return };
        tokio::spawn(async move {
            round_trip.await;
            drop(permit);
        });
    }
}

/// Waits until a round trip has ended, or for so long at most while there are not too many.
async fn begin(
    in_time: &Arc<Semaphore>,
    late: &Arc<Semaphore>,
    late_after: Option<Duration>,
) -> Option<OwnedSemaphorePermit> {
    if let Ok(permit) = Arc::clone(in_time).try_acquire_owned() {
        return Some(permit);
    }
    let ended = Arc::clone(in_time).acquire_owned();
    let Some(wait) = late_after else { return ended.await.ok() };
    let overdue = async {
        tokio::time::sleep(wait).await;
        Arc::clone(late).acquire_owned().await
    };
    tokio::select! {
        biased;
        permit = ended => permit.ok(),
        permit = overdue => permit.ok(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const BOUNDS: BatchBounds = BatchBounds {
        waiting_max: 1_024,
        calls_max: 256,
        bytes_max: usize::MAX,
        in_flight_max: 2,
        late_after: None,
        yields: 0,
    };

    /// Round trips of `round_trip`, asked for every 3 ms; how long each caller waited.
    async fn waits(round_trip: Duration, timeout: Duration) -> Vec<Duration> {
        let (ended, mut ends) = mpsc::unbounded_channel();
        let run = move |calls: Vec<Instant>| {
            let ended = ended.clone();
            Some(async move {
                tokio::time::sleep(round_trip).await;
                calls.into_iter().for_each(|asked| ended.send(asked.elapsed()).unwrap());
            })
        };
        let bounds = BatchBounds::within(timeout, 256, &crate::Settings::default());
        let batcher = Batcher::start(&Handle::current(), bounds, |_| 0, run);
        for _ in 0..500 {
            batcher.submit(Instant::now()).unwrap();
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        let mut waits = Vec::new();
        while waits.len() < 500 {
            waits.push(ends.recv().await.unwrap());
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

    /// The sizes of the round trips for calls of these bytes that wait together.
    async fn round_trips(bounds: BatchBounds, calls: &[usize]) -> Vec<Vec<usize>> {
        let (sent, mut sends) = mpsc::unbounded_channel();
        let run = move |calls: Vec<usize>| {
            let sent = sent.clone();
            Some(async move { sent.send(calls).unwrap() })
        };
        let batcher = Batcher::start(&Handle::current(), bounds, |bytes| *bytes, run);
        calls.iter().for_each(|bytes| batcher.submit(*bytes).unwrap());
        drop(batcher);
        let mut all = Vec::new();
        while let Some(calls) = sends.recv().await {
            all.push(calls);
        }
        all
    }

    #[tokio::test]
    async fn a_round_trip_takes_everything_that_waits_up_to_its_bounds() {
        assert_eq!(round_trips(BOUNDS, &[1; 5]).await, [vec![1; 5]]);
        let few = BatchBounds { calls_max: 2, ..BOUNDS };
        assert_eq!(round_trips(few, &[1; 5]).await, [vec![1; 2], vec![1; 2], vec![1]]);
        let short = BatchBounds { bytes_max: 10, ..BOUNDS };
        assert_eq!(round_trips(short, &[4; 5]).await, [vec![4; 3], vec![4; 2]]);
    }

    #[tokio::test]
    async fn a_call_that_finds_no_room_is_given_back() {
        let bounds = BatchBounds { waiting_max: 2, ..BOUNDS };
        let stuck = |_: Vec<u8>| Some(std::future::pending());
        let batcher = Batcher::start(&Handle::current(), bounds, |_| 0, stuck);
        assert!(batcher.submit(1).is_ok() && batcher.submit(2).is_ok());
        assert!(matches!(batcher.submit(3), Err(Rejected::Full(3))));
        let over =
            Batcher::start(&Handle::current(), bounds, |_| 0, |_| None::<std::future::Ready<()>>);
        over.submit(1).unwrap();
        tokio::task::yield_now().await;
        assert!(matches!(over.submit(2), Err(Rejected::Closed(2))));
    }
}
