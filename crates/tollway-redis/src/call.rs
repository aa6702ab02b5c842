//! A call on its way to a server: who waits for the answer, and whether the server may have seen
//! it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tollway_core::StoreError;

use crate::connection::{Batcher, Client, Rejected, unavailable, unknown};

/// A question, and who waits for its answer.
pub(crate) struct Call<Q, A> {
    pub(crate) question: Q,
    /// When it was asked.
    pub(crate) began: Instant,
    pub(crate) progress: Arc<Progress>,
    answer: oneshot::Sender<Result<A, CallError>>,
}

/// Why there is no answer, and whose fault it is.
#[derive(Debug)]
pub(crate) struct CallError {
    pub(crate) error: StoreError,
    /// Whether the policies' failure modes answer; the caller's own mistakes they do not cover.
    pub(crate) degrades: bool,
}

impl CallError {
    /// The store is at fault.
    pub(crate) fn store(error: impl Into<StoreError>) -> Self {
        Self { error: error.into(), degrades: true }
    }

    /// The question cannot be answered, however well the store is.
    pub(crate) fn request(error: impl Into<StoreError>) -> Self {
        Self { error: error.into(), degrades: false }
    }
}

impl<Q: Send + 'static, A: Send + 'static> Call<Q, A> {
    /// Asks by handing a call to `submit`, and waits for the answer no longer than `timeout`; past
    /// it, `note_late` is told when the call began and what came of it.
    ///
    /// The time is kept by the runtime that the store was made in: whoever awaits an answer need
    /// not run in one.
    pub(crate) async fn ask(
        question: Q,
        (runtime, timeout): (&Handle, Duration),
        submit: impl FnOnce(Self),
        note_late: impl FnOnce(Instant, &str),
    ) -> Result<A, CallError> {
        let (answer, receive) = oneshot::channel();
        let (progress, began) = (Arc::new(Progress::default()), Instant::now());
        submit(Self { question, began, progress: Arc::clone(&progress), answer });
        let budget = {
            let _runtime = runtime.enter();
            tokio::time::sleep(timeout)
        };
        tokio::select! {
            biased;
            answer = receive => answer.unwrap_or_else(|_| Err(CallError::store(shut_down()))),
            () = budget => {
                let error = progress.abandon();
                note_late(began, &error.to_string());
                Err(CallError::store(error))
            }
        }
    }

    /// Hands the call over to be sent; gives it back with the reason if it cannot be.
    pub(crate) fn submit(
        self,
        client: &Client,
        calls: &Batcher<Self>,
    ) -> Result<(), (Self, &'static str)> {
        // At once, and not in line until there is a connection: policies answer in the store's
        // place meanwhile, and whoever waited would be answered after its caller has gone.
        if !client.is_up() {
            return Err((self, "the store is down; it is being probed"));
        }
        calls.submit(self).map_err(|rejected| match rejected {
            Rejected::Full(call) => {
                let reason = "too many requests wait for the store";
                client.outage().failed_by(call.began, reason);
                (call, reason)
            }
            Rejected::Closed(call) => (call, "the store is being shut down"),
        })
    }

    /// Answers whoever asked, if anybody still waits.
    pub(crate) fn answer(self, answer: Result<A, CallError>) {
        let Self { question, answer: sender, .. } = self;
        // First, so that whoever is answered holds the only reference to what it asked.
        drop(question);
        let _ = sender.send(answer);
    }

    /// Tells whoever asked that the store has failed, and notes that it has.
    pub(crate) fn fail(self, client: &Client, error: StoreError) {
        client.outage().failed(self.began);
        client.failures().fetch_add(1, Ordering::Relaxed);
        self.answer(Err(CallError::store(error)));
    }
}

/// Whether a call was handed to a connection. Whoever gives up waiting needs to know.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU8);

const WAITING: u8 = 0;
const SENT: u8 = 1;
const ABANDONED: u8 = 2;

impl Progress {
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
    fn abandon(&self) -> StoreError {
        match self.0.swap(ABANDONED, Ordering::AcqRel) {
            SENT => unknown("the store did not answer in time"),
            _ => unavailable("the store had no time for the request; nothing was taken"),
        }
    }
}

/// The runtime that the store lives on is going down.
pub(crate) fn shut_down() -> StoreError {
    unavailable("the store is being shut down")
}
