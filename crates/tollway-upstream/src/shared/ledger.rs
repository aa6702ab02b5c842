//! The ledger of one credential, shared by a fleet.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollway_redis::connection::Failure;

use super::claim_queue::ClaimResult;
use super::fallback::alone;
use super::group::Group;
use super::keys::{group_of, stored_route};
use super::ledger_state::LedgerState;
use super::token_batch::{self, TokenBatch};
use super::{Naming, inspect};
use crate::budget::{
    BoxFuture, Change, Claim, Correction, Fate, Ledger, LedgerError, Page, Permit, Reason, Refusal,
    Settle, WaitCause, Why,
};
use crate::profile::Dimension;

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
        self.0.peers.sharing()
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
            match page(Arc::clone(&self.0), cursor, max).await {
                Ok(page) if self.0.is_home() => Ok(page),
                // What the store last said is of no use now: this process goes by its own part.
                _ => own_part(&self.0, cursor, max).await,
            }
        })
    }

    fn unlock<'a>(&'a self, bucket: &'a str) -> BoxFuture<'a, Result<bool, LedgerError>> {
        Box::pin(async move {
            let mut found = Vec::new();
            let was_here = self.0.local.unlock(bucket).await?;
            if !self.0.is_home() {
                return Ok(was_here);
            }
            for group in self.0.groups() {
                let documents = inspect::read(&self.0, &group).await.map_err(away)?;
                if documents.budgets.has_bucket(bucket) {
                    found.push(group.unlock(&self.0, bucket));
                }
            }
            let mut was_there = false;
            for answer in found {
                was_there |= tokio::time::timeout(self.0.settings.timeout, answer)
                    .await
                    .is_ok_and(|answer| answer.unwrap_or(false));
            }
            Ok(was_there)
        })
    }

    fn correct(&self, correction: &Correction) {
        let (ledger, naming) = (&self.0, self.0.settings.naming);
        let stored = stored_route(naming, &correction.route);
        let counts_all = !correction.route.is_exempt_from_global();
        let of_all = ledger.credential_tokens.iter().filter(|_| counts_all);
        for tokens in ledger.stated(&stored, &correction.route).iter().chain(of_all) {
            tokens.correct(ledger, correction);
        }
        let is_told = |(index, of): (usize, &Dimension)| {
            !of.is_modelled() && correction.units(index).is_some()
        };
        if ledger.profile.dimensions().iter().enumerate().any(is_told)
            && let Ok(group) = ledger.group(group_of(naming, ledger.terms.is_one_group, &stored))
        {
            let route = stored.clone();
            group.correct(ledger, Correction { route, ..correction.clone() });
        }
    }

    fn take_changes(&self) -> Vec<Change> {
        self.0.changes().drain(..).collect()
    }

    fn drain<'a>(&'a self, bucket: &'a str) -> BoxFuture<'a, Result<usize, LedgerError>> {
        Box::pin(async move {
            let drained = || ClaimResult::Refused(Refusal { reason: Reason::Drained, wait: None });
            let mut count = self.0.local.drain(bucket).await?;
            let groups = if self.0.is_home() { self.0.groups() } else { Vec::new() };
            for group in groups {
                let documents = inspect::read(&self.0, &group).await.map_err(away)?;
                let is_its = |claim: &Claim| documents.budgets.bucket_name(&claim.route) == bucket;
                count += group.dismiss(&self.0, is_its, drained);
            }
            Ok(count)
        })
    }
}

fn away(failure: Failure) -> LedgerError {
    LedgerError::new(failure.to_string())
}

/// The buckets of the ledger that stands in while the store is gone.
async fn own_part(ledger: &LedgerState, cursor: u64, max: usize) -> Result<Page, LedgerError> {
    let mut page = ledger.local.buckets(cursor, max).await?;
    for view in page.buckets.iter_mut().filter(|view| view.queued > 0) {
        view.why.insert(0, Why { cause: WaitCause::LocalShare, what: None, left: None });
    }
    Ok(page)
}

/// Buckets from a cursor on: the group in its upper half, the bucket there in its lower.
async fn page(ledger: Arc<LedgerState>, cursor: u64, max: usize) -> Result<Page, LedgerError> {
    let mut page = Page::default();
    let first = usize::try_from(cursor >> 32).unwrap_or(usize::MAX);
    let groups = ledger.groups();
    for (index, group) in groups.iter().enumerate().skip(first) {
        if page.buckets.len() >= max {
            page.next = Some((index as u64) << 32);
            break;
        }
        let documents = inspect::read(&ledger, group).await.map_err(away)?;
        let from = if index == first { cursor & u64::from(u32::MAX) } else { 0 };
        let left = max - page.buckets.len();
        let now = ledger.clock.earliest();
        let some = documents.budgets.buckets(from, left, now);
        let of_credential = documents.budgets.account_dimensions(now);
        page.buckets.extend(some.buckets.into_iter().map(|mut view| {
            view.dimensions.extend(of_credential.iter().cloned());
            ledger.token_waits.show(&documents, &mut view);
            view
        }));
        if let (Some(last), outside @ 1..) = (page.buckets.last_mut(), group.outside()) {
            last.queued += outside;
        }
        if let Some(next) = some.next {
            page.next = Some((index as u64) << 32 | next);
            break;
        }
    }
    Ok(page)
}

/// Waits until a request may be sent.
async fn grant(ledger: Arc<LedgerState>, claim: Claim) -> Result<Permit, Refusal> {
    let start = Instant::now();
    let deadline = claim.patience.map(|patience| start + patience);
    if claim.route.is_exempt() {
        return Ok(Permit::new(Box::new(Uncounted), Duration::ZERO));
    }
    let _room = ledger.enter(&claim)?;
    let (stored, group) = ledger.stored(&claim)?;
    let mut is_refused = false;
    loop {
        if is_refused || !ledger.is_home() {
            match alone(&ledger, &claim, &stored, &group, deadline, is_refused).await {
                Some(settle) => {
                    return with_tokens(&ledger, &stored, &claim, settle?, deadline, start).await;
                }
                None => continue,
            }
        }
        let mut claimed = group.join(&ledger, &stored, deadline);
        // Who cannot wait is refused by the store's first answer, which takes a moment itself.
        let answer_by = deadline.map(|at| at.max(start + ledger.settings.timeout));
        let result = match answer_by {
            Some(at) => match tokio::time::timeout_at(at, claimed.result()).await {
                Ok(result) => result,
                Err(_) => return Err(Refusal { reason: Reason::Patience, wait: None }),
            },
            None => claimed.result().await,
        };
        match result {
            ClaimResult::Granted(number) => {
                let settle = Box::new(Pending::new(&ledger, &group, number));
                return with_tokens(&ledger, &stored, &claim, settle, deadline, start).await;
            }
            ClaimResult::Refused(refusal) => return Err(refusal),
            // It may be there and take nothing: then there is nothing to wait for.
            ClaimResult::StoreGone => is_refused = ledger.client.is_up(),
        }
    }
}

/// Waits for tokens of the limits that no answer tells of: at dispatch, not when the wait began.
async fn with_tokens(
    ledger: &LedgerState,
    stored: &Claim,
    claim: &Claim,
    settle: Box<dyn Settle>,
    deadline: Option<Instant>,
    start: Instant,
) -> Result<Permit, Refusal> {
    let mut unsent = Unsent(Some(settle));
    let counts_all = !claim.route.is_exempt_from_global();
    let of_all = ledger.credential_tokens.iter().filter(|_| counts_all);
    let stated = ledger.stated(&stored.route, &claim.route);
    let batches: Vec<&TokenBatch> = stated.iter().chain(of_all).collect();
    let cause = if stated.is_empty() { WaitCause::Global } else { WaitCause::Spent };
    let _wait = (!batches.is_empty()).then(|| ledger.token_waits.enter(&stored.route, cause));
    if let Err(wait) = token_batch::take(&batches, ledger, claim, deadline).await {
        return Err(Refusal { reason: Reason::Patience, wait: Some(wait) });
    }
    let settle = unsent.0.take().expect("nobody else takes it");
    Ok(Permit::new(settle, start.elapsed()))
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
pub(super) struct Pending {
    ledger: Arc<LedgerState>,
    group: Arc<Group>,
    number: u64,
}

impl Pending {
    pub(super) fn new(ledger: &Arc<LedgerState>, group: &Arc<Group>, number: u64) -> Self {
        Self { ledger: Arc::clone(ledger), group: Arc::clone(group), number }
    }

    pub(super) fn end(self, fate: Fate<'_>) {
        let Self { ledger, group, number } = self;
        match fate {
            Fate::Answered(observation) => {
                let mut observation = observation.clone();
                if ledger.settings.naming == Naming::Spectacles {
                    observation.bucket = None;
                }
                group.answered(&ledger, number, observation);
            }
            Fate::Abandoned => group.abandoned(&ledger, number),
            Fate::NeverSent => group.cancelled(&ledger, number),
        }
    }
}

impl Settle for Pending {
    fn settle(self: Box<Self>, fate: Fate<'_>) {
        self.end(fate);
    }
}

/// A request that no limit counts.
struct Uncounted;

impl Settle for Uncounted {
    fn settle(self: Box<Self>, _fate: Fate<'_>) {}
}
