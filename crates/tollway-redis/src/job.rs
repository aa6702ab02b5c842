//! A request on its way: who waits for the answer, and whether the store may have seen it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::sync::oneshot;
use tokio::time::Instant;
use tollway_core::{ErrorKind, StoreError};

use crate::address::unavailable;
use crate::batch::{Manner, Outcome};
use crate::request::Request;

/// A request, how it is asked, and who waits.
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) manner: Manner,
    pub(crate) slot: u16,
    /// When it was asked.
    pub(crate) began: Instant,
    pub(crate) ticket: Arc<Ticket>,
    pub(crate) answer: oneshot::Sender<Result<Outcome, Trouble>>,
    /// How often it was sent on to another server, or again.
    pub(crate) hops: u8,
    /// Whether the next server is only asked because the slot is on its way there.
    pub(crate) asking: bool,
}

/// Why there is no answer, and whose fault it is.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) error: StoreError,
    /// Whether the policies' failure modes answer; the caller's own mistakes they do not cover.
    pub(crate) degrades: bool,
}

impl Trouble {
    /// The store is at fault.
    pub(crate) const fn store(error: StoreError) -> Self {
        Self { error, degrades: true }
    }

    /// The request cannot be answered, however well the store is.
    pub(crate) const fn request(error: StoreError) -> Self {
        Self { error, degrades: false }
    }
}

/// Whether a request was handed to a connection. Whoever gives up waiting needs to know.
#[derive(Debug, Default)]
pub(crate) struct Ticket(AtomicU8);

const WAITING: u8 = 0;
const SENT: u8 = 1;
const ABANDONED: u8 = 2;

impl Ticket {
    /// Marks it as sent, unless its caller gave up.
    pub(crate) fn send(&self) -> bool {
        self.0.compare_exchange(WAITING, SENT, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The store has certainly not acted on it, so it waits again.
    pub(crate) fn unsend(&self) {
        let _ = self.0.compare_exchange(SENT, WAITING, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether its caller gave up.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.load(Ordering::Acquire) == ABANDONED
    }

    /// Gives up. What that means for what was asked.
    pub(crate) fn abandon(&self) -> StoreError {
        match self.0.swap(ABANDONED, Ordering::AcqRel) {
            SENT => unknown("the store did not answer in time"),
            _ => unavailable("the store had no time for the request; nothing was taken"),
        }
    }
}

/// The store may or may not have acted.
pub(crate) fn unknown(message: &str) -> StoreError {
    StoreError::new(ErrorKind::Unknown, message)
}
