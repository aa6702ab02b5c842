//! What a store answers: allow or deny, what is left, and when to come back.

use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::{ErrorKind, Timestamp};

/// What is reported about one key under one policy.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub(crate) limit: u64,
    /// More than the limit says that exactly all of it is used: two words for one figure would
    /// make every answer larger.
    left: u64,
    pub(crate) reset_after_ns: u64,
    pub(crate) next_after_ns: u64,
}

impl Snapshot {
    /// A snapshot from its figures, for stores and fronts that got them from elsewhere.
    pub const fn new(limit: u64, remaining: u64, reset_after: Duration, next: Duration) -> Self {
        Self {
            limit,
            left: if remaining > limit { limit } else { remaining },
            reset_after_ns: crate::time::saturating_nanos(reset_after),
            next_after_ns: crate::time::saturating_nanos(next),
        }
    }

    /// A snapshot from its figures; `remaining` is at most `limit`.
    #[inline]
    pub(crate) const fn of(
        limit: u64,
        remaining: u64,
        reset_after_ns: u64,
        next_after_ns: u64,
    ) -> Self {
        Self { limit, left: remaining, reset_after_ns, next_after_ns }
    }

    /// The same, of a key that has used `used` of the limit in all, which may be more.
    #[inline]
    pub(crate) fn used(limit: u64, used: u128, reset_after_ns: u64, next_after_ns: u64) -> Self {
        let is_exactly_spent = used == u128::from(limit);
        let left = u128::from(limit).saturating_sub(used) as u64;
        let left = if is_exactly_spent && limit < u64::MAX { u64::MAX } else { left };
        Self { limit, left, reset_after_ns, next_after_ns }
    }

    /// Whether the whole limit is used and not one unit more: what is counted whatever was left may
    /// use more than there was. False where that is not known: of a bucket, which holds no more
    /// than the limit, and of figures from elsewhere.
    pub const fn is_exactly_spent(self) -> bool {
        self.left > self.limit
    }

    /// The most units that one request can ever take.
    pub const fn limit(self) -> u64 {
        self.limit
    }

    /// Units that a request could take now; never more than the limit.
    pub const fn remaining(self) -> u64 {
        if self.left > self.limit { 0 } else { self.left }
    }

    /// How long until the key is as good as new.
    pub const fn reset_after(self) -> Duration {
        Duration::from_nanos(self.reset_after_ns)
    }

    /// When the key is as good as new, if this was reported at `now`.
    pub const fn reset_at(self, now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(now.as_nanos().saturating_add(self.reset_after_ns))
    }

    /// How long until more units remain than now; zero if all of them do.
    pub const fn next_after(self) -> Duration {
        Duration::from_nanos(self.next_after_ns)
    }

    /// The same figures for somebody whose clock reads `now`, if they were true as of `moment`,
    /// which is not earlier: the waits are as much longer. What was over then is over now.
    #[must_use]
    pub fn told_at(self, now: Timestamp, moment: Timestamp) -> Self {
        let late_ns = moment.as_nanos().saturating_sub(now.as_nanos());
        let told = |wait_ns: u64| if wait_ns == 0 { 0 } else { wait_ns.saturating_add(late_ns) };
        Self {
            reset_after_ns: told(self.reset_after_ns),
            next_after_ns: told(self.next_after_ns),
            ..self
        }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("limit", &self.limit)
            .field("remaining", &self.remaining())
            .field("reset_after", &self.reset_after())
            .field("next_after", &self.next_after())
            .finish()
    }
}

/// When a denied charge is worth another try. Ordered: `Never` is the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// The same charge is allowed after exactly this long if nobody else asks meanwhile.
    After(Duration),
    /// No wait can help: the charge costs more than the policy ever holds.
    Never,
}

impl Retry {
    pub(crate) const fn after_nanos(nanos: u64) -> Self {
        Self::After(Duration::from_nanos(nanos))
    }

    /// How long to wait, if waiting helps.
    pub const fn after(self) -> Option<Duration> {
        match self {
            Self::After(duration) => Some(duration),
            Self::Never => None,
        }
    }
}

/// The answer to one charge. A denial is not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a denial is not an error: who does not look lets everybody pass"]
pub enum Decision {
    /// The units were taken; the snapshot shows what is left.
    Allow(Snapshot),
    /// Nothing was taken.
    Deny {
        /// What is left.
        snapshot: Snapshot,
        /// When to come back.
        retry: Retry,
    },
}

impl Decision {
    /// Whether the units were taken.
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow(_))
    }

    /// What is left.
    pub const fn snapshot(&self) -> Snapshot {
        match self {
            Self::Allow(snapshot) | Self::Deny { snapshot, .. } => *snapshot,
        }
    }

    /// When to come back, if denied.
    pub const fn retry(&self) -> Option<Retry> {
        match self {
            Self::Allow(_) => None,
            Self::Deny { retry, .. } => Some(*retry),
        }
    }

    /// The same decision for somebody whose clock reads `now`, if it was made as of `moment`; see
    /// [`Snapshot::told_at`].
    pub fn told_at(self, now: Timestamp, moment: Timestamp) -> Self {
        match self {
            Self::Allow(snapshot) => Self::Allow(snapshot.told_at(now, moment)),
            Self::Deny { snapshot, retry } => {
                let late = moment.since(now);
                let retry = match retry {
                    Retry::After(wait) => Retry::After(wait.saturating_add(late)),
                    Retry::Never => Retry::Never,
                };
                Self::Deny { snapshot: snapshot.told_at(now, moment), retry }
            }
        }
    }
}

/// The answer to one request: a decision per charge, in order, taken all together or not at all.
///
/// If any charge is denied then nothing is taken for any of them; an `Allow` beside a denial says
/// that this charge was not the obstacle, and its snapshot shows the key untouched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a denial is not an error: who does not look lets everybody pass"]
pub struct Verdict {
    decisions: Decisions,
    denied_by: Option<usize>,
    /// Why the store did not decide, if it did not.
    store_failure: Option<ErrorKind>,
    /// The owner whose floor or ceiling denied, of the tree that the charge is about.
    denied_by_owner: Option<u16>,
}

/// One decision needs no allocation: most requests are one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decisions {
    One(Decision),
    Many(Vec<Decision>),
}

impl Verdict {
    /// The verdict on a request of several charges.
    pub fn new(decisions: Vec<Decision>) -> Self {
        let denied_by = latest_denial(&decisions);
        let (store_failure, denied_by_owner) = (None, None);
        Self { decisions: Decisions::Many(decisions), denied_by, store_failure, denied_by_owner }
    }

    /// The verdict on a request of one charge.
    pub const fn one(decision: Decision) -> Self {
        let denied_by = if decision.is_allowed() { None } else { Some(0) };
        let (store_failure, denied_by_owner) = (None, None);
        Self { decisions: Decisions::One(decision), denied_by, store_failure, denied_by_owner }
    }

    /// The same verdict, marked as made without the store: its policy for store failure decided.
    pub fn degraded(self) -> Self {
        self.degraded_by(ErrorKind::Unavailable)
    }

    /// The same, with the kind of failure.
    pub fn degraded_by(self, failure: ErrorKind) -> Self {
        Self { store_failure: Some(failure), ..self }
    }

    /// Whether every charge was taken.
    pub const fn is_allowed(&self) -> bool {
        self.denied_by.is_none()
    }

    /// Whether a failure policy answered in place of the store.
    pub const fn is_degraded(&self) -> bool {
        self.store_failure.is_some()
    }

    /// The failure in whose place a policy answered, if one did.
    pub const fn store_failure(&self) -> Option<ErrorKind> {
        self.store_failure
    }

    /// The index of the charge that denied; of several, the one to wait for longest.
    pub const fn denied_by(&self) -> Option<usize> {
        self.denied_by
    }

    /// The number of the owner whose floor and ceiling leave nothing, if the charge that denied is
    /// about a tree of [shares](crate::shares); `None` if the quota as a whole has nothing left.
    pub const fn denied_by_owner(&self) -> Option<usize> {
        match self.denied_by_owner {
            Some(owner) => Some(owner as usize),
            None => None,
        }
    }

    /// The same verdict, denied by this owner of the tree that the charge is about.
    pub fn denied_by_owner_numbered(self, owner: usize) -> Self {
        Self { denied_by_owner: u16::try_from(owner).ok(), ..self }
    }

    /// When the request as a whole is worth another try, if it was denied.
    pub fn retry(&self) -> Option<Retry> {
        self.denied_by.and_then(|index| self.decisions()[index].retry())
    }

    /// The same verdict for somebody whose clock reads `now`, if it was made as of `moment`; see
    /// [`Snapshot::told_at`].
    pub fn told_at(mut self, now: Timestamp, moment: Timestamp) -> Self {
        let decisions = match &mut self.decisions {
            Decisions::One(decision) => core::slice::from_mut(decision),
            Decisions::Many(decisions) => decisions,
        };
        for decision in decisions {
            *decision = decision.told_at(now, moment);
        }
        self
    }

    /// A decision per charge, in the order of the charges.
    pub fn decisions(&self) -> &[Decision] {
        match &self.decisions {
            Decisions::One(decision) => core::slice::from_ref(decision),
            Decisions::Many(decisions) => decisions,
        }
    }
}

fn latest_denial(decisions: &[Decision]) -> Option<usize> {
    let mut latest: Option<(usize, Retry)> = None;
    for (index, decision) in decisions.iter().enumerate() {
        let Some(retry) = decision.retry() else { continue };
        if latest.is_none_or(|(_, longest)| retry > longest) {
            latest = Some((index, retry));
        }
    }
    latest.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deny(retry: Retry) -> Decision {
        Decision::Deny { snapshot: Snapshot::default(), retry }
    }

    #[test]
    fn the_charge_to_wait_for_longest_is_the_one_that_denied() {
        let second = Retry::After(Duration::from_secs(2));
        let first = Retry::After(Duration::from_secs(1));
        let allow = Decision::Allow(Snapshot::default());
        let verdict = Verdict::new(alloc::vec![allow, deny(first), deny(second), deny(second)]);
        assert_eq!((verdict.denied_by(), verdict.retry()), (Some(2), Some(second)));
        let verdict = Verdict::new(alloc::vec![deny(second), deny(Retry::Never)]);
        assert_eq!((verdict.denied_by(), verdict.retry()), (Some(1), Some(Retry::Never)));
        assert!(Verdict::new(alloc::vec![allow, allow]).is_allowed());
    }

    #[test]
    fn a_snapshot_never_shows_more_than_its_limit() {
        assert_eq!(Snapshot::new(5, 9, Duration::ZERO, Duration::ZERO).remaining(), 5);
    }
}
