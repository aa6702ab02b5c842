//! What backends are asked and what they reply: one value per operation, its input checked once.
//!
//! [`crate::Queue`] and the provided methods of [`crate::Backend`] make these; the backends only
//! carry them out. So a name that is too long, or a batch that is too large, has the same outcome
//! on every backend.

use std::time::Duration;

use tollway_core::Timestamp;

use crate::backend::{BATCH_MAX, Wake};
use crate::error::{Error, ErrorKind};
use crate::settings::check_limits;
use crate::{
    Author, Beat, Cancelled, Changed, Described, EndMark, Ended, Enqueued, Group, Job, JobId,
    LeaseToken, Leased, Limit, NewJob, Outcome, Progress, QueueName, QueueSettings, Recurring,
    Settled, SharedLimits, Start, Stats,
};

/// What a backend is asked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Command {
    /// See [`crate::Backend::queues`].
    Queues,
    /// See [`crate::Backend::secret`].
    Secret([u8; 32]),
    /// See [`crate::Backend::change_shared`].
    ChangeShared(QueueName, Limit, Author),
    /// See [`crate::Backend::shared`].
    Shared,
    /// See [`crate::Backend::remove_shared`].
    RemoveShared(QueueName),
    /// An operation on the queue of this name.
    Queue(QueueName, Operation),
}

impl Command {
    /// Whether it may store new jobs, now or later: a full disk refuses such commands.
    #[cfg(feature = "redb")]
    pub(crate) const fn adds_jobs(&self) -> bool {
        matches!(self, Self::Queue(_, Operation::Enqueue(_) | Operation::PutRecurring(_)))
    }
}

/// What is done to one queue; the methods of [`crate::Queue`] say more about each.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the line above a variant explains its fields")]
#[non_exhaustive]
pub enum Operation {
    /// Makes the queue, or changes its settings while it runs.
    Change { settings: Box<QueueSettings>, author: Author },
    /// The queue's settings and their version.
    Describe,
    /// Forgets the queue and everything in it; whether there was one.
    Remove,
    /// Forgets the queue unless it holds jobs or dead letters; whether there was one.
    RemoveEmpty,
    /// Enqueues all jobs or none.
    Enqueue(Vec<NewJob>),
    /// Leases up to `max` jobs that may start now, to `worker`.
    Lease { max: usize, worker: String },
    /// What workers were last told; unlike all others it needs no time and changes nothing.
    Wake,
    /// Prolongs leases by the queue's lease time.
    Heartbeat(Vec<LeaseToken>),
    /// Says what came of leases.
    Settle(Vec<(LeaseToken, Outcome)>),
    /// Says how far a running job is; whether its lease still holds.
    Progress(LeaseToken, Progress),
    /// Has the group of a running job wait so long; whether the job's lease still holds.
    Hold(LeaseToken, Duration),
    /// Takes a job out of the queue, or asks its worker to stop.
    Cancel(JobId),
    /// Has a job that waits or is delayed start at another time.
    Reschedule { id: JobId, start: Start },
    /// What is known about a job.
    Job(JobId),
    /// A page of jobs that ended after `after`; without it only where the order ends now.
    Ended { after: Option<EndMark>, max: usize },
    /// The next jobs of a group in the order in which they start.
    Peek { group: Group, max: usize },
    /// The queue's figures and a page of groups whose names are after `after`.
    Stats { after: Option<Group>, max: usize },
    /// Pauses or resumes a group, or the whole queue.
    Pause { group: Option<Group>, paused: bool },
    /// Gives a group limits of its own, or takes them back.
    SetLimits { group: Group, limits: Option<Vec<Limit>> },
    /// A page of dead letters whose ids are after `after`.
    Dead { after: Option<JobId>, max: usize },
    /// A page of jobs that run whose ids are after `after`.
    Running { after: Option<JobId>, max: usize },
    /// Puts a dead letter back into its group; whether there was one.
    Revive(JobId),
    /// Makes a recurring job, or replaces the one of that name.
    PutRecurring(Box<Recurring>),
    /// Ends a recurring job; whether there was one.
    RemoveRecurring(String),
    /// Every recurring job, in order of names.
    Recurring,
}

impl Operation {
    /// The longest name of a worker, in bytes: a stored lease has one byte for its length.
    pub const WORKER_LEN_MAX: usize = u8::MAX as usize;

    /// The same operation, its input within bounds: what is too long or too many is refused, but
    /// for bounds on the answer, which are lowered, and for texts that are documented to be cut.
    ///
    /// Bounds that are settings of the queue are checked where these are known.
    pub(crate) fn checked(mut self, now: Timestamp) -> Result<Self, Error> {
        match &mut self {
            Self::Change { settings, .. } => settings.validate()?,
            Self::Enqueue(jobs) => {
                check_batch("jobs", jobs.len())?;
                jobs.iter().try_for_each(|job| job.check(now))?;
            }
            Self::Lease { max, worker } => {
                if worker.len() > Self::WORKER_LEN_MAX {
                    let found = format_args!("{} bytes", worker.len());
                    return Err(Error::outside("worker", found, "at most 255 bytes"));
                }
                *max = BATCH_MAX.min(*max);
            }
            Self::Peek { max, .. }
            | Self::Stats { max, .. }
            | Self::Dead { max, .. }
            | Self::Running { max, .. }
            | Self::Ended { max, .. } => *max = BATCH_MAX.min(*max),
            Self::Reschedule { start, .. } => start.check(now)?,
            Self::Heartbeat(tokens) => check_batch("leases", tokens.len())?,
            Self::Settle(outcomes) => {
                check_batch("outcomes", outcomes.len())?;
                outcomes.iter_mut().for_each(|(_, outcome)| outcome.cut());
            }
            Self::Hold(_, wait) => *wait = Outcome::LIMITED_MAX.min(*wait),
            Self::SetLimits { limits: Some(limits), .. } => check_limits("limits", limits)?,
            Self::PutRecurring(recurring) => {
                recurring.validate()?;
                recurring.job.check(now)?;
                recurring.next_after(now)?;
                if recurring.job.deadline.is_some() {
                    return Err(Error::outside("deadline", "that of a recurring job", "none"));
                }
            }
            _ => {}
        }
        Ok(self)
    }
}

fn check_batch(field: &str, found: usize) -> Result<(), Error> {
    if found > BATCH_MAX {
        return Err(Error::outside(field, found, format_args!("at most {BATCH_MAX} in one call")));
    }
    Ok(())
}

macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident($type:ty);)*) => {
        /// What a backend replies; which variant follows from the operation.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum Reply {
            $($(#[$doc])* $name($type),)*
        }

        $(impl From<$type> for Reply {
            fn from(value: $type) -> Self {
                Self::$name(value)
            }
        }

        impl TryFrom<Reply> for $type {
            type Error = Error;

            fn try_from(reply: Reply) -> Result<Self, Error> {
                match reply {
                    Reply::$name(value) => Ok(value),
                    _ => Err(Error::new(ErrorKind::Misuse, "the reply is another operation's")),
                }
            }
        })*
    };
}

replies! {
    /// It is done.
    Done(());
    /// Whether there was such a thing.
    Found(bool);
    /// Every queue and its settings.
    Queues(Vec<(QueueName, QueueSettings)>);
    /// Every shared limit.
    Shared(SharedLimits);
    /// What came of a change.
    Changed(Changed);
    /// A queue's settings and their version.
    Described(Described);
    /// The secret of the queues.
    Secret([u8; 32]);
    /// One per job, in order.
    Enqueued(Vec<Enqueued>);
    /// Jobs to run, and when to ask again.
    Leased(Leased);
    /// What workers were last told.
    Wake(Wake);
    /// One per token, in order.
    Beats(Vec<Beat>);
    /// One per outcome, in order.
    Settled(Vec<Settled>);
    /// What became of the job.
    Cancelled(Cancelled);
    /// The job, if it is known.
    Job(Option<Job>);
    /// A page of jobs.
    Jobs(Vec<Job>);
    /// Jobs that ended.
    Ended(Ended);
    /// The queue's figures.
    Stats(Stats);
    /// Every recurring job.
    Recurring(Vec<Recurring>);
}
