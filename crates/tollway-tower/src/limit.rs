//! One limit of a layer: which policy, whose key, at what cost, for which requests.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollway_core::PlanSource;

use crate::keys::KeySource;
use crate::{Head, ResponseHead};

pub(crate) type Predicate = Box<dyn Fn(&Head<'_>) -> bool + Send + Sync>;
/// Hands the name of the chosen policy on, if it chooses one.
pub(crate) type Chooser = Box<dyn Fn(&Head<'_>, &mut dyn FnMut(&str)) + Send + Sync>;
pub(crate) type CostOf = Box<dyn Fn(&Head<'_>) -> u64 + Send + Sync>;
pub(crate) type RealCost = Box<dyn Fn(&ResponseHead<'_>, u64) -> u64 + Send + Sync>;

/// What to do with a request that has no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MissingKey {
    /// All such requests share one key of their own: limited together, never free. The default,
    /// because leaving a header out must not be a way round the limit, nor an outage.
    #[default]
    Share,
    /// Refuse with status 403.
    Deny,
    /// Do not apply this limit.
    Skip,
}

/// A policy applied to requests.
///
/// ```
/// use tollway_tower::{Limit, MissingKey, keys::Header};
///
/// let limit = Limit::new("tenant", Header::new("x-api-key")?)
///     .missing_key(MissingKey::Deny)
///     .only_if(|head| head.uri.path().starts_with("/search"))
///     .cost(|head| if head.method == http::Method::GET { 1 } else { 5 });
/// # let _ = limit;
/// # Ok::<(), tollway_tower::LayerError>(())
/// ```
#[must_use]
pub struct Limit {
    pub(crate) policy: String,
    pub(crate) chooser: Option<Chooser>,
    pub(crate) plans: Option<Arc<dyn PlanSource>>,
    pub(crate) key: Box<dyn KeySource>,
    pub(crate) missing: MissingKey,
    pub(crate) only_if: Option<Predicate>,
    pub(crate) cost: Option<CostOf>,
    pub(crate) settle: Option<Settle>,
    pub(crate) shadow: bool,
}

/// How the real cost of a response is known.
pub(crate) enum Settle {
    /// By its head.
    Head(RealCost),
    /// By the bytes of its body.
    Bytes,
    /// By what the handler reported.
    Metered,
}

impl Limit {
    /// The policy of that name in the layer's limiter, for the key that `key` draws.
    pub fn new(policy: impl Into<String>, key: impl KeySource) -> Self {
        Self {
            policy: policy.into(),
            chooser: None,
            plans: None,
            key: Box::new(key),
            missing: MissingKey::default(),
            only_if: None,
            cost: None,
            settle: None,
            shadow: false,
        }
    }

    /// The policy that `choose` names for each request, for the key that `key` draws: plans of
    /// tenants, tiers of accounts.
    ///
    /// `default` holds for every other request: where `choose` names no policy, or a name that the
    /// layer's limiter does not have, or a concurrency policy where `default` is none (or the other
    /// way round). So nobody is free because nobody knows the plan. Choose the strictest policy as
    /// the default.
    ///
    /// Each policy counts a key for itself: who changes the plan starts with the full quota of the
    /// new one. If `choose` panics the request is refused with status 500.
    ///
    /// ```
    /// use tollway_tower::{Limit, keys::Header};
    ///
    /// /// Inserted into the request by the layer that knows the accounts.
    /// #[derive(Clone)]
    /// struct Account { plan: &'static str }
    ///
    /// let limit = Limit::choose(
    ///     "free",
    ///     |head| head.extensions.get::<Account>().map(|account| account.plan),
    ///     Header::new("x-api-key")?,
    /// );
    /// # let _ = limit;
    /// # Ok::<(), tollway_tower::LayerError>(())
    /// ```
    pub fn choose<P: AsRef<str>>(
        default: impl Into<String>,
        choose: impl Fn(&Head<'_>) -> Option<P> + Send + Sync + 'static,
        key: impl KeySource,
    ) -> Self {
        let chooser: Chooser = Box::new(move |head, found| {
            if let Some(name) = choose(head) {
                found(name.as_ref());
            }
        });
        Self { chooser: Some(chooser), ..Self::new(default, key) }
    }

    /// Asks `plans` for the policy of each key: numbers of one customer, from a database. Where
    /// they say nothing the limit's policy holds, or the one that it chooses for the request.
    ///
    /// `tollway_memory::Plans` makes a source of a function and keeps what it says. Give plans the
    /// name of the limit's policy: then used units stay used when a key changes its plan. A plan of
    /// another kind than the limit's policy (one of them a concurrency policy) does not apply, and
    /// a source that panics has said nothing.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollway_core::Policy;
    /// use tollway_memory::Plans;
    /// use tollway_tower::{Limit, keys::Header};
    ///
    /// let pro = Arc::new(Policy::parse("api", "1000/1h").expect("a quota"));
    /// let plans = Plans::new(move |key| (key == b"acme").then(|| Arc::clone(&pro)));
    /// let limit = Limit::new("api", Header::new("x-account")?).plans(Arc::new(plans));
    /// # let _ = limit;
    /// # Ok::<(), tollway_tower::LayerError>(())
    /// ```
    pub fn plans(self, plans: Arc<dyn PlanSource>) -> Self {
        Self { plans: Some(plans), ..self }
    }

    /// What to do with requests that have no key.
    pub fn missing_key(self, missing: MissingKey) -> Self {
        Self { missing, ..self }
    }

    /// Applies only to requests that `applies` picks: policies per route, method or tenant.
    ///
    /// If it panics the request is refused with status 500.
    pub fn only_if(self, applies: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self { only_if: Some(Box::new(applies)), ..self }
    }

    /// Charges that many units instead of one; zero means that the limit does not apply.
    ///
    /// If it panics the request is refused with status 500.
    pub fn cost(self, cost: impl Fn(&Head<'_>) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Some(Box::new(cost)), ..self }
    }

    /// Charges only responses that `counts` picks: failed logins, cache misses.
    ///
    /// The cost is reserved meanwhile, so that attempts in flight at once cannot exceed the limit;
    /// a client that hangs up before the response is charged.
    pub fn charge_if(
        self,
        counts: impl Fn(&ResponseHead<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        let cost = move |head: &ResponseHead<'_>, reserved| if counts(head) { reserved } else { 0 };
        Self { settle: Some(Settle::Head(Box::new(cost))), ..self }
    }

    /// Reserves the cost, then charges what `cost` makes of the response's head.
    pub fn settle_by(
        self,
        cost: impl Fn(&ResponseHead<'_>) -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self { settle: Some(Settle::Head(Box::new(move |head, _| cost(head)))), ..self }
    }

    /// Reserves the cost, then charges the bytes of the response body when it ends.
    pub fn settle_bytes(self) -> Self {
        Self { settle: Some(Settle::Bytes), ..self }
    }

    /// Reserves the cost, then charges what the handler reported to the request's [`Meter`] by the
    /// time the response body ends: LLM tokens, query points.
    pub fn settle_metered(self) -> Self {
        Self { settle: Some(Settle::Metered), ..self }
    }

    /// Counts and observes but never refuses, and is not mentioned in header fields.
    pub fn shadow(self) -> Self {
        Self { shadow: true, ..self }
    }
}

impl fmt::Debug for Limit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Limit").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// Where a handler reports what a request really cost; an extension of the request.
///
/// Unless something was reported, the reserved cost stays charged.
#[derive(Debug, Clone)]
pub struct Meter(Arc<AtomicU64>);

impl Meter {
    const UNREPORTED: u64 = u64::MAX;

    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(Self::UNREPORTED)))
    }

    /// Adds units to what was reported so far. Adding zero is a report too.
    pub fn add(&self, units: u64) {
        let add = |reported: u64| {
            let before = if reported == Self::UNREPORTED { 0 } else { reported };
            Some(before.saturating_add(units).min(Self::UNREPORTED - 1))
        };
        // The closure always returns a value, so this cannot fail.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
    }

    /// What was reported, if anything was.
    pub fn reported(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|&units| units != Self::UNREPORTED)
    }
}
