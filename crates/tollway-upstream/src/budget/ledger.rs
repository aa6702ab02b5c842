//! The seam between those who send requests and those who keep budgets.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::{Change, Claim, Correction, Page, Refusal};
use crate::profile::Observation;

/// A boxed future, as the methods of [`Ledger`] return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Keeps the budgets of one credential. Used as `Arc<dyn Ledger>`.
pub trait Ledger: Send + Sync + fmt::Debug {
    /// Waits until the request may be sent.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the line; nothing was sent and nothing is counted.
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<Permit, Refusal>>;

    /// What is known of the buckets, `max` at a time from `cursor` on (0 at first).
    fn buckets(&self, cursor: u64, max: usize) -> BoxFuture<'_, Result<Page, LedgerError>>;

    /// Forgets what blocks a bucket; its next request is a probe. False if there is none such.
    fn unlock<'a>(&'a self, bucket: &'a str) -> BoxFuture<'a, Result<bool, LedgerError>>;

    /// Refuses everything that waits for a bucket; how many that were.
    fn drain<'a>(&'a self, bucket: &'a str) -> BoxFuture<'a, Result<usize, LedgerError>>;

    /// Tells what a request really took, where its answer was observed and did not say what is
    /// left: the estimate that it was let go for counts no longer. A ledger that keeps to estimates
    /// need not listen.
    fn correct(&self, correction: &Correction) {
        let _ = correction;
    }

    /// What changed since this was last called, oldest first; never many. For logs and pages: a
    /// ledger need not tell.
    fn take_changes(&self) -> Vec<Change> {
        Vec::new()
    }
}

/// Why a ledger could not be asked.
#[derive(Debug)]
pub struct LedgerError(String);

impl LedgerError {
    /// An error with a message for operators.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LedgerError {}

/// How a ledger learns what became of a request that it let go.
pub trait Settle: Send + Sync {
    /// Takes note of it; called once.
    fn settle(self: Box<Self>, fate: Fate<'_>);
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
pub enum Fate<'a> {
    /// The header fields of the answer arrived.
    Answered(&'a Observation),
    /// No answer will come; the upstream may or may not have counted the request.
    Abandoned,
    /// The request was never sent: nothing can have been counted.
    NeverSent,
}

/// The right to send one request, completed by the header fields of its answer.
///
/// Dropped without an answer it counts as abandoned: the upstream may have counted the request.
#[must_use = "a permit that is dropped counts as a request that was lost"]
pub struct Permit {
    settle: Option<Box<dyn Settle>>,
    waited: Duration,
}

impl Permit {
    /// A permit that reports to `settle`, given after a wait of `waited`.
    pub fn new(settle: Box<dyn Settle>, waited: Duration) -> Self {
        Self { settle: Some(settle), waited }
    }

    /// How long the request stood in line.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Learns from the answer. Call it as soon as the header fields are there: others wait for
    /// them.
    pub fn complete(mut self, observation: &Observation) {
        self.settle(Fate::Answered(observation));
    }

    /// Gives the right back because nothing was sent, such as when no connection could be made.
    pub fn cancel(mut self) {
        self.settle(Fate::NeverSent);
    }

    fn settle(&mut self, fate: Fate<'_>) {
        if let Some(settle) = self.settle.take() {
            settle.settle(fate);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.settle(Fate::Abandoned);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("waited", &self.waited).finish_non_exhaustive()
    }
}
