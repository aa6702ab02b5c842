//! What policies answer when the store does not.
//!
//! Each charge is answered by its own policy: `Allow` while the outage is younger than its bound,
//! `Deny`, or `Local` by this process's share, or the last once the first has had its time. The
//! request is allowed if all of them allow it, and its verdict says that it is degraded. Nothing is
//! taken from a local share if another charge denies.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollway_core::{Decision, Grant, Mode, OnStoreError, State, StoreError, Timestamp, Verdict};

use crate::call::CallError;
use crate::local_shares::{LocalCharge, LocalShares, denied};
use crate::request::{Op, Request};

/// The verdict of the policies on a request that a store has not answered for so long; the error
/// itself if it is the request's fault.
pub(crate) fn degraded_verdict(
    request: &Request,
    local: &LocalShares,
    failure: CallError,
    lasted: Duration,
) -> Result<Verdict, StoreError> {
    if !failure.degrades {
        return Err(failure.error);
    }
    let at_roots = request.lends().then(|| request.at_roots());
    let request = at_roots.as_ref().unwrap_or(request);
    let now = system_time();
    let mut decisions: Vec<Option<Decision>> =
        request.parts.iter().map(|part| answer_alone(part, lasted, now)).collect();
    let denies = decisions.iter().flatten().any(|decision| !decision.is_allowed());
    let open: Vec<usize> = (0..decisions.len()).filter(|n| decisions[*n].is_none()).collect();
    if !open.is_empty() {
        let parts: Vec<LocalCharge<'_>> =
            open.iter().map(|n| (&request.parts[*n], shares(request, *n))).collect();
        let take = !denies && request.op != Op::Peek;
        let decided = local.decide(&parts, request.id, now, take);
        for (n, decision) in open.into_iter().zip(decided) {
            decisions[n] = Some(decision);
        }
    }
    let verdict = Verdict::new(decisions.into_iter().flatten().collect());
    Ok(verdict.degraded_by(failure.error.kind()))
}

/// The same for a partial grant: all, or nothing.
pub(crate) fn degraded_grant(
    request: &Request,
    local: &LocalShares,
    failure: CallError,
    lasted: Duration,
) -> Result<Grant, StoreError> {
    let store_failure = Some(failure.error.kind());
    let decision = degraded_verdict(request, local, failure, lasted)?.decisions()[0];
    let units = request.parts.first().map_or(0, |part| part.units);
    let granted = if decision.is_allowed() { units } else { 0 };
    Ok(Grant { granted, decision, store_failure })
}

/// What a charge's policy says by itself; `None` if its share decides.
fn answer_alone(
    part: &crate::request::KeyCharge,
    lasted: Duration,
    now: Timestamp,
) -> Option<Decision> {
    let algorithm = part.encoded.algorithm();
    let allowed = || Decision::Allow(State::vacant(algorithm).peek(algorithm, now));
    match part.on_store_error.once_gone_for(lasted) {
        _ if part.mode == Mode::Count => Some(allowed()),
        // More than the policy ever holds is not allowed by any failure.
        _ if part.units > algorithm.limit() => Some(denied(algorithm.limit())),
        OnStoreError::Allow { .. } => Some(allowed()),
        OnStoreError::Local { .. } | OnStoreError::AllowThenLocal { .. } => None,
        // Whatever else a policy may say some day: to deny is safe.
        _ => Some(denied(algorithm.limit())),
    }
}

fn shares(request: &Request, index: usize) -> u32 {
    match request.parts[index].on_store_error {
        OnStoreError::Local { shares } | OnStoreError::AllowThenLocal { shares, .. } => shares,
        _ => 1,
    }
}

fn system_time() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
