//! What stands in while the store is gone: this process's part of every limit, not an open door.
//!
//! ```text
//!   the store is gone       it is back, and all are       told to all: when    then
//!  ──────┤ parts ├──────────── parts, told to it ─────────── parts ─┤ nobody ├── the store
//! ```
//!
//! The local ledger learns from the answers as one of so many (see `budget::part`). What the
//! documents said last it has heard from others. All go back to the store at one time: whoever went
//! sooner would take from the documents what is the part of another.

use std::sync::Arc;

use tokio::time::Instant;

use super::group::Group;
use super::ledger::Pending;
use super::ledger_state::{LedgerState, Served};
use super::old_clients::OLD_CLIENTS;
use crate::budget::{Claim, Fate, Ledger as _, Permit, Refusal, Settle};

/// This process's part of the limits, without the store; none if the store is back before, where
/// that would be of use.
pub(super) async fn alone(
    ledger: &Arc<LedgerState>,
    claim: &Claim,
    stored: &Claim,
    group: &Arc<Group>,
    deadline: Option<Instant>,
    to_the_end: bool,
) -> Option<Result<Box<dyn Settle>, Refusal>> {
    let mut served = ledger.served.subscribe();
    if !to_the_end && *served.borrow() != Served::Here {
        // Not for long: see `upkeep`.
        let _ = served.wait_for(|served| *served != Served::Nowhere).await;
        return None;
    }
    let asked = match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
        Some(left) => claim.clone().patience(left),
        None => claim.clone(),
    };
    let mut others = group.seen_processes(ledger);
    others.remove(&OLD_CLIENTS);
    let (processes, place) = ledger.peers.place(&others);
    ledger.local.go_apart(processes, place);
    // On the way back the documents know less than the answers that came since.
    if (to_the_end || !ledger.client.is_up())
        && let Some(told) = group.told(ledger, stored)
    {
        ledger.local.hear(claim, &told);
    }
    let permit = tokio::select! {
        biased;
        _ = served.wait_for(|served| *served != Served::Here), if !to_the_end => return None,
        permit = ledger.local.claim(asked) => permit,
    };
    let permit = match permit {
        Ok(permit) => permit,
        Err(refusal) => return Some(Err(refusal)),
    };
    let number = group.let_go(ledger, stored);
    let pending = Pending::new(ledger, group, number);
    Some(Ok(Box::new(FallbackPermit { permit, pending })))
}

/// A permit of the local ledger.
struct FallbackPermit {
    permit: Permit,
    /// What the store is told of it when it is back.
    pending: Pending,
}

impl Settle for FallbackPermit {
    fn settle(self: Box<Self>, fate: Fate<'_>) {
        let Self { permit, pending } = *self;
        pending.end(fate);
        match fate {
            Fate::Answered(observation) => {
                permit.complete(observation);
            }
            Fate::Abandoned => drop(permit),
            Fate::NeverSent => permit.cancel(),
        }
    }
}
