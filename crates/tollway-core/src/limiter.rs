//! A limiter over any store: policies, a store and a clock.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::charge::{Key, KeyError};
use crate::spelling::unknown;
use crate::store::{Answer, Grant, ReservationId, Reserved, Settlement, Store, StoreError};
use crate::{Algorithm, Charge, Clock, PlanSource, Policy, Snapshot, Timestamp, Verdict};

/// Policies, a store and a clock. Clones share all three.
///
/// Names become policies and bytes become keys in [`Self::charge`]; everything else takes charges,
/// reads the clock once and asks the store.
#[derive(Clone)]
pub struct StoreLimiter {
    policies: Arc<BTreeMap<String, Policy>>,
    plans: Option<Arc<PlansByPolicy>>,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
}

type PlansByPolicy = BTreeMap<String, Arc<dyn PlanSource>>;

impl StoreLimiter {
    /// A limiter that enforces `policies` in `store` by `clock`. Of policies with one name, the
    /// last counts.
    pub fn new(
        policies: impl IntoIterator<Item = Policy>,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let by_name = policies.into_iter().map(|policy| (String::from(policy.name()), policy));
        Self { policies: Arc::new(by_name.collect()), plans: None, store, clock }
    }

    /// The same limiter, which asks `plans` for the policy of each key that is charged under the
    /// policy named `policy`; that one holds for keys of which they say nothing. Give plans its
    /// name: then used units stay used when a key changes its plan. A plan of another kind (one of
    /// the two a concurrency policy) does not apply.
    ///
    /// Plans are asked at every call, so they must answer at once and must not panic.
    /// `tollway_memory::Plans` makes such a source of any function: it keeps what the function
    /// says, and what it said last where it fails or panics.
    ///
    /// # Errors
    ///
    /// If there is no such policy.
    pub fn with_plans(
        self,
        policy: &str,
        plans: Arc<dyn PlanSource>,
    ) -> Result<Self, UnknownPolicy> {
        if !self.policies.contains_key(policy) {
            let policies = self.policies;
            return Err(UnknownPolicy { asked: String::from(policy), policies });
        }
        let mut all = self.plans.as_deref().cloned().unwrap_or_default();
        all.insert(String::from(policy), plans);
        Ok(Self { plans: Some(Arc::new(all)), ..self })
    }

    /// The policies, by name.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.policies.values()
    }

    /// The policy of this name.
    pub fn policy(&self, name: &str) -> Option<&Policy> {
        self.policies.get(name)
    }

    /// One unit of the policy named `policy` for `key`.
    ///
    /// # Errors
    ///
    /// If there is no such policy, or the bytes are no key.
    pub fn charge<'a, B>(&'a self, policy: &str, key: &'a B) -> Result<Charge<'a>, ChargeError>
    where
        B: AsRef<[u8]> + ?Sized,
    {
        let policy = self.policies.get(policy).ok_or_else(|| self.unknown(policy))?;
        Ok(Charge::new(policy, Key::new(key).map_err(ChargeError::Key)?))
    }

    #[cold]
    fn unknown(&self, asked: &str) -> ChargeError {
        let policies = Arc::clone(&self.policies);
        ChargeError::UnknownPolicy(UnknownPolicy { asked: String::from(asked), policies })
    }

    /// Takes every charge if all are allowed, or none.
    #[inline]
    pub fn check(&self, charges: &[Charge<'_>]) -> Answer<Verdict> {
        self.ask(charges, |charges, now| self.store.check(charges, now))
    }

    /// Takes one charge where all that matters is whether it is allowed; see [`Store::admit`].
    #[inline]
    pub fn admit(&self, charge: &Charge<'_>) -> Option<Answer<Verdict>> {
        self.ask_one(charge, |charge, now| self.store.admit(charge, now))
    }

    /// What [`Self::check`] would answer, with nothing taken.
    pub fn peek(&self, charges: &[Charge<'_>]) -> Answer<Verdict> {
        self.ask(charges, |charges, now| self.store.peek(charges, now))
    }

    /// Takes as many units as there are, up to the cost of the charge.
    pub fn take(&self, charge: &Charge<'_>) -> Answer<Grant> {
        self.ask_one(charge, |charge, now| self.store.take(charge, now))
    }

    /// Gives the charge's units back.
    pub fn refund(&self, charge: &Charge<'_>) -> Answer<Snapshot> {
        self.ask_one(charge, |charge, now| self.store.refund(charge, now))
    }

    /// Forgets the charge's key under its policy.
    pub fn reset(&self, charge: &Charge<'_>) -> Answer<()> {
        self.ask_one(charge, |charge, now| self.store.reset(charge, now))
    }

    /// Takes every charge if all are allowed, to be settled later.
    #[inline]
    pub fn reserve(&self, charges: &[Charge<'_>]) -> Answer<Reserved> {
        self.ask(charges, |charges, now| self.store.reserve(charges, now))
    }

    /// Settles a reservation at its real costs; see [`Store::commit`].
    pub fn commit(&self, reservation: ReservationId, costs: &[u64]) -> Answer<Settlement> {
        self.store.commit(reservation, costs, self.clock.now())
    }

    /// Settles a reservation by giving everything back.
    pub fn cancel(&self, reservation: ReservationId) -> Answer<Settlement> {
        self.store.cancel(reservation, self.clock.now())
    }

    /// Gives everything back without waiting for the store; see [`Store::release`].
    pub fn release(&self, reservation: ReservationId) {
        self.store.release(reservation, self.clock.now());
    }

    /// Reserves the charges and holds them until the permit is dropped: a slot in flight.
    ///
    /// # Errors
    ///
    /// If the store fails. A denial is not an error: it is the verdict without a permit.
    ///
    /// # Cancel safety
    ///
    /// Dropped while the store answers, the slot stays taken until its lease ends.
    pub async fn permit(
        &self,
        charges: &[Charge<'_>],
    ) -> Result<(Verdict, Option<Permit>), StoreError> {
        let Reserved { verdict, reservation } = self.reserve(charges).await?;
        let permit =
            reservation.map(|reservation| Permit { id: reservation.id, limiter: self.clone() });
        Ok((verdict, permit))
    }

    /// Asks by the plans of the keys, at the time that it is.
    #[inline]
    fn ask<R>(&self, charges: &[Charge<'_>], ask: impl FnOnce(&[Charge<'_>], Timestamp) -> R) -> R {
        let now = self.clock.now();
        match &self.plans {
            None => ask(charges, now),
            Some(sources) => {
                let plans = plans_of(sources, charges, now);
                let planned: Vec<Charge<'_>> = charges
                    .iter()
                    .zip(&plans)
                    .map(|(charge, plan)| match plan {
                        Some(policy) => Charge { policy, ..*charge },
                        None => *charge,
                    })
                    .collect();
                ask(&planned, now)
            }
        }
    }

    #[inline]
    fn ask_one<R>(&self, charge: &Charge<'_>, ask: impl FnOnce(&Charge<'_>, Timestamp) -> R) -> R {
        self.ask(core::slice::from_ref(charge), |charges, now| {
            ask(charges.first().unwrap_or(charge), now)
        })
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }
}

/// The plans of the keys that have any. Out of the way of limiters without plans.
#[cold]
fn plans_of(
    sources: &PlansByPolicy,
    charges: &[Charge<'_>],
    now: Timestamp,
) -> Vec<Option<Arc<Policy>>> {
    let is_held = |policy: &Policy| matches!(policy.algorithm(), Algorithm::Concurrency(_));
    let plan = |charge: &Charge<'_>| {
        let plan = sources.get(charge.policy.name())?.plan(charge.key.as_bytes(), now)?;
        (is_held(&plan) == is_held(charge.policy)).then_some(plan)
    };
    charges.iter().map(plan).collect()
}

impl fmt::Debug for StoreLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreLimiter").field("policies", &self.policies).finish_non_exhaustive()
    }
}

/// A slot in flight, released when dropped.
#[must_use = "a permit is released as soon as it is dropped"]
pub struct Permit {
    id: ReservationId,
    limiter: StoreLimiter,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limiter.release(self.id);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permit").field(&self.id).finish()
    }
}

/// Why a name and bytes do not make a charge.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChargeError {
    /// No policy has this name.
    UnknownPolicy(UnknownPolicy),
    /// The bytes are no key.
    Key(KeyError),
}

impl fmt::Display for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownPolicy(unknown) => unknown.fmt(f),
            Self::Key(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ChargeError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::UnknownPolicy(_) => None,
            Self::Key(error) => Some(error),
        }
    }
}

/// The name that was asked for, and the names of the policies that there are.
#[derive(Clone)]
pub struct UnknownPolicy {
    asked: String,
    /// Shared with the limiter: an error in a loop copies one name, not thousands.
    policies: Arc<BTreeMap<String, Policy>>,
}

impl UnknownPolicy {
    /// The name that was asked for.
    pub fn asked(&self) -> &str {
        &self.asked
    }

    /// The names of the policies that the limiter has, in order.
    pub fn known(&self) -> impl Iterator<Item = &str> + Clone {
        self.policies.keys().map(String::as_str)
    }
}

impl PartialEq for UnknownPolicy {
    fn eq(&self, other: &Self) -> bool {
        self.asked == other.asked && self.known().eq(other.known())
    }
}

impl Eq for UnknownPolicy {}

impl fmt::Debug for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnknownPolicy({self})")
    }
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&unknown("policy", &self.asked, self.known()))
    }
}
