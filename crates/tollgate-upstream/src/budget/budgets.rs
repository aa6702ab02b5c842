//! The state machine of one credential's budgets.

use std::sync::Arc;

use tollgate_core::Timestamp;

use super::{Claim, Page, Refusal, Settings};
use crate::profile::{Observation, Profile};

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Waiter(pub(crate) u64);

/// A request that may be sent, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[must_use]
pub struct Ticket(pub(crate) u64);

/// How a claim was answered, if not by a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// Send it now.
    Now(Ticket),
    /// It waits; [`Budgets::next`] will name it.
    Later(Waiter),
}

/// The budgets of one credential.
#[derive(Debug)]
pub struct Budgets {
    profile: Arc<Profile>,
    settings: Settings,
}

impl Budgets {
    /// Budgets of which nothing is known yet.
    #[must_use]
    pub fn new(profile: Arc<Profile>, settings: Settings) -> Self {
        Self { profile, settings }
    }

    /// Asks to send a request.
    ///
    /// # Errors
    ///
    /// A refusal: it cannot wait long enough, or too many wait already.
    pub fn claim(&mut self, _claim: &Claim, _now: Timestamp) -> Result<Granted, Refusal> {
        let _ = (&self.profile, &self.settings);
        Ok(Granted::Now(Ticket(0)))
    }

    /// The next request that may go now; call it until there is none.
    pub fn next(&mut self, _now: Timestamp) -> Option<(Waiter, Ticket)> {
        None
    }

    /// The next waiter that has waited longer than it can, with the refusal to give it.
    pub fn expired(&mut self, _now: Timestamp) -> Option<(Waiter, Refusal)> {
        None
    }

    /// When to call [`Self::next`] and [`Self::expired`] again, if nothing else happens before.
    #[must_use]
    pub fn earliest(&self, _now: Timestamp) -> Option<Timestamp> {
        None
    }

    /// Learns from the answer to `ticket`.
    pub fn observe(&mut self, _ticket: Ticket, _observation: &Observation, _now: Timestamp) {}

    /// No answer to `ticket` will come; the upstream may have counted it.
    pub fn abandon(&mut self, _ticket: Ticket, _now: Timestamp) {}

    /// `ticket` was never sent.
    pub fn cancel(&mut self, _ticket: Ticket, _now: Timestamp) {}

    /// A waiter leaves the line.
    pub fn leave(&mut self, _waiter: Waiter, _now: Timestamp) {}

    /// What is known of the buckets, `max` at a time from `cursor` on.
    #[must_use]
    pub fn buckets(&self, _cursor: u64, _max: usize, _now: Timestamp) -> Page {
        Page::default()
    }

    /// Forgets what blocks a bucket; false if there is none of that name.
    pub fn unlock(&mut self, _bucket: &str, _now: Timestamp) -> bool {
        false
    }

    /// Removes everything that waits for a bucket.
    pub fn drain(&mut self, _bucket: &str, _now: Timestamp) -> Vec<Waiter> {
        Vec::new()
    }
}
