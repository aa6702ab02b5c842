//! Budgets in this process, for async programs.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::{
    BoxFuture, Budgets, Claim, Ledger, LedgerError, Page, Permit, Reason, Refusal, Settings,
};
use crate::profile::Profile;

/// Budgets in this process. Clones stand for the same budgets: one per credential.
#[derive(Clone)]
pub struct LocalLedger(Arc<Mutex<Budgets>>);

impl LocalLedger {
    /// Budgets of which nothing is known yet.
    #[must_use]
    pub fn new(profile: Arc<Profile>, settings: Settings) -> Self {
        Self(Arc::new(Mutex::new(Budgets::new(profile, settings))))
    }
}

impl fmt::Debug for LocalLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalLedger").finish_non_exhaustive()
    }
}

impl Ledger for LocalLedger {
    fn claim(&self, _claim: Claim) -> BoxFuture<'_, Result<Permit, Refusal>> {
        let wait = Some(Duration::from_secs(1));
        Box::pin(async move { Err(Refusal { reason: Reason::Unavailable, wait }) })
    }

    fn buckets(&self, cursor: u64, max: usize) -> BoxFuture<'_, Result<Page, LedgerError>> {
        let now = tollgate_core::Timestamp::MIN;
        let page = self.0.lock().unwrap_or_else(PoisonError::into_inner).buckets(cursor, max, now);
        Box::pin(async move { Ok(page) })
    }

    fn unlock<'a>(&'a self, _bucket: &'a str) -> BoxFuture<'a, Result<bool, LedgerError>> {
        Box::pin(async move { Ok(false) })
    }

    fn drain<'a>(&'a self, _bucket: &'a str) -> BoxFuture<'a, Result<usize, LedgerError>> {
        Box::pin(async move { Ok(0) })
    }
}
