//! One policy enforced in this process: the limiter most programs need.

use std::sync::Arc;

use tollway_core::{
    Charge, Clock, Cost, Decision, Grant, Key, PlanSource, Policy, PolicyError, ReservationId,
    Reserved, Retry, Settlement, Snapshot, State, Timestamp,
};

use crate::{Capacity, MemoryStore, SystemClock};

/// A policy, a [`MemoryStore`] and a clock. Clones share the store.
///
/// Every call is synchronous and cannot fail. A key that is no key (empty, or longer than
/// [`Key::LEN_MAX`]) is denied for ever; check it with [`Key::new`] first where that may happen.
///
/// ```
/// use tollway_memory::Limiter;
///
/// let limiter = Limiter::new("100/1m burst 20")?;
/// let allowed = (0..130).filter(|_| limiter.check("alice").is_allowed()).count();
/// assert_eq!(allowed, 20);
/// assert!(limiter.check("bob").is_allowed());
/// # Ok::<(), tollway_core::PolicyError>(())
/// ```
#[derive(Clone)]
pub struct Limiter {
    pub(crate) policy: Arc<Policy>,
    plans: Option<Arc<dyn PlanSource>>,
    store: Arc<MemoryStore>,
    clock: Arc<dyn Clock>,
    #[cfg(feature = "tokio")]
    pub(crate) waiters: Arc<crate::acquire::Waiters>,
}

impl Limiter {
    /// A limiter for a quota given as text, with room for [`Capacity::default`].
    ///
    /// # Errors
    ///
    /// If the text is no quota; the error points at the character.
    pub fn new(quota: &str) -> Result<Self, PolicyError> {
        Ok(Self::with_policy(Policy::parse("default", quota)?, Capacity::default()))
    }

    /// A limiter for any policy, with room for `capacity`.
    pub fn with_policy(policy: Policy, capacity: Capacity) -> Self {
        let store = Arc::new(MemoryStore::new(capacity));
        Self::with_store(policy, store, Arc::new(SystemClock::new()))
    }

    /// A limiter that keeps its states in `store`, perhaps beside others, and reads `clock`.
    pub fn with_store(policy: Policy, store: Arc<MemoryStore>, clock: Arc<dyn Clock>) -> Self {
        Self {
            policy: Arc::new(policy),
            plans: None,
            store,
            clock,
            #[cfg(feature = "tokio")]
            waiters: Arc::default(),
        }
    }

    /// The same limiter, which asks `plans` for the policy of each key; its own holds for keys of
    /// which they say nothing. Give plans the name of its policy: then used units stay used when a
    /// key changes its plan.
    #[must_use]
    pub fn with_plans(self, plans: Arc<dyn PlanSource>) -> Self {
        Self { plans: Some(plans), ..self }
    }

    /// Takes one unit for `key` if allowed.
    // Always inlined, down to the word that is swapped: who asks only whether it is allowed does
    // not pay for the figures, which cost a division and a third of the instructions.
    #[inline(always)]
    pub fn check(&self, key: impl AsRef<[u8]>) -> Decision {
        self.check_cost(key, Cost::ONE)
    }

    /// Takes `cost` units for `key` if allowed.
    #[inline(always)]
    pub fn check_cost(&self, key: impl AsRef<[u8]>, cost: Cost) -> Decision {
        let Ok(key) = Key::new(key.as_ref()) else { return self.no_key() };
        if self.plans.is_some() {
            return self.check_planned(key, cost);
        }
        self.store.check_by(&Charge::new(&self.policy, key).cost(cost), &*self.clock)
    }

    /// Looks at `key` and takes nothing.
    pub fn peek(&self, key: impl AsRef<[u8]>) -> Snapshot {
        self.ask(key.as_ref(), Cost::ONE, |charge, now| self.store.peek(charge, now))
            .unwrap_or_else(|| self.no_key().snapshot())
    }

    /// Takes as many units for `key` as there are, up to `cost`.
    pub fn take(&self, key: impl AsRef<[u8]>, cost: Cost) -> Grant {
        self.ask(key.as_ref(), cost, |charge, now| self.store.take(charge, now))
            .unwrap_or_else(|| Grant::new(self.no_key(), cost))
    }

    /// Gives `cost` units back to `key`.
    pub fn refund(&self, key: impl AsRef<[u8]>, cost: Cost) {
        self.ask(key.as_ref(), cost, |charge, now| self.store.refund(charge, now));
    }

    /// Forgets `key`.
    pub fn reset(&self, key: impl AsRef<[u8]>) {
        self.ask(key.as_ref(), Cost::ONE, |charge, now| self.store.reset(charge, now));
    }

    /// Takes `cost` units for `key`, to be settled by [`Self::commit`] or [`Self::cancel`].
    pub fn reserve(&self, key: impl AsRef<[u8]>, cost: Cost) -> Reserved {
        let reserve =
            |charge: &Charge<'_>, now| self.store.reserve(core::slice::from_ref(charge), now);
        self.ask(key.as_ref(), cost, reserve).unwrap_or_else(|| Reserved {
            verdict: tollway_core::Verdict::one(self.no_key()),
            reservation: None,
        })
    }

    /// Settles a reservation at what it really cost.
    pub fn commit(&self, reservation: ReservationId, cost: u64) -> Settlement {
        self.store.commit(reservation, &[cost], self.clock.now())
    }

    /// Settles a reservation by giving everything back.
    pub fn cancel(&self, reservation: ReservationId) -> Settlement {
        self.store.cancel(reservation, self.clock.now())
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The store.
    pub fn store(&self) -> &Arc<MemoryStore> {
        &self.store
    }

    /// What a check would answer to somebody who has to wait anyhow.
    #[cfg(feature = "tokio")]
    pub(crate) fn would_be(&self, key: &[u8], cost: Cost) -> Decision {
        let peek = |charge: &Charge<'_>, now| {
            self.store.peek_all(core::slice::from_ref(charge), now).decisions()[0]
        };
        match self.ask(key, cost, peek) {
            Some(Decision::Allow(snapshot)) => {
                Decision::Deny { snapshot, retry: Retry::After(core::time::Duration::ZERO) }
            }
            Some(denied) => denied,
            None => self.no_key(),
        }
    }

    #[inline]
    fn ask<R>(
        &self,
        key: &[u8],
        cost: Cost,
        ask: impl FnOnce(&Charge<'_>, Timestamp) -> R,
    ) -> Option<R> {
        let key = Key::new(key).ok()?;
        let now = self.clock.now();
        let plan = self.plans.as_ref().and_then(|plans| plans.plan(key.as_bytes(), now));
        let policy = plan.as_ref().unwrap_or(&self.policy);
        Some(ask(&Charge::new(policy, key).cost(cost), now))
    }

    /// Out of the way of limiters without plans.
    #[inline(never)]
    fn check_planned(&self, key: Key<'_>, cost: Cost) -> Decision {
        let check = |charge: &Charge<'_>, now| self.store.check(charge, now);
        self.ask(key.as_bytes(), cost, check).unwrap_or_else(|| self.no_key())
    }

    #[cold]
    fn no_key(&self) -> Decision {
        let algorithm = self.policy.algorithm();
        let snapshot = State::vacant(algorithm).peek(algorithm, self.clock.now());
        Decision::Deny { snapshot, retry: Retry::Never }
    }
}

impl core::fmt::Debug for Limiter {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Limiter").field("policy", &self.policy).finish_non_exhaustive()
    }
}
