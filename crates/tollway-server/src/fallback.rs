//! What a policy answered in place of its store: to count it, and to say so where it denied.

use tollway_core::fields::Problem;
use tollway_core::{Decision, Mode, OnStoreError, Policy, named_enum};

use crate::rules::{Ask, Treatment};

named_enum! {
    /// What a policy answered in place of its store.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Fallback {
        /// It denied.
        Deny = "deny",
        /// It allowed.
        Allow = "allow",
        /// This process's share of the quota decided.
        Local = "local",
        /// It told the caller that the store is gone.
        Unavailable = "unavailable",
    }
}

impl Fallback {
    /// The header field that a degraded denial carries.
    pub(crate) const FIELD: &'static str = "Tollway-Degraded";

    /// What a degraded decision on an ask was.
    pub(crate) fn of(ask: &Ask<'_>, decision: &Decision) -> Self {
        if ask.treatment == Treatment::Shadow || ask.charge.mode == Mode::Count {
            return Self::Allow;
        }
        Self::by(ask.charge.policy, decision)
    }

    /// What a policy's degraded decision was.
    pub(crate) fn by(policy: &Policy, decision: &Decision) -> Self {
        let snapshot = decision.snapshot();
        match policy.store_error() {
            OnStoreError::Local { .. } => Self::Local,
            // Whoever is allowed by a share has taken of it; allowing alone takes nothing.
            OnStoreError::AllowThenLocal { .. }
                if !decision.is_allowed() || snapshot.remaining() < snapshot.limit() =>
            {
                Self::Local
            }
            _ if decision.is_allowed() => Self::Allow,
            _ => Self::Deny,
        }
    }

    /// The problem of a request that was denied so.
    pub(crate) const fn problem(self) -> (Problem, &'static str) {
        match self {
            Self::Local => (
                Problem::QuotaExceeded,
                "The limit store is unavailable, and this node's share of the quota is spent.",
            ),
            // Nobody knows what the client has spent: it is not told that it was too much.
            _ => (
                Problem::TemporaryReducedCapacity,
                "The limit store is unavailable, and the policy denies until it is back.",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollway_core::{Retry, Snapshot};

    use super::*;

    #[test]
    fn each_answer_in_place_of_the_store_is_told_apart() {
        let at_most = Duration::from_secs(1);
        let snapshot = |left| Snapshot::new(5, left, Duration::ZERO, Duration::ZERO);
        let allowed = |left| Decision::Allow(snapshot(left));
        let denied = Decision::Deny { snapshot: snapshot(0), retry: Retry::After(at_most) };
        let (allow, both) =
            (OnStoreError::Allow { at_most }, OnStoreError::AllowThenLocal { at_most, shares: 1 });
        for (on_store_error, decision, expected) in [
            (OnStoreError::Deny, denied, Fallback::Deny),
            (allow, allowed(5), Fallback::Allow),
            (allow, denied, Fallback::Deny),
            (OnStoreError::Local { shares: 2 }, allowed(4), Fallback::Local),
            (OnStoreError::Local { shares: 2 }, denied, Fallback::Local),
            (both, allowed(5), Fallback::Allow),
            (both, allowed(4), Fallback::Local),
            (both, denied, Fallback::Local),
        ] {
            let policy = Policy::parse("api", "5/1s").unwrap().on_store_error(on_store_error);
            assert_eq!(Fallback::by(&policy, &decision), expected, "{on_store_error:?}");
        }
    }
}
