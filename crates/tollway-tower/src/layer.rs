//! The layer and its builder.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use tollway_core::fields::Dialect;
use tollway_core::{Policy, StoreLimiter};
use tower_layer::Layer;

#[cfg(feature = "axum")]
use crate::AxumBody;
use crate::demand::{Gated, LIMITS_MAX, holds};
use crate::error::{LayerError, LayerErrorKind};
use crate::gate::{Charging, Gate, Observation, Observer};
use crate::keys::KeySource;
use crate::limit::{Limit, Predicate, Settle};
use crate::outage::Outage;
use crate::refusal::{Refusal, Refusals, Rejection};
use crate::reply::Reply;
use crate::service::RateLimit;
use crate::wait::Waiting;
use crate::{AnyBody, Head};

/// Puts limits in front of a service. Clones, and all services they make, share all limits.
///
/// With concurrency policies it holds permits: a unit is taken for each request and given back when
/// its response body has ended or was dropped.
pub struct RateLimitLayer<W = AnyBody> {
    gate: Arc<Gate>,
    bodies: PhantomData<fn() -> W>,
}

impl RateLimitLayer {
    /// A layer that enforces one policy of `limiter`.
    ///
    /// # Errors
    ///
    /// If the limiter has no policy of that name.
    pub fn new(
        limiter: StoreLimiter,
        policy: impl Into<String>,
        key: impl KeySource,
    ) -> Result<Self, LayerError> {
        Self::builder(limiter).limit(Limit::new(policy, key)).build()
    }

    /// A layer over `limiter`: memory, Redis, or a remote service.
    pub fn builder(limiter: StoreLimiter) -> Builder {
        Builder {
            limiter,
            limits: Vec::new(),
            dialect: Dialect::default(),
            status: StatusCode::TOO_MANY_REQUESTS,
            rejection: None,
            exempt: Vec::new(),
            waiting: None,
            sheds: false,
            observer: None,
            shadow: false,
        }
    }

    /// The same layer for services that answer with axum's body: it saves an allocation per
    /// request. Without it the layer works on axum too.
    #[cfg(feature = "axum")]
    #[must_use]
    pub fn for_axum(self) -> RateLimitLayer<AxumBody> {
        RateLimitLayer { gate: self.gate, bodies: PhantomData }
    }
}

impl<S, W> Layer<S> for RateLimitLayer<W> {
    type Service = RateLimit<S, W>;

    fn layer(&self, inner: S) -> RateLimit<S, W> {
        RateLimit::new(inner, Arc::clone(&self.gate))
    }
}

impl<W> Clone for RateLimitLayer<W> {
    fn clone(&self) -> Self {
        Self { gate: Arc::clone(&self.gate), bodies: PhantomData }
    }
}

impl<W> fmt::Debug for RateLimitLayer<W> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies = self.gate.limits.iter().map(|gated| gated.policy.name());
        out.debug_tuple("RateLimitLayer").field(&policies.collect::<Vec<_>>()).finish()
    }
}

/// Collects the limits and settings of a [`RateLimitLayer`].
#[must_use]
pub struct Builder {
    limiter: StoreLimiter,
    limits: Vec<Limit>,
    dialect: Dialect,
    status: StatusCode,
    rejection: Option<Rejection>,
    exempt: Vec<Predicate>,
    waiting: Option<Waiting>,
    sheds: bool,
    observer: Option<Observer>,
    shadow: bool,
}

impl Builder {
    /// Adds a limit. All limits that apply to a request are taken together or not at all.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limits.push(limit);
        self
    }

    /// Which header fields to answer with; [`Dialect::Draft10`] unless told.
    pub fn dialect(self, dialect: Dialect) -> Self {
        Self { dialect, ..self }
    }

    /// The status of a denial: 429 unless told; nginx's `auth_request` needs 403.
    pub fn status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Makes the response to a refused request instead of the problem+json body. Header fields of
    /// the dialect are added to it. If it panics the default response is sent.
    pub fn reject_with(
        self,
        rejection: impl Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        Self { rejection: Some(Box::new(rejection)), ..self }
    }

    /// Lets requests that `exempt` picks pass without any limit or header field.
    ///
    /// If it panics the request is refused with status 500.
    pub fn exempt(mut self, exempt: impl Fn(&Head<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.exempt.push(Box::new(exempt));
        self
    }

    /// Exempts exactly these paths: health checks.
    pub fn exempt_paths(self, paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let paths: Vec<String> = paths.into_iter().map(Into::into).collect();
        self.exempt(move |head| paths.iter().any(|path| path == head.uri.path()))
    }

    /// Exempts CORS preflights. Anybody can send one: use it where a CORS layer answers them.
    pub fn exempt_preflight(self) -> Self {
        self.exempt(|head| head.is_preflight())
    }

    /// Waits out a denial for up to `at_most` instead of refusing, with at most `places` requests
    /// waiting at once. Where the wait would be longer, or no place is free, refuses at once.
    ///
    /// Requests with the same keys pass in the order in which they came. Needs a tokio runtime with
    /// time.
    pub fn wait(self, at_most: Duration, places: usize) -> Self {
        Self { waiting: Some(Waiting::new(at_most, places)), ..self }
    }

    /// Answers 503 at once, uncharged, while the inner service is not ready, instead of holding the
    /// caller back.
    pub fn shed_load(self) -> Self {
        Self { sheds: true, ..self }
    }

    /// Calls `observer` with every decision, those of shadow limits included. If it panics the
    /// request goes on.
    pub fn observe(self, observer: impl Fn(&Observation<'_>) + Send + Sync + 'static) -> Self {
        Self { observer: Some(Box::new(observer)), ..self }
    }

    /// Makes every limit a shadow: counted and observed, never enforced.
    pub fn shadow(self) -> Self {
        Self { shadow: true, ..self }
    }

    /// The layer.
    ///
    /// # Errors
    ///
    /// If there is no limit or more than eight, if a limit names a policy that the limiter does not
    /// have, if concurrency policies are mixed with others, or are to be settled.
    pub fn build(mut self) -> Result<RateLimitLayer, LayerError> {
        let (limits, shadows) = self.gated()?;
        let charging = charging(&limits)?;
        let is_bare = |Gated { limit, .. }: &Gated| {
            limit.only_if.is_none()
                && limit.cost.is_none()
                && limit.chooser.is_none()
                && limit.plans.is_none()
        };
        let looked_at = self.observer.is_some() || !self.exempt.is_empty() || !shadows.is_empty();
        let is_plain = charging == Charging::Check
            && limits.len() == 1
            && limits.iter().all(is_bare)
            && !looked_at
            && self.waiting.is_none();
        let gate = Gate {
            charging,
            is_plain,
            reply: Reply::new(self.dialect, &limits),
            refusals: Refusals { status: self.status, custom: self.rejection },
            limits: limits.into(),
            shadows: shadows.into(),
            limiter: self.limiter,
            exempt: self.exempt,
            waiting: self.waiting,
            sheds: self.sheds,
            observer: self.observer,
            outage: Outage::new(),
        };
        Ok(RateLimitLayer { gate: Arc::new(gate), bodies: PhantomData })
    }

    /// Enforced and shadow limits, with the policies their names stand for.
    fn gated(&mut self) -> Result<(Vec<Gated>, Vec<Gated>), LayerError> {
        if self.limits.is_empty() {
            return Err(LayerError::no_limits());
        }
        let (mut limits, mut shadows) = (Vec::new(), Vec::new());
        for limit in self.limits.drain(..) {
            let Some(policy) = self.limiter.policy(&limit.policy).cloned() else {
                let names: Vec<&str> = self.limiter.policies().map(Policy::name).collect();
                return Err(LayerError::unknown_policy(&limit.policy, names.iter().copied()));
            };
            let kind = if limit.shadow || self.shadow { &mut shadows } else { &mut limits };
            if kind.len() == LIMITS_MAX {
                let problem = "a layer takes 8 limits; stack a second layer";
                let kind = LayerErrorKind::TooManyLimits;
                return Err(LayerError::in_limit(kind, &limit.policy, problem));
            }
            let others = choosable(&self.limiter, &policy, &limit);
            kind.push(Gated { policy, others, limit });
        }
        Ok((limits, shadows))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Builder").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// The policies that `limit` may apply instead of `usual`, by name. A layer holds permits or takes
/// units, never both: policies of the other kind are none of them.
fn choosable(limiter: &StoreLimiter, usual: &Policy, limit: &Limit) -> Box<[Policy]> {
    if limit.chooser.is_none() {
        return Box::default();
    }
    limiter.policies().filter(|policy| holds(policy) == holds(usual)).cloned().collect()
}

/// How a layer with these limits takes units.
fn charging(limits: &[Gated]) -> Result<Charging, LayerError> {
    let holds = |gated: &Gated| holds(&gated.policy);
    let mut charging = Charging::Check;
    for gated in limits {
        let fail = |kind, problem| Err(LayerError::in_limit(kind, gated.policy.name(), problem));
        if holds(gated) != holds(&limits[0]) {
            let problem = "a layer holds either concurrency or other policies; stack two";
            return fail(LayerErrorKind::MixedKinds, problem);
        }
        charging = match (&gated.limit.settle, charging) {
            (None, _) if holds(gated) => Charging::Hold,
            (Some(_), _) if holds(gated) => {
                let problem = "a concurrency policy has no cost to settle";
                return fail(LayerErrorKind::SettledConcurrency, problem);
            }
            (None, charging) => charging,
            (Some(Settle::Head(_)), Charging::Check) => Charging::SettleAtHead,
            (Some(Settle::Head(_)), charging) => charging,
            (Some(Settle::Bytes | Settle::Metered), _) => Charging::SettleAtEnd,
        };
    }
    Ok(charging)
}
