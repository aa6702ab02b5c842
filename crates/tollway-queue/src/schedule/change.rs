//! What an operation changed that a storage must write down.

use bytes::Bytes;

use crate::{Group, QueueName};

/// What an operation changed. What is named without content is read from the schedule when it is
/// written, once per commit however often it changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The settings, pause or limits in use of a queue.
    Queue(u32),
    QueueGone(u32),
    /// What is in use of a shared limit.
    Shared(QueueName),
    /// The secret was chosen.
    Secret,
    /// A new job.
    Job {
        queue: u32,
        id: u64,
        payload: Bytes,
    },
    /// A job was leased, prolonged, put back or revived.
    Moved {
        queue: u32,
        id: u64,
    },
    /// A job is no more: not waiting, running nor dead.
    Gone {
        queue: u32,
        id: u64,
    },
    /// A job is dead.
    Dead {
        queue: u32,
        id: u64,
    },
    /// A job is among the dead no more: it lives again, or is gone too.
    DeadGone {
        queue: u32,
        id: u64,
    },
    /// A job is done and kept, with its result if it has one.
    Done {
        queue: u32,
        id: u64,
        result: Option<Bytes>,
    },
    /// A job that was done is kept no longer.
    DoneGone {
        queue: u32,
        id: u64,
    },
    /// What there is to remember of a group.
    Group {
        queue: u32,
        group: Group,
    },
    /// An idempotency key was given to a job.
    Key {
        queue: u32,
        key: std::sync::Arc<str>,
    },
    KeyGone {
        queue: u32,
        key: std::sync::Arc<str>,
    },
    Recurring {
        queue: u32,
        name: String,
    },
}
