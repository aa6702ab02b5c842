//! Queues in this process: in memory, or in a file that survives it.
//!
//! ```text
//!   call -> closure ─┬─ memory: under a lock, at once ─────────────────────────> answer
//!                    └─ file:   to the one writer thread -> schedule + rows
//!                                 -> one commit for all that came meanwhile ───> answers
//! ```
//!
//! Both run the same closures on the same [`Schedule`]; the file is the log of truth behind it. An
//! answer is given when what it says is stored. If a commit fails then every call in it fails, and
//! the schedule is read anew from the file: nothing is acknowledged that is not stored.

mod backend;
#[cfg(feature = "redb")]
mod file;
mod memory;
mod signals;
mod workspace;

use std::sync::{Arc, Mutex, PoisonError};

use crate::answer::Answer;
use crate::error::Error;
use crate::schedule::Schedule;
use memory::MemoryVault;
use signals::Signals;
use workspace::{RowStore, Workspace};

#[cfg(feature = "redb")]
pub use file::{FileOptions, Reserve};

/// Queues in this process.
///
/// ```
/// use tollway_queue::{Backend, Embedded, Group, NewJob, Outcome, QueueName, QueueSettings};
/// use tollway_core::Timestamp;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let (queues, name) = (Embedded::memory(), QueueName::new("roles")?);
/// let now = Timestamp::from_millis(1_000);
/// queues.put_queue(&name, QueueSettings::with_limit("slots 10/10s".parse()?), now).await?;
/// queues.enqueue(&name, vec![NewJob::new(Group::new("guild 42")?, "add role")], now).await?;
/// let leased = queues.lease(&name, 1, "worker 1", now).await?;
/// let done = Outcome::Done { result: None };
/// queues.settle_one(&name, leased.leases[0].token(), done, now).await?;
/// # Ok::<(), tollway_queue::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Embedded {
    runner: Runner,
    signals: Arc<Signals>,
}

#[derive(Debug)]
enum Runner {
    Memory(Mutex<(Schedule, MemoryVault)>),
    #[cfg(feature = "redb")]
    File(file::Writer),
}

impl Embedded {
    /// Queues that are gone with the process.
    #[must_use]
    pub fn memory() -> Self {
        let state = (Schedule::new(), MemoryVault::default());
        Self { runner: Runner::Memory(Mutex::new(state)), signals: Arc::default() }
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
        let signals = Arc::new(Signals::default());
        let writer = file::Writer::start(options, signals.clone())?;
        Ok(Self { runner: Runner::File(writer), signals })
    }

    /// Runs `operation` and answers when what it changed is stored.
    fn submit<T: Send + Unpin + 'static>(
        &self,
        operation: impl FnOnce(&mut Workspace<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Answer<'_, T> {
        self.submit_as(false, operation)
    }

    /// The same; `adds` if it adds jobs, which a full disk refuses.
    fn submit_as<T: Send + Unpin + 'static>(
        &self,
        adds: bool,
        operation: impl FnOnce(&mut Workspace<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Answer<'_, T> {
        match &self.runner {
            Runner::Memory(state) => {
                // Memory that runs out is not told in time to refuse anything.
                let _ = adds;
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                let (schedule, rows) = &mut *state;
                let result = operation(&mut Workspace { schedule, rows });
                let stored = rows.store(schedule);
                self.signals.publish(schedule.woken.drain(..));
                Answer::Ready(stored.and(result))
            }
            #[cfg(feature = "redb")]
            Runner::File(writer) => writer.submit(adds, operation),
        }
    }
}
