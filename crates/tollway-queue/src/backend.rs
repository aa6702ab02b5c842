//! Where queues live: what every backend must do.

use std::sync::Arc;

use tollway_core::{Outage, Timestamp};

use crate::{
    Author, Call, Changed, Command, EndWatch, Limit, Operation, QueueName, QueueSettings, Reply,
    SharedLimits, WaitingLine,
};

/// Where queues live. Every change is stored when its call is ready, and either all of a call
/// takes effect or nothing does, unless an error says [`crate::ErrorKind::Unknown`].
///
/// A backend carries commands out; programs use the methods of [`crate::Queue`], which make them.
pub trait Backend: Send + Sync {
    /// Carries out a command whose input was checked; see [`Self::on`].
    ///
    /// `now` is the caller's clock; a backend with a clock of its own (Redis) ignores it.
    fn run(&self, command: Command, now: Timestamp) -> Call<Reply>;

    /// Waits until something may start earlier than [`crate::Leased::next`] said; gives the new
    /// time, and what to compare with from then on. A spurious answer is allowed, and one that is
    /// later than what was said (which still counts); a missed one is not.
    fn changed(&self, queue: &QueueName, seen: u64) -> Call<Wake>;

    /// The line in which everybody stands who waits in this process for jobs of `queue`: one of
    /// them asks at a time. Without a line of its own everybody asks.
    fn waiting_line(&self, queue: &QueueName) -> Arc<WaitingLine> {
        let _ = queue;
        Arc::default()
    }

    /// Where those hear of it who wait in this process for jobs of `queue` to end. Without one of
    /// its own everybody looks four times a second.
    fn end_watch(&self, queue: &QueueName) -> Arc<EndWatch> {
        let _ = queue;
        Arc::default()
    }

    /// How the place is in which queues live, as far as it is known here without asking.
    fn health(&self) -> Health {
        Health::default()
    }

    /// The outage under way of a server on which queues live, if there is one. A backend in this
    /// process has none.
    fn outage(&self) -> Option<Outage> {
        None
    }

    /// Checks the input of an operation on a queue, and runs it if that is within its bounds.
    fn on(&self, queue: &QueueName, operation: Operation, now: Timestamp) -> Call<Reply> {
        match operation.checked(now) {
            Ok(operation) => self.run(Command::Queue(queue.clone(), operation), now),
            Err(error) => Call::ready(Err(error)),
        }
    }

    /// Every queue and its settings, in order of their names.
    fn queues(&self) -> Call<Vec<(QueueName, QueueSettings)>> {
        self.run(Command::Queues, Timestamp::MIN).read()
    }

    /// Makes or changes a limit that queues share by its name, because somebody says so now.
    fn put_shared(&self, name: &QueueName, limit: Limit, now: Timestamp) -> Call<Changed> {
        self.change_shared(name, limit, Author::CALL, now)
    }

    /// Makes or changes a limit that queues share by its name, if the change is newer than what is
    /// in force; see [`Author`].
    fn change_shared(
        &self,
        name: &QueueName,
        limit: Limit,
        author: Author,
        now: Timestamp,
    ) -> Call<Changed> {
        match limit.check() {
            Ok(()) => self.run(Command::ChangeShared(name.clone(), limit, author), now).read(),
            Err(error) => Call::ready(Err(error)),
        }
    }

    /// Every limit that queues share, in order of names.
    fn shared(&self) -> Call<SharedLimits> {
        self.run(Command::Shared, Timestamp::MIN).read()
    }

    /// Forgets a limit that no queue names; whether there was one.
    ///
    /// The error is [`crate::ErrorKind::Conflict`] if a queue names it.
    fn remove_shared(&self, name: &QueueName) -> Call<bool> {
        self.run(Command::RemoveShared(name.clone()), Timestamp::MIN).read()
    }

    /// Keeps `proposed` as the secret of these queues, unless they have one; the one they have.
    /// What is signed with it is known again by every process that has these queues, and after a
    /// restart.
    fn secret(&self, proposed: [u8; 32]) -> Call<[u8; 32]> {
        self.run(Command::Secret(proposed), Timestamp::MIN).read()
    }
}

/// How the place is in which queues live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Whether the disk is full: jobs are read, leased and settled, and new ones are refused.
    pub is_full: bool,
    /// Commits that failed since the start.
    pub failed_commits: u64,
    /// Calls since the start that the server on which they live did not answer.
    pub failed_calls: u64,
}

/// The most jobs, leases or outcomes in one call.
pub const BATCH_MAX: usize = 1_000;

/// A page of jobs is full when their payloads (and reasons) have this many bytes, and ends with the
/// job that fills it: a thousand of the largest payloads would be an answer of 16 GB, which neither
/// end could hold. Enough for thousands of usual jobs, and little beside the memory of a process.
pub const PAGE_BYTES: usize = 8 << 20;

/// What a worker that waits is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// When to ask for leases; see [`crate::Leased::next`].
    pub next: Option<Timestamp>,
    /// What to compare with from now on.
    pub seen: u64,
}
