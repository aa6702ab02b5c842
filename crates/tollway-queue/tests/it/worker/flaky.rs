//! A backend in memory that fails and wakes as a server may.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::Instant;
use tollway_core::Timestamp;
use tollway_queue::{
    Backend, Call, Command, Embedded, Error, ErrorKind, Operation, QueueName, Reply, Wake,
};

/// A backend in memory that stores no outcome before `until`, and tells who waits for the second
/// time to come at `told`.
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

impl Backend for Flaky {
    fn run(&self, command: Command, now: Timestamp) -> Call<Reply> {
        let settles = matches!(command, Command::Queue(_, Operation::Settle(_)));
        if settles && Instant::now() < self.until {
            return Call::ready(Err(Error::new(ErrorKind::Unavailable, "the store is away")));
        }
        self.queues.run(command, now)
    }

    fn changed(&self, queue: &QueueName, seen: u64) -> Call<Wake> {
        match self.told {
            Some(told) if self.waits.fetch_add(1, Ordering::SeqCst) == 1 => {
                Call::ready(Ok(Wake { next: Some(told), seen: seen + 1 }))
            }
            _ => self.queues.changed(queue, seen),
        }
    }
}
