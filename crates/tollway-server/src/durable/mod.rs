//! Durable counts: what was acknowledged is not lost by kill -9 or power loss of the service.
//!
//! ```text
//!   request -> DurableStore -+- charges of durable policies -> Ledger (by name, under a lock)
//!                            |       `- changes, in order -> Writer (a thread) -> file -> answer
//!                            `- the others -> MemoryStore
//! ```
//!
//! A [`MemoryStore`] keeps fingerprints of keys, and nobody can be billed by those; so keys of
//! durable policies live in a [`Ledger`] by their names, and their file is the only place where
//! they are kept: tables and a journal, which `tollway-journal` has for queues, too. A request of
//! both kinds is decided while the ledger is locked: all of its charges are taken, or none.
//!
//! **Invariants.** An allowed charge is answered after its commit. A commit that fails takes the
//! ledger with it, and the next one is read from the file: nobody is told anything on the strength
//! of what is lost. While the file cannot be written, policies answer as their `on_store_error`
//! says, and their answers are told as degraded.

mod degraded;
mod ledger;
mod rows;
mod store;
mod usage;
mod writer;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::oneshot;
use tollway_core::{ErrorKind, Policy, StoreError, Timestamp};
use tollway_journal::{Error, FileOptions, Gathering, Refused};
use tollway_memory::MemoryStore;

use ledger::{Changes, Ledger, NoRoom};
pub(crate) use usage::{PAGE_MAX, Usage, UsagePage, UsageQuery};
use writer::{Caller, Task, Writer};

/// How often a file that failed is tried again, while anybody asks.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// Counts of durable policies in a file, those of others in memory.
pub struct DurableStore {
    memory: Arc<MemoryStore>,
    shared: Arc<Shared>,
    thread: Gathering<Task>,
    random: SystemRandom,
}

/// What the thread and the callers have together.
struct Shared {
    books: Mutex<Books>,
    bytes_max: usize,
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ledger, and how its file is.
struct Books {
    /// `None` after a failure, until the file was read anew.
    ledger: Option<Ledger>,
    /// Changes of an earlier reading of the file are lost.
    generation: u64,
    failure: Option<Failure>,
    full_since: Option<Instant>,
    tried_at: Option<Instant>,
    commits: u64,
    failed_commits: u64,
    /// The policies in force, for a ledger that is read anew.
    policies: Vec<Policy>,
}

/// Why durable counts cannot be kept.
#[derive(Clone, Debug)]
struct Failure {
    kind: ErrorKind,
    reason: String,
    since: Instant,
}

impl Failure {
    fn new(kind: ErrorKind, reason: impl Into<String>) -> Self {
        Self { kind, reason: reason.into(), since: Instant::now() }
    }

    /// What an error of the file called `file` means to callers.
    fn of(wrong: &Error, file: &str) -> Self {
        let kind = match wrong.kind() {
            tollway_journal::ErrorKind::Unknown => ErrorKind::Unknown,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, wrong.told_of(file))
    }

    /// That something was decided by what is lost.
    fn lost() -> Self {
        Self::new(ErrorKind::Unavailable, "durable counts were read anew from their file")
    }

    fn stopped() -> Self {
        Self::new(ErrorKind::Unavailable, "the writer of durable counts has stopped")
    }

    fn error(&self) -> StoreError {
        StoreError::new(self.kind, self.reason.clone())
    }
}

impl From<NoRoom> for Failure {
    fn from(room: NoRoom) -> Self {
        Self::new(
            ErrorKind::Refused,
            match room {
                NoRoom::Keys => "memory_bytes has no room for more keys of durable policies",
                NoRoom::Reservations => "65536 reservations of durable policies are open",
            },
        )
    }
}

/// How the file of durable counts is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DurableHealth {
    pub(crate) keys: usize,
    pub(crate) is_full: bool,
    pub(crate) commits: u64,
    pub(crate) failed_commits: u64,
}

impl DurableStore {
    /// Counts of durable policies in the file at `path`, which is made if need be; those of others
    /// in `memory`. Keys of durable policies take at most `bytes_max` bytes.
    ///
    /// # Errors
    ///
    /// If the file is damaged, is another kind of file, is in use, or cannot be read or written;
    /// the text says which.
    pub fn open(path: &Path, memory: Arc<MemoryStore>, bytes_max: usize) -> Result<Self, String> {
        // One phase: a checksum tells which commit was whole, and each charge waits for one sync.
        Self::open_with(FileOptions::at(path).two_phase(false), memory, bytes_max)
    }

    /// As [`Self::open`], with options of the caller's.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_with(
        options: FileOptions,
        memory: Arc<MemoryStore>,
        bytes_max: usize,
    ) -> Result<Self, String> {
        let books = Books {
            ledger: None,
            generation: 0,
            failure: None,
            full_since: None,
            tried_at: None,
            commits: 0,
            failed_commits: 0,
            policies: Vec::new(),
        };
        let shared = Arc::new(Shared { books: Mutex::new(books), bytes_max });
        let writer = Writer::open(options, Arc::clone(&shared))
            .map_err(|wrong| wrong.told_of("file of durable counts"))?;
        let thread = Gathering::start("tollway-counts", writer)
            .map_err(|error| format!("there can be no thread for durable counts: {error}"))?;
        Ok(Self { memory, shared, thread, random: SystemRandom::new() })
    }

    /// The store of policies that are not durable.
    pub const fn memory(&self) -> &Arc<MemoryStore> {
        &self.memory
    }

    /// The last time that anything was decided: the clock must not start before it.
    pub fn last(&self) -> Timestamp {
        self.shared.books().ledger.as_ref().map_or(Timestamp::MIN, Ledger::last)
    }

    /// How often changes were stored, each time with one sync of the disk for all who waited.
    pub fn commits(&self) -> u64 {
        self.shared.books().commits
    }

    /// Notes which policies are in force.
    fn note_in_force(&self, policies: &[&Policy]) {
        let mut books = self.shared.books();
        let durable = policies.iter().filter(|policy| policy.is_durable());
        books.policies = durable.map(|policy| (*policy).clone()).collect();
        let Books { ledger, policies, .. } = &mut *books;
        if let Some(ledger) = ledger {
            ledger.renew(policies.iter());
        }
    }

    pub(crate) fn health(&self) -> DurableHealth {
        let books = self.shared.books();
        DurableHealth {
            keys: books.ledger.as_ref().map_or(0, Ledger::len),
            is_full: books.full_since.is_some(),
            commits: books.commits,
            failed_commits: books.failed_commits,
        }
    }

    /// A page of what keys used in their windows: what is on the disk.
    pub(crate) async fn usage(&self, query: UsageQuery) -> Result<UsagePage, StoreError> {
        let (caller, reply) = oneshot::channel();
        let now = query.now;
        {
            let mut books = self.shared.books();
            // What has expired is given back before anybody is billed for it.
            let changes = books.ledger.as_mut().map(|ledger| {
                ledger.advance(now);
                ledger.take_changes()
            });
            let asks = Caller::Asks(query, caller);
            self.hand(&mut books, changes.unwrap_or_default(), now, asks)
                .map_err(|failure| failure.error())?;
        }
        let reply = reply.await.unwrap_or_else(|_| Err(Failure::stopped()));
        reply.map_err(|failure| failure.error())
    }

    /// Hands what has changed to the thread, in the order of the lock; what it says to that.
    fn submit(&self, books: &mut Books, now: Timestamp) -> Result<Pending, Failure> {
        let changes = books.ledger.as_mut().map(Ledger::take_changes).unwrap_or_default();
        if changes.is_empty() {
            return Ok(None);
        }
        let (caller, reply) = oneshot::channel();
        self.hand(books, changes, now, Caller::Waits(caller))?;
        Ok(Some(reply))
    }

    /// As [`Self::submit`], for what nobody waits for.
    fn submit_unwatched(&self, books: &mut Books, now: Timestamp) {
        let changes = books.ledger.as_mut().map(Ledger::take_changes).unwrap_or_default();
        if !changes.is_empty() {
            // Refused, it says so to whoever asks next.
            let _ = self.hand(books, changes, now, Caller::Nobody);
        }
    }

    /// Changes that the thread does not take are lost, and what is known with them.
    fn hand(
        &self,
        books: &mut Books,
        changes: Changes,
        now: Timestamp,
        caller: Caller,
    ) -> Result<(), Failure> {
        let task = Task { generation: books.generation, changes, now, caller };
        self.thread.submit(task).map_err(|refused| {
            let failure = refusal(refused);
            books.ledger = None;
            books.generation += 1;
            books.failure = Some(failure.clone());
            failure
        })
    }

    /// The ledger, if it can be used; otherwise why not, and its file is tried again.
    fn usable<'b>(&self, books: &'b mut Books, now: Timestamp) -> Result<&'b mut Ledger, Failure> {
        if books.ledger.is_none() || books.full_since.is_some() {
            self.try_again(books, now);
        }
        self.thread.room().map_err(refusal)?;
        match &mut books.ledger {
            Some(ledger) => Ok(ledger),
            None => Err(books.failure.clone().unwrap_or_else(Failure::lost)),
        }
    }

    /// That the disk is full, if it is.
    fn check_space(books: &Books) -> Result<(), Failure> {
        let Some(since) = books.full_since else { return Ok(()) };
        let reason = "no space is left for charges of durable policies";
        Err(Failure { since, ..Failure::new(ErrorKind::Unavailable, reason) })
    }

    /// Lets the thread look at the file, at most once in a while.
    fn try_again(&self, books: &mut Books, now: Timestamp) {
        if books.tried_at.is_some_and(|at| at.elapsed() < TRY_AGAIN) {
            return;
        }
        books.tried_at = Some(Instant::now());
        let (generation, changes) = (books.generation, Changes::default());
        let _ = self.thread.submit(Task { generation, changes, now, caller: Caller::Nobody });
    }

    /// A name for a reservation that cannot be guessed.
    fn new_id(&self) -> Result<u128, Failure> {
        let mut id = [0; 16];
        let random = self.random.fill(&mut id);
        random
            .map_err(|_| Failure::new(ErrorKind::Unavailable, "no random numbers are to be had"))?;
        Ok(u128::from_le_bytes(id))
    }
}

/// What waits for a commit; `None` if there is nothing to wait for.
type Pending = Option<oneshot::Receiver<Result<(), Failure>>>;

/// Waits until changes are on the disk.
async fn stored(pending: Pending) -> Result<(), Failure> {
    match pending {
        Some(pending) => pending.await.unwrap_or_else(|_| Err(Failure::stopped())),
        None => Ok(()),
    }
}

fn refusal(refused: Refused) -> Failure {
    match refused {
        Refused::Busy => {
            Failure::new(ErrorKind::Unavailable, "65536 calls wait for durable counts already")
        }
        Refused::Stopped => Failure::stopped(),
    }
}

impl Books {
    fn set_full(&mut self, is_full: bool) {
        self.full_since = is_full.then(|| self.full_since.unwrap_or_else(Instant::now));
    }
}

impl std::fmt::Debug for DurableStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DurableStore").field("health", &self.health()).finish_non_exhaustive()
    }
}
