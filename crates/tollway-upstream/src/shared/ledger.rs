//! The ledger of one credential, shared by a fleet.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tollway_redis::connection::Failure;

use super::fallback::Part;
use super::inspect;
use super::lane::Lane;
use super::parts::Core;
use super::waiters::Turn;
use crate::budget::{BoxFuture, Claim, Ledger, LedgerError, Page, Permit, Reason, Refusal, Settle};
use crate::profile::{Observation, Route};

/// The budgets of one credential, shared by all processes on one store. Made by
/// [`Fleet::ledger`](super::Fleet::ledger); clones are the same ledger.
///
/// While the store is gone, each process keeps to its part of the limits.
#[derive(Clone)]
pub struct RedisLedger(Arc<Core>);

impl RedisLedger {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self(core)
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
                self.0.lanes().keys().map(|(bucket, ..)| Arc::clone(bucket)).collect();
            let skip = usize::try_from(cursor).unwrap_or(usize::MAX);
            let mut page = Page::default();
            for name in names.iter().skip(skip).take(max) {
                let lanes = self.0.lanes_of(name);
                let view = inspect::view(&self.0, name, &lanes).await.map_err(away)?;
                page.buckets.push(view);
            }
            let seen = skip.saturating_add(page.buckets.len());
            page.next = (seen < names.len() && !page.buckets.is_empty()).then_some(seen as u64);
            Ok(page)
        })
    }

    fn unlock<'a>(&'a self, bucket: &'a str) -> BoxFuture<'a, Result<bool, LedgerError>> {
        Box::pin(async move {
            let lanes = self.0.lanes_of(bucket);
            let was_there = inspect::unlock(&self.0, bucket, &lanes).await.map_err(away)?;
            for lane in lanes {
                lane.ring();
            }
            Ok(was_there)
        })
    }

    fn drain<'a>(&'a self, bucket: &'a str) -> BoxFuture<'a, Result<usize, LedgerError>> {
        let drained = || Turn::Refused(Refusal { reason: Reason::Drained, wait: None });
        let lanes = self.0.lanes_of(bucket);
        let count = lanes.iter().map(|lane| lane.dismiss(&self.0, drained)).sum();
        Box::pin(async move { Ok(count) })
    }
}

fn away(failure: Failure) -> LedgerError {
    LedgerError::new(failure.to_string())
}

/// Waits until a request may be sent.
async fn grant(core: Arc<Core>, claim: Claim) -> Result<Permit, Refusal> {
    let start = Instant::now();
    let deadline = claim.patience_left().map(|patience| start + patience);
    if claim.route().is_exempt() {
        return Ok(Permit::new(Box::new(Uncounted), Duration::ZERO));
    }
    let _room = core.enter(&claim)?;
    loop {
        if !core.client.is_up() {
            return alone(&core, claim, start, deadline).await;
        }
        let lane = core.lane(claim.route())?;
        let mut place = lane.join(&core, &claim, deadline);
        // Who cannot wait is refused by the store's first answer, which takes a moment itself.
        let answer_by = deadline.map(|at| at.max(start + core.settings.timeout));
        let turn = match answer_by {
            Some(at) => match tokio::time::timeout_at(at, place.turn()).await {
                Ok(turn) => turn,
                Err(_) => return Err(Refusal { reason: Reason::Patience, wait: lane.due_in() }),
            },
            None => place.turn().await,
        };
        match turn {
            Turn::Go { permit, granted_ms } => {
                let route = claim.route().clone();
                let home = Arc::clone(&lane);
                let pending = Pending { core: Arc::clone(&core), lane, route, permit, granted_ms };
                return with_tokens(&core, &home, &claim, Box::new(pending), deadline, start).await;
            }
            Turn::Refused(refusal) => return Err(refusal),
            Turn::AskAgain => {}
            Turn::Gone => return alone(&core, claim, start, deadline).await,
        }
    }
}

/// Waits for tokens of the limits that no answer tells of: at dispatch, not when the wait began. That
/// over all routes comes last, for it is the one that others wait for most.
async fn with_tokens(
    core: &Core,
    lane: &Lane,
    claim: &Claim,
    settle: Box<dyn Settle>,
    deadline: Option<Instant>,
    start: Instant,
) -> Result<Permit, Refusal> {
    let mut unsent = Unsent(Some(settle));
    let of_all = (!claim.route().is_exempt_from_global()).then_some(&core.purse);
    for purse in lane.purses.iter().chain(of_all) {
        if let Err(wait) = purse.take(core, claim, deadline).await {
            return Err(Refusal { reason: Reason::Patience, wait: Some(wait) });
        }
    }
    let settle = unsent.0.take().expect("nobody else takes it");
    Ok(Permit::new(settle, start.elapsed()))
}

/// This process's part of the limits, without the store.
async fn alone(
    core: &Arc<Core>,
    claim: Claim,
    start: Instant,
    deadline: Option<Instant>,
) -> Result<Permit, Refusal> {
    let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
    let asked = match left {
        Some(left) => claim.clone().patience(left),
        None => claim.clone(),
    };
    let permit = core.local.claim(asked).await?;
    let processes = core.processes.load(Ordering::Relaxed);
    let lane = core.lane(claim.route())?;
    with_tokens(core, &lane, &claim, Box::new(Part { permit, processes }), deadline, start).await
}

/// A place that goes back unless it is used.
struct Unsent(Option<Box<dyn Settle>>);

impl Drop for Unsent {
    fn drop(&mut self) {
        if let Some(settle) = self.0.take() {
            settle.cancel();
        }
    }
}

/// A request under way.
struct Pending {
    core: Arc<Core>,
    lane: Arc<Lane>,
    route: Route,
    permit: String,
    granted_ms: u64,
}

impl Settle for Pending {
    fn complete(self: Box<Self>, observation: &Observation) {
        let observation = observation.clone();
        let Self { core, lane, route, permit, granted_ms } = *self;
        let runtime = core.runtime.clone();
        runtime.spawn(core.learn(lane, route, permit, granted_ms, observation));
    }

    fn abandon(self: Box<Self>) {
        let Self { core, lane, permit, granted_ms, .. } = *self;
        core.give_up(&lane, permit, granted_ms, "sent");
    }

    fn cancel(self: Box<Self>) {
        let Self { core, lane, permit, granted_ms, .. } = *self;
        core.cancel(&lane, permit, granted_ms);
    }
}

/// A request that no limit counts.
struct Uncounted;

impl Settle for Uncounted {
    fn complete(self: Box<Self>, _observation: &Observation) {}
    fn abandon(self: Box<Self>) {}
    fn cancel(self: Box<Self>) {}
}
