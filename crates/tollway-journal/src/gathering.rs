//! Group commit: one thread that takes everything which came while it was busy.
//!
//! ```text
//!   caller 1 ─┐
//!   caller 2 ─┼─> inbox ──> [1 2 3]: one commit ──> answers
//!   caller 3 ─┘      `4 5 come meanwhile`──> [4 5]: the next
//! ```
//!
//! So a lone caller waits for one commit, and a thousand share one; there is no timer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::{fmt, io};

/// The most tasks in one commit.
const COMMIT_MAX: usize = 4_096;

/// What the thread does.
pub trait Gathered<T>: Send + 'static {
    /// Does all of them, stores what they changed, and answers.
    fn commit(&mut self, tasks: Vec<T>);

    /// Nobody will ask any more.
    fn close(&mut self);
}

/// Why a task was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// [`Gathering::WAITING_MAX`] tasks wait already.
    Busy,
    /// The thread has ended.
    Stopped,
}

/// The way to the thread, which ends when this is dropped.
pub struct Gathering<T> {
    inbox: Option<mpsc::Sender<T>>,
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Gathering<T> {
    /// The most tasks that wait; beyond it they are refused.
    pub const WAITING_MAX: usize = 65_536;

    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If there can be no more threads.
    pub fn start(name: &str, mut work: impl Gathered<T>) -> io::Result<Self> {
        let (sender, inbox) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&waiting);
        let run = move || {
            while let Ok(first) = inbox.recv() {
                let mut tasks = vec![first];
                tasks.extend(inbox.try_iter().take(COMMIT_MAX - 1));
                count.fetch_sub(tasks.len(), Ordering::Relaxed);
                work.commit(tasks);
            }
            work.close();
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { inbox: Some(sender), waiting, thread: Some(thread) })
    }

    /// Whether one more task would be taken.
    ///
    /// # Errors
    ///
    /// If too many wait.
    pub fn room(&self) -> Result<(), Refused> {
        match self.waiting.load(Ordering::Relaxed) >= Self::WAITING_MAX {
            true => Err(Refused::Busy),
            false => Ok(()),
        }
    }

    /// Hands a task to the thread. Tasks are done in the order in which they come.
    ///
    /// # Errors
    ///
    /// If too many wait, or the thread has ended.
    pub fn submit(&self, task: T) -> Result<(), Refused> {
        self.room()?;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let inbox = self.inbox.as_ref().ok_or(Refused::Stopped)?;
        inbox.send(task).map_err(|_| Refused::Stopped)
    }
}

impl<T> fmt::Debug for Gathering<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.waiting.load(Ordering::Relaxed);
        f.debug_struct("Gathering").field("waiting", &waiting).finish_non_exhaustive()
    }
}

impl<T> Drop for Gathering<T> {
    fn drop(&mut self) {
        self.inbox = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has told nobody anything that is not stored.
            drop(thread.join());
        }
    }
}
