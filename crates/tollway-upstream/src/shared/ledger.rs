//! The ledger of one credential, shared by a fleet.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tollway_redis::connection::Failure;

use super::bucket_queue::BucketQueue;
use super::claim_queue::ClaimResult;
use super::fallback::FallbackPermit;
use super::inspect;
use super::ledger_state::LedgerState;
use crate::budget::{
    BoxFuture, Claim, Fate, Ledger, LedgerError, Page, Permit, Reason, Refusal, Settle,
};
use crate::profile::Route;

/// The budgets of one credential, shared by all processes on one store. Made by
/// [`Fleet::ledger`](super::Fleet::ledger); clones are the same ledger.
///
/// While the store is gone, each process keeps to its part of the limits.
#[derive(Clone)]
pub struct RedisLedger(Arc<LedgerState>);

impl RedisLedger {
    pub(super) fn new(ledger: Arc<LedgerState>) -> Self {
        Self(ledger)
    }

    /// Whether the store can be reached at the moment.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.0.client.is_up()
    }

    /// How many processes share the credential, as last counted.
    #[must_use]
    pub fn processes(&self) -> u32 {
        self.0.processes.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for RedisLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLedger")
            .field("prefix", &self.0.prefix)
            .field("connected", &self.is_connected())
            .finish_non_exhaustive()
    }
}

impl Ledger for RedisLedger {
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<Permit, Refusal>> {
        Box::pin(grant(Arc::clone(&self.0), claim))
    }

    fn buckets(&self, cursor: u64, max: usize) -> BoxFuture<'_, Result<Page, LedgerError>> {
        Box::pin(async move {
            let names: BTreeSet<Arc<str>> =
                self.0.queues().keys().map(|(bucket, ..)| Arc::clone(bucket)).collect();
            let skip = usize::try_from(cursor).unwrap_or(usize::MAX);
            let mut page = Page::default();
            for name in names.iter().skip(skip).take(max) {
                let queues = self.0.queues_of(name);
                let view = inspect::view(&self.0, name, &queues).await.map_err(away)?;
                page.buckets.push(view);
            }
            let seen = skip.saturating_add(page.buckets.len());
            page.next = (seen < names.len() && !page.buckets.is_empty()).then_some(seen as u64);
            Ok(page)
        })
    }

    fn unlock<'a>(&'a self, bucket: &'a str) -> BoxFuture<'a, Result<bool, LedgerError>> {
        Box::pin(async move {
            let queues = self.0.queues_of(bucket);
            let was_there = inspect::unlock(&self.0, bucket, &queues).await.map_err(away)?;
            for queue in queues {
                queue.claim_again();
            }
            Ok(was_there)
        })
    }

    fn drain<'a>(&'a self, bucket: &'a str) -> BoxFuture<'a, Result<usize, LedgerError>> {
        let drained = || ClaimResult::Refused(Refusal { reason: Reason::Drained, wait: None });
        let queues = self.0.queues_of(bucket);
        let count = queues.iter().map(|queue| queue.dismiss(&self.0, drained)).sum();
        Box::pin(async move { Ok(count) })
    }
}

fn away(failure: Failure) -> LedgerError {
    LedgerError::new(failure.to_string())
}

/// Waits until a request may be sent.
async fn grant(ledger: Arc<LedgerState>, claim: Claim) -> Result<Permit, Refusal> {
    let start = Instant::now();
    let deadline = claim.patience.map(|patience| start + patience);
    if claim.route.is_exempt() {
        return Ok(Permit::new(Box::new(Uncounted), Duration::ZERO));
    }
    let _room = ledger.enter(&claim)?;
    loop {
        if !ledger.client.is_up() {
            return alone(&ledger, claim, start, deadline).await;
        }
        let queue = ledger.queue_for(&claim.route)?;
        let mut claimed = queue.join(&ledger, &claim, deadline);
        // Who cannot wait is refused by the store's first answer, which takes a moment itself.
        let answer_by = deadline.map(|at| at.max(start + ledger.settings.timeout));
        let result = match answer_by {
            Some(at) => match tokio::time::timeout_at(at, claimed.result()).await {
                Ok(result) => result,
                Err(_) => return Err(Refusal { reason: Reason::Patience, wait: queue.due_in() }),
            },
            None => claimed.result().await,
        };
        match result {
            ClaimResult::Granted { permit, granted_ms } => {
                let route = claim.route.clone();
                let home = Arc::clone(&queue);
                let pending =
                    Pending { ledger: Arc::clone(&ledger), queue, route, permit, granted_ms };
                return with_tokens(&ledger, &home, &claim, Box::new(pending), deadline, start)
                    .await;
            }
            ClaimResult::Refused(refusal) => return Err(refusal),
            ClaimResult::AskAgain => {}
            ClaimResult::StoreGone => return alone(&ledger, claim, start, deadline).await,
        }
    }
}

/// Waits for tokens of the limits that no answer tells of: at dispatch, not when the wait began.
/// That over all routes comes last, for it is the one that others wait for most.
async fn with_tokens(
    ledger: &LedgerState,
    queue: &BucketQueue,
    claim: &Claim,
    settle: Box<dyn Settle>,
    deadline: Option<Instant>,
    start: Instant,
) -> Result<Permit, Refusal> {
    let mut unsent = Unsent(Some(settle));
    let of_all = (!claim.route.is_exempt_from_global()).then_some(&ledger.global_tokens);
    for tokens in queue.token_batches.iter().chain(of_all) {
        if let Err(wait) = tokens.take(ledger, claim, deadline).await {
            return Err(Refusal { reason: Reason::Patience, wait: Some(wait) });
        }
    }
    let settle = unsent.0.take().expect("nobody else takes it");
    Ok(Permit::new(settle, start.elapsed()))
}

/// This process's part of the limits, without the store.
async fn alone(
    ledger: &Arc<LedgerState>,
    claim: Claim,
    start: Instant,
    deadline: Option<Instant>,
) -> Result<Permit, Refusal> {
    let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
    let asked = match left {
        Some(left) => claim.clone().patience(left),
        None => claim.clone(),
    };
    let permit = ledger.local.claim(asked).await?;
    let processes = ledger.processes.load(Ordering::Relaxed);
    let queue = ledger.queue_for(&claim.route)?;
    with_tokens(
        ledger,
        &queue,
        &claim,
        Box::new(FallbackPermit { permit, processes }),
        deadline,
        start,
    )
    .await
}

/// A place that goes back unless it is used.
struct Unsent(Option<Box<dyn Settle>>);

impl Drop for Unsent {
    fn drop(&mut self) {
        if let Some(settle) = self.0.take() {
            settle.settle(Fate::NeverSent);
        }
    }
}

/// A request under way.
struct Pending {
    ledger: Arc<LedgerState>,
    queue: Arc<BucketQueue>,
    route: Route,
    permit: String,
    granted_ms: u64,
}

impl Settle for Pending {
    fn settle(self: Box<Self>, fate: Fate<'_>) {
        let Self { ledger, queue, route, permit, granted_ms } = *self;
        match fate {
            Fate::Answered(observation) => {
                let (runtime, observation) = (ledger.runtime.clone(), observation.clone());
                runtime.spawn(ledger.learn(queue, route, permit, granted_ms, observation));
            }
            Fate::Abandoned => ledger.give_up(&queue, permit, granted_ms, "sent"),
            Fate::NeverSent => ledger.cancel(&queue, permit, granted_ms),
        }
    }
}

/// A request that no limit counts.
struct Uncounted;

impl Settle for Uncounted {
    fn settle(self: Box<Self>, _fate: Fate<'_>) {}
}
