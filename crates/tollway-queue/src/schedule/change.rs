//! What an operation changed that a storage must write down.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Group, QueueName};

/// What an operation changed. What is named without content is read from the schedule when it is
/// written, once per commit however often it changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// What is in use of a shared limit.
    Shared(QueueName),
    /// The secret was chosen.
    Secret,
    /// Something of the queue with this number.
    Queue(u32, QueueChange),
}

impl Change {
    /// Whether somebody who waits for the end of a job may wait for this.
    pub(crate) const fn ends_job(&self) -> bool {
        matches!(self, Self::Queue(_, QueueChange::Gone(_) | QueueChange::Dead(_)))
    }
}

/// What changed in one queue; jobs are named by their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueueChange {
    /// Its settings, pause or limits in use.
    Settings,
    /// The queue was removed.
    Removed,
    /// A new job, with its payload.
    Job(u64, Bytes),
    /// A job was leased, prolonged, put back or revived.
    Moved(u64),
    /// A job is no more: not waiting, running nor dead.
    Gone(u64),
    /// A job is dead.
    Dead(u64),
    /// A job is among the dead no more: it lives again, or is gone too.
    DeadGone(u64),
    /// A job is done and kept, with its result if it has one.
    Done(u64, Option<Bytes>),
    /// A job that was done is kept no longer.
    DoneGone(u64),
    /// What there is to remember of a group.
    Group(Group),
    /// An idempotency key was given to a job.
    Key(Arc<str>),
    /// An idempotency key is forgotten.
    KeyGone(Arc<str>),
    /// A recurring job was made, replaced, enqueued or ended.
    Recurring(String),
}
