//! A job: what is enqueued, what a worker is given, and what becomes of it.

use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use tollway_core::{Timestamp, named_enum};

use crate::error::{Error, ErrorKind};
use crate::past_attempt::{PastAttempt, cut_text};
use crate::{Group, JobId};

/// A job to be enqueued.
///
/// ```
/// use std::time::Duration;
/// use tollway_queue::{Group, NewJob};
///
/// let job = NewJob::new(Group::new("guild 42")?, "add role")
///     .priority(1)
///     .weight(2)
///     .after(Duration::from_secs(60))
///     .key("role-42-7");
/// # Ok::<(), tollway_queue::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Whose limit it waits for.
    pub group: Group,
    /// What the worker gets; at most the queue's `payload_max` bytes.
    pub payload: Bytes,
    /// Within its group a higher one goes first; 0 unless told.
    pub priority: u8,
    /// Units it takes of every limit; 1 unless told, and as many as a limit has if that is fewer.
    pub weight: u32,
    /// When it may start.
    pub start: Start,
    /// A second job with the same key within the queue's window is the first one.
    pub key: Option<String>,
    /// How often it may fail; the queue's setting unless told.
    pub attempts_max: Option<u32>,
    /// How long it waits after a failure; the queue's setting unless told.
    pub backoff: Option<Backoff>,
    /// Until when it must start; for ever unless told. What becomes of it then is a setting of the
    /// queue: [`crate::QueueSettings::missed_deadline`]. A job that runs may go on, but is not
    /// tried again.
    pub deadline: Option<Deadline>,
}

/// Until when a job must start, or need not start any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// This long after it was enqueued.
    After(Duration),
    /// At this moment.
    At(Timestamp),
}

named_enum! {
    /// What becomes of a job that could not start before its deadline.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum MissedDeadline {
        /// It becomes a dead letter, with that for a reason.
        #[default]
        DeadLetter = "dead-letter",
        /// It is forgotten.
        Drop = "drop",
    }
}

impl FromStr for MissedDeadline {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let known = Self::ALL.into_iter().find(|it| it.name() == name);
        known.ok_or_else(|| {
            let message = format!("unknown missed_deadline {name:?}: expected dead-letter or drop");
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

/// When a job may start, its limit permitting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At once.
    #[default]
    Now,
    /// This long after it was enqueued.
    After(Duration),
    /// From this moment on.
    At(Timestamp),
}

/// How long a failed job waits before it may start again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure; doubled after every further one.
    pub first: Duration,
    /// At most this long, but for the queue's [`crate::QueueSettings::backoff_jitter`].
    pub max: Duration,
}

impl Start {
    /// The moment that is meant, `now` being the moment of the call.
    pub(crate) fn moment(self, now: Timestamp) -> Timestamp {
        match self {
            Self::Now => now,
            Self::After(delay) => now.after(delay),
            Self::At(at) => at,
        }
    }

    /// Whether it is within the bounds of every queue.
    pub(crate) fn check(self, now: Timestamp) -> Result<(), Error> {
        let delay = self.moment(now).since(now);
        if delay > NewJob::DELAY_MAX {
            let found = format_args!("a delay of {} s", delay.as_secs());
            return Err(Error::outside("start", found, "at most ten years"));
        }
        Ok(())
    }
}

impl Backoff {
    /// The same wait after every failure.
    pub const fn fixed(wait: Duration) -> Self {
        Self { first: wait, max: wait }
    }

    /// The wait after the `failures`-th failure, counted from 1.
    pub fn wait(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.first.saturating_mul(1 << doublings).min(self.max)
    }

    /// The wait after the `failures`-th failure of the job `id`, up to `jitter` percent longer: by
    /// how much follows from the job, so that jobs that failed together are tried apart, and the
    /// same history gives the same waits.
    pub(crate) fn wait_with_jitter(&self, failures: u32, id: u64, jitter: u8) -> Duration {
        let wait = self.wait(failures);
        let thousandths = (id % 1_000 * 271 + u64::from(failures % 1_000) * 617) % 1_000;
        let longer = wait.as_micros() * u128::from(jitter) * u128::from(thousandths) / 100_000;
        wait.saturating_add(Duration::from_micros(u64::try_from(longer).unwrap_or(u64::MAX)))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), max: Duration::from_secs(600) }
    }
}

impl NewJob {
    /// The most bytes of an idempotency key.
    pub const KEY_LEN_MAX: usize = 256;
    /// The heaviest job.
    pub const WEIGHT_MAX: u32 = 1_000_000;
    /// The furthest start in the future: ten years.
    pub const DELAY_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

    /// A job of `group` that may start at once.
    pub fn new(group: Group, payload: impl Into<Bytes>) -> Self {
        Self {
            group,
            payload: payload.into(),
            priority: 0,
            weight: 1,
            start: Start::Now,
            key: None,
            attempts_max: None,
            backoff: None,
            deadline: None,
        }
    }

    /// The same job with another priority.
    #[must_use]
    pub fn priority(self, priority: u8) -> Self {
        Self { priority, ..self }
    }

    /// The same job with another weight.
    #[must_use]
    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// The same job, not to start before `delay` is over.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self { start: Start::After(delay), ..self }
    }

    /// The same job, not to start before `at`.
    #[must_use]
    pub fn at(self, at: Timestamp) -> Self {
        Self { start: Start::At(at), ..self }
    }

    /// The same job, enqueued once however often it is sent.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// The same job with another bound on its failures.
    #[must_use]
    pub fn attempts_max(self, attempts_max: u32) -> Self {
        Self { attempts_max: Some(attempts_max), ..self }
    }

    /// The same job with another wait after a failure.
    #[must_use]
    pub fn backoff(self, backoff: Backoff) -> Self {
        Self { backoff: Some(backoff), ..self }
    }

    /// The same job, not to start any more once this is over.
    #[must_use]
    pub fn start_within(self, deadline: Duration) -> Self {
        Self { deadline: Some(Deadline::After(deadline)), ..self }
    }

    /// The same job, not to start any more at `deadline` or later.
    #[must_use]
    pub fn start_before(self, deadline: Timestamp) -> Self {
        Self { deadline: Some(Deadline::At(deadline)), ..self }
    }

    /// Whether the job is within the bounds of every queue.
    pub(crate) fn check(&self, now: Timestamp) -> Result<(), Error> {
        if self.weight == 0 || self.weight > Self::WEIGHT_MAX {
            return Err(Error::outside("weight", self.weight, "1 to 1000000"));
        }
        if let Some(key) = &self.key
            && (key.is_empty() || key.len() > Self::KEY_LEN_MAX)
        {
            let found = format_args!("{} bytes", key.len());
            return Err(Error::outside("idempotency key", found, "1 to 256 bytes"));
        }
        if self.attempts_max == Some(0) {
            return Err(Error::outside("attempts_max", 0, "at least 1"));
        }
        self.start.check(now)?;
        let within = match self.deadline {
            None => Duration::ZERO,
            Some(Deadline::After(within)) => within,
            Some(Deadline::At(at)) => at.since(now),
        };
        if within > Self::DELAY_MAX {
            let found = format_args!("{} s from now", within.as_secs());
            return Err(Error::outside("deadline", found, "at most ten years"));
        }
        Ok(())
    }
}

/// What became of one job that was enqueued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// The job, or the earlier one with the same key.
    pub id: JobId,
    /// Whether an earlier job had the same key, and nothing was enqueued.
    pub duplicate: bool,
    /// When it starts; see [`Estimate`]. `None` if that is not known: its group is paused.
    pub ready: Option<Estimate>,
}

/// When a job that waits is to start.
///
/// Both are exact where the time of a response is: a slot frees one window after the response to
/// the call that used it, so each further window costs one response time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// If responses take as long as they do on average.
    pub expected: Timestamp,
    /// The promise: it starts no later, as long as no response takes longer than the slowest that
    /// the queue has seen or was told to expect, a worker is there, and no job that is enqueued
    /// later goes before it.
    pub latest: Timestamp,
}

/// A job that a worker may run until the lease expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The job.
    pub id: JobId,
    /// The fencing token: which lease of the job this is, counted from 1.
    pub attempt: u32,
    /// Failures and expired leases that it was charged with so far.
    pub failures: u32,
    /// Whose limit it waited for.
    pub group: Group,
    /// What was enqueued.
    pub payload: Bytes,
    /// Its priority.
    pub priority: u8,
    /// Units that it took of every limit.
    pub weight: u32,
    /// When it was enqueued.
    pub enqueued_at: Timestamp,
    /// When the lease was granted.
    pub leased_at: Timestamp,
    /// When the job goes back to its group, unless settled or prolonged before. A lease that is
    /// prolonged lasts as long as from `leased_at` until here.
    pub expires_at: Timestamp,
}

impl Lease {
    /// What names this lease.
    pub const fn token(&self) -> LeaseToken {
        LeaseToken { id: self.id, attempt: self.attempt }
    }

    /// The job that was leased, as it is in `state`.
    #[cfg(feature = "redis")]
    pub(crate) fn into_job(self, state: JobState, past: Vec<PastAttempt>) -> Job {
        let Self { id, attempt, failures, group, payload, priority, weight, enqueued_at, .. } =
            self;
        Job { id, group, payload, priority, weight, enqueued_at, attempt, failures, past, state }
    }
}

/// What names a lease: a job and the attempt at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseToken {
    /// The job.
    pub id: JobId,
    /// The fencing token.
    pub attempt: u32,
}

/// What a worker is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    /// Jobs to run, at most as many as were asked for.
    pub leases: Vec<Lease>,
    /// When to ask again; `None` if nothing will become ready by time alone. A lease that expires
    /// counts.
    pub next: Option<Timestamp>,
    /// What [`crate::Backend::changed`] is to compare with.
    pub seen: u64,
}

/// What came of an attempt at a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done. A result is kept as long as the queue's retention says.
    Done {
        /// What to keep, if anything.
        result: Option<Bytes>,
    },
    /// It failed, and is charged with it: tried again after its backoff, or dead after the last.
    Failed {
        /// Why, in a line; cut at 1,024 bytes.
        reason: String,
        /// Whether trying again can help; if not it is dead at once.
        retry: bool,
    },
    /// The upstream refused it for its limit: the job returns to the head of its group uncharged,
    /// and the whole group waits this long. See [`crate::feedback`] to read it from headers.
    Limited {
        /// How long; at most [`Outcome::LIMITED_MAX`].
        wait: Duration,
    },
    /// The worker gives it back untried (it shuts down): to the head of its group, uncharged.
    Released,
}

impl Outcome {
    /// The longest that a group may be told to wait.
    pub const LIMITED_MAX: Duration = Duration::from_secs(86_400);
    /// The longest reason, in bytes.
    pub const REASON_LEN_MAX: usize = 1_024;

    /// Cuts a reason, and lowers a wait, that is above its bound: a worker that tells more than is
    /// kept has still done its work.
    pub(crate) fn cut(&mut self) {
        match self {
            Self::Failed { reason, .. } => cut_text(reason, Self::REASON_LEN_MAX),
            Self::Limited { wait } => *wait = (*wait).min(Self::LIMITED_MAX),
            Self::Done { .. } | Self::Released => {}
        }
    }
}

/// What became of a lease that was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is done, now or by the same token before.
    Done,
    /// It waits in its group again, to start no earlier than this.
    Waiting {
        /// The end of its backoff, or of its group's wait.
        from: Timestamp,
    },
    /// It has failed for good and is among the dead letters.
    Dead,
    /// It had been cancelled while it ran, and is gone.
    Cancelled,
    /// The lease was over: nothing was changed.
    Lost,
}

/// What a worker hears when it prolongs a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The lease lasts until then.
    Until(Timestamp),
    /// The lease lasts until then, but the job was cancelled: the worker should stop.
    Cancelled(Timestamp),
    /// The lease is over: another worker may have the job.
    Lost,
}

/// How far a running job is, as its worker says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub done: u64,
    /// Steps in all.
    pub total: u64,
}

/// What became of a job that was to be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// It waited, and is gone.
    Removed,
    /// It runs: its worker hears of it at the next heartbeat, and it is not tried again.
    Requested,
    /// There is no such job (any more).
    NotFound,
}

/// What is known about a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The job.
    pub id: JobId,
    /// Whose limit it waits for.
    pub group: Group,
    /// What was enqueued; empty for a job that is done.
    pub payload: Bytes,
    /// Its priority.
    pub priority: u8,
    /// Units it takes of every limit.
    pub weight: u32,
    /// When it was enqueued.
    pub enqueued_at: Timestamp,
    /// How often it was leased.
    pub attempt: u32,
    /// Failures and expired leases that it was charged with.
    pub failures: u32,
    /// The last attempts that did not get it done, the earliest first.
    pub past: Vec<PastAttempt>,
    /// Where it is.
    pub state: JobState,
}

/// Where a job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobState {
    /// In its group, or delayed.
    Waiting {
        /// From when on it may start as far as itself is concerned.
        due_at: Timestamp,
        /// When it starts; `None` if its group or queue is paused, or nothing in flight will end.
        ready: Option<Estimate>,
    },
    /// With a worker.
    Running {
        /// Which.
        worker: String,
        /// Since when.
        leased_at: Timestamp,
        /// Until when, unless prolonged.
        expires_at: Timestamp,
        /// How far, if the worker said so.
        progress: Option<Progress>,
        /// Whether it was cancelled meanwhile.
        cancelled: bool,
    },
    /// Done, and kept for a while.
    Done {
        /// When.
        at: Timestamp,
        /// What its worker left.
        result: Option<Bytes>,
    },
    /// Failed for good, and kept for a while.
    Dead {
        /// When.
        at: Timestamp,
        /// Why.
        reason: String,
    },
}
