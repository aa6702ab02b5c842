//! What policies answer while their counts cannot be kept.
//!
//! Each durable charge is answered by its own policy: `Allow` while the outage is younger than its
//! bound, `Deny`, or this process's share of the quota, which is counted in memory alone. The
//! request is allowed if all of them allow it and the policies that are not durable do, and its
//! verdict says that it is degraded.

use std::time::Duration;

use tollway_core::{
    Charge, Decision, Mode, OnStoreError, Policy, Retry, Snapshot, State, Timestamp, Verdict,
};

use super::{DurableStore, Failure};

/// When to come again: whether there is room then, nobody knows.
const COME_AGAIN: Duration = Duration::from_secs(1);

impl DurableStore {
    /// The verdict of the policies on a request of which some charges are durable. Takes what is
    /// not durable if all is allowed and `takes` says so.
    pub(super) fn degraded(
        &self,
        charges: &[Charge<'_>],
        now: Timestamp,
        failure: &Failure,
        takes: bool,
    ) -> Verdict {
        let lasted = failure.since.elapsed();
        let alone: Vec<Option<Decision>> =
            charges.iter().map(|charge| answer_alone(charge, lasted, now)).collect();
        let denies = alone.iter().flatten().any(|decision| !decision.is_allowed());
        let shares: Vec<Option<Policy>> =
            charges.iter().map(|charge| share(charge.policy, lasted)).collect();
        let mut asked = Vec::with_capacity(charges.len());
        for ((charge, alone), share) in charges.iter().zip(&alone).zip(&shares) {
            if alone.is_none() {
                let policy = share.as_ref().unwrap_or(charge.policy);
                asked.push(Charge { policy, ..*charge });
            }
        }
        let decided = match takes && !denies {
            _ if asked.is_empty() => Verdict::new(Vec::new()),
            true => self.memory.check_all(&asked, now),
            false => self.memory.peek_all(&asked, now),
        };
        let mut decided = decided.decisions().iter().copied();
        let all = alone.into_iter().filter_map(|alone| alone.or_else(|| decided.next()));
        Verdict::new(all.collect()).degraded_by(failure.kind)
    }
}

/// What a charge's policy says by itself; `None` if the memory decides.
fn answer_alone(charge: &Charge<'_>, lasted: Duration, now: Timestamp) -> Option<Decision> {
    if !charge.policy.is_durable() {
        return None;
    }
    let algorithm = charge.policy.algorithm();
    let allowed = || Decision::Allow(State::vacant(algorithm).peek(algorithm, now));
    match charge.policy.store_error().once_gone_for(lasted) {
        _ if charge.mode == Mode::Count => Some(allowed()),
        // More than the policy ever holds is not allowed by any failure.
        _ if charge.cost.get() > algorithm.limit() => Some(denied(algorithm.limit())),
        OnStoreError::Allow { .. } => Some(allowed()),
        OnStoreError::Local { .. } | OnStoreError::AllowThenLocal { .. } => None,
        // Whatever else a policy may say some day: to deny is safe.
        _ => Some(denied(algorithm.limit())),
    }
}

/// This process's share of a durable policy, if that is what the policy says now.
fn share(policy: &Policy, lasted: Duration) -> Option<Policy> {
    let shares = match policy.store_error().once_gone_for(lasted) {
        OnStoreError::Local { shares } if policy.is_durable() => shares,
        _ => return None,
    };
    let algorithm = policy.algorithm().smallest_share(shares)?;
    Policy::new(policy.name(), algorithm).ok()
}

/// The denial of a policy that cannot count.
pub(super) fn denied(limit: u64) -> Decision {
    let snapshot = Snapshot::new(limit, 0, COME_AGAIN, COME_AGAIN);
    Decision::Deny { snapshot, retry: Retry::After(COME_AGAIN) }
}
