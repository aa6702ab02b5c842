//! Budgets around an HTTP client: a tower layer and a reqwest middleware.
//!
//! ```text
//!  request ─► Ledger::claim (waits) ─► send ─► header fields ─► Permit::complete ─► response
//!                 ▲                                                   │ limited, body replayable,
//!                 └───────────────────────────────────────────────────┘ tries and time left
//! ```
//!
//! A permit is completed by the *header fields* of the answer: who waits for them is released before
//! the body has arrived. A call that is dropped on the way drops its permit, which is safe: the
//! request then counts as one that the upstream may have counted.
//!
//! A refused request (429, or what the profile takes for one) is sent again only if its body can
//! be replayed, at most [`Conduct::retries`] times, and only if its turn comes before the caller's
//! deadline; else the caller gets the upstream's own refusal.
//!
//! Deliberately absent: retries of anything but refusals. A refused request was not carried out;
//! of a failed one nobody knows, and deciding that is the caller's.

#[cfg(feature = "reqwest")]
pub mod reqwest;
#[cfg(feature = "tower")]
pub mod tower;

use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::Instant;

use crate::budget::{Claim, Ledger, Permit, Priority, Refusal};
use crate::message;
use crate::profile::{Observation, Profile, Route};

/// How a client obeys: whose budgets it uses, how long it waits, how often it tries again.
#[derive(Clone, Debug)]
pub struct Conduct {
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
/// use tollway_upstream::client::Asking;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Asking::default().within(Duration::from_secs(2)).high());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Asking {
    deadline: Option<Instant>,
    priority: Priority,
    client: u64,
    weight: u32,
}

impl Conduct {
    /// Obeys `ledger` as `profile` reads the upstream; waits as long as it takes, retries thrice.
    #[must_use]
    pub fn new(ledger: Arc<dyn Ledger>, profile: Arc<Profile>) -> Self {
        Self { ledger, profile, patience: None, retries_max: 3 }
    }

    /// The longest wait of a request that does not say its own.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    /// How often a refused request is sent again.
    #[must_use]
    pub fn retries(self, max: u32) -> Self {
        Self { retries_max: max, ..self }
    }

    /// When a request that starts now must have left.
    fn deadline(&self, asking: &Asking) -> Option<Instant> {
        let own = self.patience.map(|patience| Instant::now() + patience);
        asking.deadline.or(own)
    }

    async fn enter(
        &self,
        route: &Route,
        asking: &Asking,
        deadline: Option<Instant>,
    ) -> Result<Permit, Refusal> {
        let claim = Claim::new(route.clone())
            .client(asking.client)
            .weight(asking.weight)
            .priority(asking.priority);
        let claim = match deadline {
            Some(at) => claim.patience(at.saturating_duration_since(Instant::now())),
            None => claim,
        };
        self.ledger.claim(claim).await
    }

    fn read(&self, status: u16, headers: &HeaderMap, body: &[u8]) -> Observation {
        message::read(&self.profile, status, headers, body)
    }
}

impl Asking {
    /// It must leave within that time from now, or not at all.
    #[must_use]
    pub fn within(self, patience: Duration) -> Self {
        Self { deadline: Some(Instant::now() + patience), ..self }
    }

    /// Somebody waits for it: before the others.
    #[must_use]
    pub const fn high(self) -> Self {
        Self { priority: Priority::High, ..self }
    }

    /// Nobody waits for it: after the others.
    #[must_use]
    pub const fn low(self) -> Self {
        Self { priority: Priority::Low, ..self }
    }

    /// Who asks, and with what share: waiting requests of different clients take turns.
    #[must_use]
    pub const fn client(self, client: u64, weight: u32) -> Self {
        Self { client, weight, ..self }
    }
}
