//! What a process asks of the store, what the store answers, and what the process does then.

use std::sync::Arc;
use std::time::Duration;

use tollway_core::Timestamp;

use super::counter::{Counter, CounterCall};
use crate::budget::{Change, Claim, Refusal};

/// What is to be asked of the store: to put these documents in the place of those.
#[derive(Debug)]
pub struct Call {
    /// What the store is expected to have: the account's version and the group's.
    pub expected: [Vec<u8>; 2],
    /// What it is to have instead; none where nothing changes.
    pub written: [Option<Vec<u8>>; 2],
    /// How long it is to be kept.
    pub kept: Duration,
    /// For how long the credential is known to be blocked.
    pub blocked: Duration,
    /// By the server's clock, when this was computed.
    pub now: Timestamp,
    /// What is expected of the counter of old clients, and written into it.
    pub counter: CounterCall,
    /// What to tell other processes.
    pub messages: Vec<(u64, Message)>,
}

/// What one process tells another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// These requests of yours may go.
    Granted(Vec<u64>),
    /// Look again in so long.
    Look(Duration),
}

/// What the store answers.
#[derive(Debug)]
pub enum Reply {
    /// The documents are written.
    Done,
    /// They were others than expected.
    Conflict {
        /// The account's.
        account: Vec<u8>,
        /// The group's.
        group: Vec<u8>,
        /// How long others say that the credential is blocked.
        blocked: Duration,
        /// What old clients have written.
        counter: Counter,
    },
}

/// What a process has to do next.
#[derive(Debug)]
pub enum Event {
    /// A request may go.
    Granted(u64),
    /// It must not.
    Refused(u64, Refusal),
    /// The upstream has a name for the bucket of a route.
    Named(Claim, Arc<str>),
    /// What changed by an answer to this process.
    Changed(Vec<Change>),
    /// Whether there was such a bucket to unlock.
    Unlocked(bool),
}
