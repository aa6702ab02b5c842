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
//! it anew and reads the schedule from it. If it failed for want of space, that takes the space
//! which was set aside (see [`Reserve`]), and calls that would add jobs are refused until there is
//! room.

mod commit;
mod load;
mod rows;
mod tables;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redb::Database;
use tokio::sync::oneshot;
use tollway_core::Timestamp;
pub use tollway_journal::{FileOptions, Reserve};
use tollway_journal::{Gathered, Gathering, Journal, Refused, Space, SpaceWords, contained};

use super::operations::Workspace;
use super::row_store::RowStore as _;
use super::wakes::{ByQueue, Wakes};
use crate::error::{Error, ErrorKind};
use crate::schedule::Schedule;
use crate::{Call, Command, EndWatch, Health, Reply};
use commit::FileRows;
use rows::failed;
use tables::QueueFile;

const WORDS: SpaceWords = SpaceWords { file: "queue file", additions: "new jobs" };

/// Opens the file and reads what is in it.
fn load_file(options: &FileOptions) -> Result<Open, Error> {
    contained(|| {
        let database = options.open()?;
        let (bytes_max, two_phase) = (options.journal_bytes_max(), options.is_two_phase());
        let journal = Journal::open(&database, bytes_max, two_phase)?;
        let schedule = load::load(&database)?;
        Ok(Open { database, journal, schedule })
    })
}

/// Who waits for the reply to a command.
type Caller = oneshot::Sender<Result<Reply, Error>>;

/// A command on its way to the writer.
struct Task {
    command: Command,
    now: Timestamp,
    caller: Caller,
}

impl Task {
    fn refuse(self, error: Error) {
        // Nobody waits any more if this fails.
        drop(self.caller.send(Err(error)));
    }
}

/// The way to the writer thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    tasks: Gathering<Task>,
    health: Arc<SharedHealth>,
}

/// How the file is, told to who asks.
#[derive(Debug, Default)]
struct SharedHealth {
    is_full: AtomicBool,
    failed_commits: AtomicU64,
}

impl Writer {
    /// Opens the file, and starts the thread that writes it.
    pub(super) fn start(
        mut options: FileOptions,
        wakes: Arc<Wakes>,
        ends: Arc<ByQueue<EndWatch>>,
    ) -> Result<Self, Error> {
        let mut space = Space::new(options.take_reserve(), WORDS);
        let open = load_file(&options).or_else(|error| {
            // A process that was killed on a full disk has left its reserve: it is there for this.
            if error.kind() != ErrorKind::NoSpace {
                return Err(error);
            }
            space.run_out(&error);
            load_file(&options)
        })?;
        space.look(true);
        let health = Arc::<SharedHealth>::default();
        let thread = Thread {
            options,
            open: Some(open),
            space,
            health: Arc::clone(&health),
            seen: 0,
            wakes,
            ends,
        };
        thread.tell_health();
        let tasks = Gathering::start("tollway-queue", thread)
            .map_err(|error| failed(redb::Error::Io(error)))?;
        Ok(Self { tasks, health })
    }

    pub(super) fn health(&self) -> Health {
        Health {
            is_full: self.health.is_full.load(Ordering::Relaxed),
            failed_commits: self.health.failed_commits.load(Ordering::Relaxed),
            failed_calls: 0,
        }
    }

    /// Hands a command to the thread.
    pub(super) fn submit(&self, command: Command, now: Timestamp) -> Call<Reply> {
        let (caller, reply) = oneshot::channel();
        let message = "65536 calls wait for the queue file already";
        match self.tasks.submit(Task { command, now, caller }) {
            Ok(()) => Call::pending(async move { reply.await.unwrap_or_else(|_| Err(stopped())) }),
            Err(Refused::Busy) => Call::ready(Err(Error::new(ErrorKind::Unavailable, message))),
            Err(Refused::Stopped) => Call::ready(Err(stopped())),
        }
    }
}

fn stopped() -> Error {
    Error::new(ErrorKind::Unavailable, "the writer of the queue file has stopped")
}

/// An open file, and what is in it.
struct Open {
    database: Database,
    journal: Journal<QueueFile>,
    schedule: Schedule,
}

struct Thread {
    options: FileOptions,
    /// `None` after a failure, until the file is opened anew.
    open: Option<Open>,
    space: Space,
    health: Arc<SharedHealth>,
    /// The last wake that was told, so that none is told twice after a failure.
    seen: u64,
    wakes: Arc<Wakes>,
    ends: Arc<ByQueue<EndWatch>>,
}

impl Gathered<Task> for Thread {
    /// Does all tasks and stores them together, or tells all of them why not.
    fn commit(&mut self, tasks: Vec<Task>) {
        self.space.look(false);
        self.tell_health();
        if let Err(error) = self.reopen() {
            return tasks.into_iter().for_each(|task| task.refuse(error.again()));
        }
        let tasks = if self.space.is_full() { without_additions(tasks) } else { tasks };
        let Some(mut open) = self.open.take() else { return };
        let mut replies = Vec::with_capacity(tasks.len());
        let mut tasks = tasks.into_iter();
        // Inside, so that a database that panics is closed as one that does.
        let outcome = contained(|| {
            let outcome = open.run(self.options.is_two_phase(), &mut tasks, &mut replies);
            let woken = std::mem::take(&mut open.schedule.woken);
            let seen = woken.iter().flat_map(|(_, wake)| wake).map(|wake| wake.seen);
            self.seen = seen.fold(self.seen, u64::max);
            let ended = std::mem::take(&mut open.schedule.ended);
            outcome.map(|()| (open, woken, ended))
        });
        match outcome {
            Ok((open, woken, ended)) => {
                self.open = Some(open);
                self.wakes.publish(woken);
                self.ends.tell(ended);
                for (caller, result) in replies {
                    drop(caller.send(result));
                }
            }
            Err(error) => {
                self.health.failed_commits.fetch_add(1, Ordering::Relaxed);
                if error.kind() == ErrorKind::NoSpace {
                    self.space.run_out(&error);
                    self.tell_health();
                }
                // Those that were not begun are told, too.
                tasks.for_each(|task| task.refuse(error.again()));
                for (caller, _) in replies {
                    drop(caller.send(Err(error.again())));
                }
            }
        }
    }

    fn close(&mut self) {
        if let Some(open) = &mut self.open {
            // Should it fail, the journal is there when the file is opened again.
            drop(open.journal.fold(&open.database, self.options.is_two_phase()));
        }
        self.space.close();
    }
}

impl Thread {
    fn tell_health(&self) {
        self.health.is_full.store(self.space.is_full(), Ordering::Relaxed);
    }

    /// Opens the file again after a failure.
    fn reopen(&mut self) -> Result<(), Error> {
        if self.open.is_none() {
            let mut open = load_file(&self.options).inspect_err(|error| {
                if error.kind() == ErrorKind::NoSpace {
                    self.space.run_out(error);
                }
            })?;
            open.schedule.seen = self.seen;
            self.open = Some(open);
        }
        Ok(())
    }
}

/// What a call is told that would add to the file.
fn no_room() -> Error {
    let message = "no space is left for new jobs; those in the queue file are served";
    Error::new(ErrorKind::NoSpace, message)
}

/// The tasks that add no jobs; the others are refused.
fn without_additions(tasks: Vec<Task>) -> Vec<Task> {
    let adds = |task: &Task| task.command.adds_jobs();
    let (refused, served): (Vec<_>, Vec<_>) = tasks.into_iter().partition(adds);
    refused.into_iter().for_each(|task| task.refuse(no_room()));
    served
}

impl Open {
    /// Does the tasks, and commits what they changed.
    fn run(
        &mut self,
        two_phase: bool,
        tasks: &mut std::vec::IntoIter<Task>,
        replies: &mut Vec<(Caller, Result<Reply, Error>)>,
    ) -> Result<(), Error> {
        let Self { database, journal, schedule } = self;
        let mut rows = FileRows::new(database, journal);
        for task in tasks {
            // Noted first: if the database panics, this caller is told of the damage as well.
            replies.push((task.caller, Err(stopped())));
            let result = Workspace { schedule, rows: &mut rows }.run(task.command, task.now);
            if let Some((_, reply)) = replies.last_mut() {
                *reply = result;
            }
            rows.store(schedule)?;
            if let Some(error) = rows.failed.take() {
                return Err(error);
            }
        }
        rows.finish(schedule);
        if !rows.written {
            return Ok(());
        }
        drop(rows);
        Ok(journal.commit(database, two_phase).map_err(tollway_journal::Error::uncertain)?)
    }
}
