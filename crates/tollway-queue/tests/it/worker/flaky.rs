//! A backend in memory that fails and wakes as a server may.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::Instant;
use tollway_core::Timestamp;
use tollway_queue::{
    Answer, Backend, Beat, Cancelled, Embedded, Enqueued, Error, ErrorKind, Group, Job, JobId,
    LeaseToken, Leased, Limit, NewJob, Outcome, Progress, QueueName, QueueSettings, Recurring,
    Settled, Stats, Wake,
};

/// A backend in memory that stores no outcome before `until`, and tells who waits for the second time
/// to come at `told`.
pub(super) struct Flaky {
    queues: Embedded,
    until: Instant,
    told: Option<Timestamp>,
    waits: AtomicUsize,
}

impl Flaky {
    pub(super) fn new(until: Instant, told: Option<Timestamp>) -> Self {
        Self { queues: Embedded::memory(), until, told, waits: AtomicUsize::new(0) }
    }
}

macro_rules! as_the_queues_do {
    ($($call:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        $(fn $call(&self, $($argument: $type),*) -> Answer<'_, $answer> {
            self.queues.$call($($argument),*)
        })*
    };
}

impl Backend for Flaky {
    fn settle(
        &self,
        queue: &QueueName,
        outcomes: Vec<(LeaseToken, Outcome)>,
        now: Timestamp,
    ) -> Answer<'_, Vec<Settled>> {
        if Instant::now() < self.until {
            return Answer::error(Error::new(ErrorKind::Unavailable, "the store is away"));
        }
        self.queues.settle(queue, outcomes, now)
    }

    fn changed(&self, queue: &QueueName, seen: u64) -> Answer<'_, Wake> {
        match self.told {
            Some(told) if self.waits.fetch_add(1, Ordering::SeqCst) == 1 => {
                Answer::Ready(Ok(Wake { next: Some(told), seen: seen + 1 }))
            }
            _ => self.queues.changed(queue, seen),
        }
    }

    as_the_queues_do! {
        put_queue(queue: &QueueName, settings: QueueSettings, now: Timestamp) -> ();
        remove_queue(queue: &QueueName, now: Timestamp) -> bool;
        queues() -> Vec<(QueueName, QueueSettings)>;
        put_shared(name: &QueueName, limit: Limit, now: Timestamp) -> ();
        enqueue(queue: &QueueName, jobs: Vec<NewJob>, now: Timestamp) -> Vec<Enqueued>;
        lease(queue: &QueueName, max: usize, worker: &str, now: Timestamp) -> Leased;
        heartbeat(queue: &QueueName, tokens: &[LeaseToken], now: Timestamp) -> Vec<Beat>;
        progress(
            queue: &QueueName, token: LeaseToken, progress: Progress, now: Timestamp
        ) -> bool;
        cancel(queue: &QueueName, id: JobId, now: Timestamp) -> Cancelled;
        job(queue: &QueueName, id: JobId, now: Timestamp) -> Option<Job>;
        peek(queue: &QueueName, group: &Group, max: usize, now: Timestamp) -> Vec<Job>;
        stats(queue: &QueueName, after: Option<&Group>, max: usize, now: Timestamp) -> Stats;
        pause(queue: &QueueName, group: Option<&Group>, paused: bool, now: Timestamp) -> ();
        set_limits(
            queue: &QueueName, group: &Group, limits: Option<Vec<Limit>>, now: Timestamp
        ) -> ();
        dead(queue: &QueueName, after: Option<JobId>, max: usize, now: Timestamp) -> Vec<Job>;
        revive(queue: &QueueName, id: JobId, now: Timestamp) -> bool;
        put_recurring(queue: &QueueName, recurring: Recurring, now: Timestamp) -> ();
        remove_recurring(queue: &QueueName, name: &str, now: Timestamp) -> bool;
        recurring(queue: &QueueName) -> Vec<Recurring>;
    }
}
