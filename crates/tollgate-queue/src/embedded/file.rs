//! Queues in a file: one writer thread, one commit for everything that came meanwhile.
//!
//! The thread owns the database and the schedule. While a commit is on its way to the disk, calls
//! gather; the next commit takes them all. So a lone caller waits for one commit, and a thousand
//! share one. An answer is sent after the commit that holds it.
//!
//! Most commits add one record to a journal in the database; its rows are sorted into their tables
//! when it has grown, and when the file is opened or closed.
//!
//! If a commit fails, every call in it is told so, the database is closed, and the next batch opens
//! it anew and reads the schedule from it.

mod bytes;
mod journal;
mod load;
mod rows;
mod trouble;
mod vault;

use std::fmt;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use redb::{Builder, Database, StorageBackend};
use tokio::sync::oneshot;

use super::desk::{Desk, Vault};
use super::signals::Signals;
use crate::answer::Answer;
use crate::error::{Error, ErrorKind};
use crate::schedule::Schedule;
use journal::Journal;
use trouble::{contained, trouble, uncertain};
use vault::FileVault;

/// The most calls in one commit.
const COMMIT_MAX: usize = 4_096;
/// The most calls that wait for the writer; beyond it they are refused.
const WAITING_MAX: usize = 65_536;

/// How a file of queues is opened.
pub struct FileOptions {
    storage: Storage,
    two_phase: bool,
    cache_bytes: usize,
    journal_bytes: usize,
}

enum Storage {
    Path(PathBuf),
    Made(Box<dyn Fn() -> std::io::Result<Box<dyn StorageBackend>> + Send>),
}

impl FileOptions {
    /// The file at `path`, two-phase commits, 64 MiB of cache, a journal of 4 MiB.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            storage: Storage::Path(path.into()),
            two_phase: true,
            cache_bytes: 64 << 20,
            journal_bytes: 4 << 20,
        }
    }

    /// A storage that is made whenever the queues are opened, at first and after a failure: for
    /// storages that fail on purpose.
    pub fn on(
        make: impl Fn() -> std::io::Result<Box<dyn StorageBackend>> + Send + 'static,
    ) -> Self {
        Self { storage: Storage::Made(Box::new(make)), ..Self::at("") }
    }

    /// Whether a commit is made in two phases, with a sync of its own for the page that says which
    /// commit counts. Without, one sync suffices and a checksum tells after a crash.
    #[must_use]
    pub fn two_phase(self, two_phase: bool) -> Self {
        Self { two_phase, ..self }
    }

    /// How many bytes of the file are kept in memory.
    #[must_use]
    pub fn cache_bytes(self, cache_bytes: usize) -> Self {
        Self { cache_bytes, ..self }
    }

    /// How many bytes of changes are gathered, in the file and in memory, before they are sorted
    /// into tables. What is enqueued and done in between costs no more than its share of a commit.
    #[must_use]
    pub fn journal_bytes(self, journal_bytes: usize) -> Self {
        Self { journal_bytes, ..self }
    }

    /// Opens the file and reads what is in it.
    fn load(&self) -> Result<Open, Error> {
        contained(|| {
            let database = self.open()?;
            let journal = Journal::open(&database, self.journal_bytes, self.two_phase)?;
            let schedule = load::load(&database)?;
            Ok(Open { database, journal, schedule })
        })
    }

    fn open(&self) -> Result<Database, Error> {
        let mut builder = Builder::new();
        builder.set_cache_size(self.cache_bytes);
        let database = match &self.storage {
            Storage::Path(path) => {
                create_whole(&builder, path)?;
                builder.open(path)
            }
            Storage::Made(make) => {
                let storage = make().map_err(|error| trouble(redb::Error::Io(error)))?;
                builder.create_with_backend(Boxed(storage))
            }
        };
        database.map_err(|error| trouble(error.into()))
    }
}

/// Makes the file if there is none. It gets its name when it is whole: a process that dies while it
/// makes one leaves nothing that the next would take for a damaged file.
fn create_whole(builder: &Builder, path: &std::path::Path) -> Result<(), Error> {
    if path.exists() {
        return Ok(());
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    let io = |error| trouble(redb::Error::Io(error));
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io(error)),
        _ => {}
    }
    // Jobs are nobody else's to read.
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&unfinished);
    drop(builder.create_file(file.map_err(io)?).map_err(|error| trouble(error.into()))?);
    std::fs::rename(&unfinished, path).map_err(io)
}

impl fmt::Debug for FileOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = match &self.storage {
            Storage::Path(path) => Some(path),
            Storage::Made(_) => None,
        };
        f.debug_struct("FileOptions")
            .field("path", &path)
            .field("two_phase", &self.two_phase)
            .finish()
    }
}

/// A storage behind a pointer.
#[derive(Debug)]
struct Boxed(Box<dyn StorageBackend>);

impl StorageBackend for Boxed {
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> std::io::Result<()> {
        self.0.close()
    }
}

/// A call on its way to the writer: given a desk it does its work and says what is to be told after
/// the commit; given an error it tells that.
type Task = Box<dyn FnOnce(Result<&mut Desk<'_>, Error>) -> Option<Tell> + Send>;
/// What is told after a commit that failed with this, or succeeded.
type Tell = Box<dyn FnOnce(Option<Error>) + Send>;

/// The way to the writer thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    tasks: Option<mpsc::Sender<Task>>,
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Opens the file, and starts the thread that writes it.
    pub(super) fn start(options: FileOptions, signals: Arc<Signals>) -> Result<Self, Error> {
        let open = options.load()?;
        let (tasks, inbox) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let mut thread =
            Thread { options, open: Some(open), seen: 0, signals, inbox, waiting: waiting.clone() };
        let thread = std::thread::Builder::new()
            .name("tollgate-queue".to_owned())
            .spawn(move || thread.run())
            .map_err(|error| trouble(redb::Error::Io(error)))?;
        Ok(Self { tasks: Some(tasks), waiting, thread: Some(thread) })
    }

    pub(super) fn submit<T: Send + Unpin + 'static>(
        &self,
        operation: impl FnOnce(&mut Desk<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Answer<'_, T> {
        if self.waiting.load(Ordering::Relaxed) >= WAITING_MAX {
            let message = "65536 calls wait for the queue file already";
            return Answer::error(Error::new(ErrorKind::Unavailable, message));
        }
        let (answer, answered) = oneshot::channel();
        let task: Task = Box::new(move |desk| match desk {
            Err(error) => {
                drop(answer.send(Err(error)));
                None
            }
            Ok(desk) => {
                let result = operation(desk);
                Some(Box::new(move |failed: Option<Error>| {
                    drop(answer.send(failed.map_or(result, Err)));
                }))
            }
        });
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let sent = self.tasks.as_ref().is_some_and(|tasks| tasks.send(task).is_ok());
        if !sent {
            return Answer::error(stopped());
        }
        Answer::pending(async move { answered.await.unwrap_or_else(|_| Err(stopped())) })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has told nobody anything that is not stored.
            drop(thread.join());
        }
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Unavailable, "the writer of the queue file has stopped")
}

/// An open file, and what is in it.
struct Open {
    database: Database,
    journal: Journal,
    schedule: Schedule,
}

struct Thread {
    options: FileOptions,
    /// `None` after a failure, until the file is opened anew.
    open: Option<Open>,
    /// The last wake that was told, so that none is told twice after a failure.
    seen: u64,
    signals: Arc<Signals>,
    inbox: mpsc::Receiver<Task>,
    waiting: Arc<AtomicUsize>,
}

impl Thread {
    fn run(&mut self) {
        while let Ok(first) = self.inbox.recv() {
            let mut tasks = vec![first];
            while tasks.len() < COMMIT_MAX
                && let Ok(task) = self.inbox.try_recv()
            {
                tasks.push(task);
            }
            self.waiting.fetch_sub(tasks.len(), Ordering::Relaxed);
            self.commit(tasks);
        }
        if let Some(open) = &mut self.open {
            // Should it fail, the journal is there when the file is opened again.
            drop(open.journal.fold(&open.database, self.options.two_phase));
        }
    }

    /// Does all tasks and stores them together, or tells all of them why not.
    fn commit(&mut self, tasks: Vec<Task>) {
        if let Err(error) = self.reopen() {
            for task in tasks {
                task(Err(error.again()));
            }
            return;
        }
        let Some(mut open) = self.open.take() else { return };
        let mut tells = Vec::with_capacity(tasks.len());
        let mut tasks = tasks.into_iter();
        // Inside, so that a database that panics is closed as one that does.
        let outcome = contained(|| {
            let outcome = open.run(self.options.two_phase, &mut tasks, &mut tells);
            let woken = std::mem::take(&mut open.schedule.woken);
            self.seen = woken.iter().map(|(_, wake)| wake.seen).fold(self.seen, u64::max);
            outcome.map(|()| (open, woken))
        });
        match outcome {
            Ok((open, woken)) => {
                self.open = Some(open);
                self.signals.publish(woken);
                tells.into_iter().for_each(|tell| tell(None));
            }
            Err(error) => {
                // Those that were not begun are told, too.
                tasks.for_each(|task| drop(task(Err(error.again()))));
                tells.into_iter().for_each(|tell| tell(Some(error.again())));
            }
        }
    }

    /// Opens the file again after a failure.
    fn reopen(&mut self) -> Result<(), Error> {
        if self.open.is_none() {
            let mut open = self.options.load()?;
            open.schedule.seen = self.seen;
            self.open = Some(open);
        }
        Ok(())
    }
}

impl Open {
    /// Does the tasks, and commits what they changed.
    fn run(
        &mut self,
        two_phase: bool,
        tasks: &mut std::vec::IntoIter<Task>,
        tells: &mut Vec<Tell>,
    ) -> Result<(), Error> {
        let Self { database, journal, schedule } = self;
        let mut vault = FileVault::new(database, journal);
        for task in tasks {
            tells.extend(task(Ok(&mut Desk { schedule, vault: &mut vault })));
            vault.store(schedule)?;
            if let Some(error) = vault.failed.take() {
                return Err(error);
            }
        }
        vault.finish(schedule);
        if !vault.written {
            return Ok(());
        }
        drop(vault);
        journal.commit(database, two_phase).map_err(uncertain)
    }
}
