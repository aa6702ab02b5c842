//! Queues in this process: in memory, or in a file that survives it.
//!
//! ```text
//!   command ─┬─ memory: under a lock, at once ──────────────────────────> reply
//!            └─ file:   to the one writer thread -> schedule + rows
//!                         -> one commit for all that came meanwhile ────> replies
//! ```
//!
//! Both carry out the same commands on the same [`Schedule`] (see `operations`); the file is the
//! log of truth behind it. An answer is given when what it says is stored. If a commit fails then
//! every call in it fails, and the schedule is read anew from the file: nothing is acknowledged
//! that is not stored.

#[cfg(feature = "redb")]
mod file;
mod memory;
mod operations;
mod row_store;
mod wakes;

use std::sync::{Arc, Mutex, PoisonError};

use tollway_core::Timestamp;

use crate::error::{Error, ErrorKind};
use crate::schedule::Schedule;
use crate::{
    Backend, Call, Command, EndWatch, Health, Operation, QueueName, Reply, WaitingLine, Wake,
};
use memory::MemoryRows;
use operations::Workspace;
use row_store::RowStore as _;
use wakes::{ByQueue, Wakes};

#[cfg(feature = "redb")]
pub use file::{FileOptions, Reserve};

/// Queues in this process.
///
/// ```
/// use tollway_queue::{Embedded, Group, NewJob, Outcome, Queue, QueueName, QueueSettings};
/// use std::sync::Arc;
/// # struct Clock;
/// # impl tollway_core::Clock for Clock {
/// #     fn now(&self) -> tollway_core::Timestamp { tollway_core::Timestamp::from_millis(1) }
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// # let clock = Arc::new(Clock);
///
/// let queue = Queue::new(Arc::new(Embedded::memory()), clock, QueueName::new("roles")?);
/// queue.put(QueueSettings::with_limit("slots 10/10s".parse()?)).await?;
/// queue.enqueue(NewJob::new(Group::new("guild 42")?, "add role")).await?;
/// let leased = queue.lease(1, "worker 1").await?;
/// queue.settle_one(leased.leases[0].token(), Outcome::Done { result: None }).await?;
/// # Ok::<(), tollway_queue::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Embedded {
    runner: Runner,
    wakes: Arc<Wakes>,
    ends: Arc<ByQueue<EndWatch>>,
    lines: ByQueue<WaitingLine>,
}

#[derive(Debug)]
enum Runner {
    Memory(Box<Mutex<(Schedule, MemoryRows)>>),
    #[cfg(feature = "redb")]
    File(file::Writer),
}

impl Embedded {
    /// Queues that are gone with the process.
    pub fn memory() -> Self {
        let state = (Schedule::new(), MemoryRows::default());
        let runner = Runner::Memory(Box::new(Mutex::new(state)));
        Self::with(runner, Arc::default(), Arc::default())
    }

    /// Queues in the file at `path`, which is made if need be.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or written, is in use by another process, is damaged, or is not a
    /// file of queues.
    #[cfg(feature = "redb")]
    pub fn open(path: impl Into<std::path::PathBuf>) -> Result<Self, Error> {
        Self::open_with(FileOptions::at(path))
    }

    /// Queues in a file, opened as `options` say.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    #[cfg(feature = "redb")]
    pub fn open_with(options: FileOptions) -> Result<Self, Error> {
        let (wakes, ends) = <(Arc<Wakes>, Arc<ByQueue<EndWatch>>)>::default();
        let writer = file::Writer::start(options, wakes.clone(), ends.clone())?;
        Ok(Self::with(Runner::File(writer), wakes, ends))
    }

    fn with(runner: Runner, wakes: Arc<Wakes>, ends: Arc<ByQueue<EndWatch>>) -> Self {
        Self { runner, wakes, ends, lines: ByQueue::default() }
    }
}

impl Backend for Embedded {
    fn run(&self, command: Command, now: Timestamp) -> Call<Reply> {
        match &self.runner {
            Runner::Memory(state) => {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                let (schedule, rows) = &mut *state;
                let result = Workspace { schedule, rows }.run(command, now);
                let stored = rows.store(schedule);
                self.wakes.publish(schedule.woken.drain(..));
                self.ends.tell(schedule.ended.drain(..));
                Call::ready(stored.and(result))
            }
            #[cfg(feature = "redb")]
            Runner::File(writer) => writer.submit(command, now),
        }
    }

    fn changed(&self, queue: &QueueName, seen: u64) -> Call<Wake> {
        // Listen first, look then: what happens in between is seen by either.
        let mut receiver = self.wakes.subscribe(queue, Wake { next: None, seen });
        let current = self.on(queue, Operation::Wake, Timestamp::MIN).read::<Wake>();
        let gone = format!("the queue {queue} is gone");
        Call::pending(async move {
            let current = current.await?;
            if current.seen > seen {
                return Ok(current);
            }
            let wake = receiver.wait_for(|wake| wake.seen > seen).await;
            wake.map(|wake| *wake).map_err(|_| Error::new(ErrorKind::UnknownQueue, gone))
        })
    }

    fn waiting_line(&self, queue: &QueueName) -> Arc<WaitingLine> {
        self.lines.of(queue, WaitingLine::default)
    }

    fn end_watch(&self, queue: &QueueName) -> Arc<EndWatch> {
        self.ends.of(queue, EndWatch::of_all)
    }

    fn health(&self) -> Health {
        match &self.runner {
            Runner::Memory(_) => Health::default(),
            #[cfg(feature = "redb")]
            Runner::File(writer) => writer.health(),
        }
    }
}
