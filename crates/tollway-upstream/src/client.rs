//! Budgets around an HTTP client: a tower layer and a reqwest middleware.
//!
//! ```text
//!  request ─► Ledger::claim (waits) ─► send ─► header fields ─► Permit::complete ─► response
//!                 ▲                                                   │ limited, body replayable,
//!                 └───────────────────────────────────────────────────┘ tries and time left
//! ```
//!
//! A permit is completed by the *header fields* of the answer: who waits for them is released
//! before the body has arrived. A call that is dropped on the way drops its permit, which is safe:
//! the request then counts as one that the upstream may have counted.
//!
//! A refused request (429, or what the profile takes for one) is sent again only if its body can be
//! replayed, at most [`ClientSettings::retries`] times, and only if its turn comes before the
//! caller's deadline; else the caller gets the upstream's own refusal.
//!
//! Deliberately absent: retries of anything but refusals. A refused request was not carried out;
//! of a failed one nobody knows, and deciding that is the caller's.

#[cfg(feature = "reqwest")]
pub mod reqwest;
#[cfg(feature = "tower")]
pub mod tower;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::budget::{Claim, Correction, Ledger, Permit, Priority, Refusal};
use crate::profile::{DIMENSIONS_MAX, Observation, Profile, Route, Usage};

/// How a client obeys: whose budgets it uses, how long it waits, how often it tries again.
#[derive(Clone, Debug)]
#[must_use]
pub struct ClientSettings {
    ledger: Arc<dyn Ledger>,
    profile: Arc<Profile>,
    patience: Option<Duration>,
    retries_max: u32,
}

/// What one request asks of the line, put into its extensions. Nothing of it is sent.
///
/// ```
/// use std::time::Duration;
/// use tollway_upstream::budget::Priority;
/// use tollway_upstream::client::ClaimOptions;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(ClaimOptions::default().within(Duration::from_secs(2)).high());
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct ClaimOptions {
    deadline: Option<Instant>,
    priority: Priority,
    client: u64,
    weight: u32,
    costs: [Option<(&'static str, u32)>; DIMENSIONS_MAX],
}

impl ClientSettings {
    /// Obeys `ledger` as `profile` reads the upstream; waits as long as it takes, retries thrice.
    pub fn new(ledger: Arc<dyn Ledger>, profile: Arc<Profile>) -> Self {
        Self { ledger, profile, patience: None, retries_max: 3 }
    }

    /// The longest wait of a request that does not say its own.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// How often a refused request is sent again.
    pub fn retries(self, max: u32) -> Self {
        Self { retries_max: max, ..self }
    }

    /// The attempts at one request, the first of which starts now.
    fn attempts<R>(
        &self,
        options: Option<&ClaimOptions>,
        route: Route,
    ) -> Result<Attempts<'_, R>, Refusal> {
        let options = options.copied().unwrap_or_default();
        let now = Instant::now();
        let deadline = options.deadline.or(self.patience.map(|patience| now + patience));
        let mut claim = Claim::new(route)
            .client(options.client)
            .weight(options.weight)
            .priority(options.priority);
        for (name, units) in options.costs.into_iter().flatten() {
            claim = claim.cost_named(&self.profile, name, units)?;
        }
        let (retries, refused) = (self.retries_max, None);
        Ok(Attempts { settings: self, claim, deadline, retries, refused, left: now })
    }
}

/// The attempts at one request: its claim, what is left of its retries, the last refusal.
struct Attempts<'s, R> {
    settings: &'s ClientSettings,
    claim: Claim,
    deadline: Option<Instant>,
    retries: u32,
    refused: Option<R>,
    /// When the last of them got its permit.
    left: Instant,
}

impl<R> Attempts<'_, R> {
    /// Waits for a permit. Without one the caller gets the upstream's own refusal, if there was
    /// one: its words say more than ours.
    async fn permit(&mut self) -> Result<Permit, Result<R, Refusal>> {
        let mut claim = self.claim.clone();
        claim.patience =
            self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let refused = &mut self.refused;
        let permit = self.settings.ledger.claim(claim).await;
        self.left = Instant::now();
        permit.map_err(|ours| refused.take().ok_or(ours))
    }

    /// Tells the ledger what the request really took, where its answer says so.
    fn correct(&self, observation: &Observation, usage: &Usage) {
        let ago = self.left.elapsed();
        if let Some(correction) = Correction::of(&self.claim, observation, usage, ago) {
            self.settings.ledger.correct(&correction);
        }
    }

    /// A copy of the request for another attempt, if there may be one.
    fn spare<Q>(&self, copy: impl FnOnce() -> Option<Q>) -> Option<Q> {
        if self.retries == 0 { None } else { copy() }
    }

    /// Learns from an answer: the request to send again, or else the response.
    fn settle<Q>(
        &mut self,
        permit: Permit,
        (observation, usage): (&Observation, &Usage),
        response: R,
        spare: Option<Q>,
    ) -> Result<Q, R> {
        permit.complete(observation);
        self.correct(observation, usage);
        let Some(next) = spare.filter(|_| observation.is_limited()) else { return Err(response) };
        self.retries -= 1;
        self.refused = Some(response);
        Ok(next)
    }
}

impl ClaimOptions {
    /// It must leave within that time from now, or not at all.
    pub fn within(self, patience: Duration) -> Self {
        Self { deadline: Some(Instant::now() + patience), ..self }
    }

    /// Somebody waits for it: before the others.
    pub const fn high(self) -> Self {
        Self { priority: Priority::High, ..self }
    }

    /// Nobody waits for it: after the others.
    pub const fn low(self) -> Self {
        Self { priority: Priority::Low, ..self }
    }

    /// What it takes from the dimension of that name in the profile, such as an estimate of its
    /// tokens. Of more names than a profile has dimensions the last are ignored.
    ///
    /// ```
    /// use tollway_upstream::client::ClaimOptions;
    ///
    /// let options = ClaimOptions::default().cost("tokens", 1_200);
    /// # let _ = options;
    /// ```
    pub fn cost(mut self, dimension: &'static str, units: u32) -> Self {
        let is_its = |of: &&mut Option<(&str, u32)>| of.is_none_or(|(name, _)| name == dimension);
        if let Some(place) = self.costs.iter_mut().find(is_its) {
            *place = Some((dimension, units));
        }
        self
    }

    /// Who asks, and with what share: waiting requests of different clients take turns.
    pub const fn client(self, client: u64, weight: u32) -> Self {
        Self { client, weight, ..self }
    }
}
