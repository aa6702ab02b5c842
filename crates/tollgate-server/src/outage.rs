//! Outages of the store as operators are told of them: one line when one begins, one when it ends.
//!
//! ```text
//!   failed call ──> WARN, store_up 0 ──> … ──> a second without failures, and the store
//!   or the store says so                       says that it is well ──> INFO, store_up 1
//! ```
//!
//! A failed call begins one at once. The end is looked for once a second, so that a store that
//! comes and goes makes at most one pair of lines a second, whatever is asked of it. Log, metric and
//! `/readyz` say the same, since all of them ask here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};
use tollgate_core::Timestamp;
use tracing::{info, warn};

use crate::drain::Stop;
use crate::service::Service;

/// Whether the store is out.
#[derive(Debug, Default)]
pub struct Outages(Mutex<Option<Current>>);

/// An outage under way.
#[derive(Clone, Debug)]
pub struct Current {
    /// When it began, by the service's clock.
    pub since: Timestamp,
    /// What went wrong last.
    pub reason: String,
    began: Instant,
    /// Charges decided without the store.
    decided: u64,
    /// Whether a call has failed since the last look.
    is_fresh: bool,
}

const EVERY: Duration = Duration::from_secs(1);

impl Outages {
    /// The outage under way, if there is one.
    #[must_use]
    pub fn current(&self) -> Option<Current> {
        self.lock().clone()
    }

    /// Whether the store answers.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.lock().is_none()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Current>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    /// Notes that the store did not answer for so many charges.
    pub(crate) fn note_outage(&self, charges: u64) {
        let mut current = self.outages().lock();
        let outage = current.get_or_insert_with(|| self.begin_outage());
        outage.decided += charges;
        outage.is_fresh = true;
    }

    /// Looks whether an outage has begun without a call, goes on, or is over.
    pub(crate) fn look_for_outage(&self) {
        let mut current = self.outages().lock();
        match (self.store().outage(), &mut *current) {
            (Some(_), None) => *current = Some(self.begin_outage()),
            (Some(told), Some(outage)) => {
                outage.reason = told.reason;
                outage.is_fresh = false;
            }
            (None, Some(outage)) if outage.is_fresh => outage.is_fresh = false,
            (None, Some(outage)) => {
                let lasted_ms = outage.began.elapsed().as_millis() as u64;
                let (store, degraded) = (self.store_name(), outage.decided);
                info!(store, lasted_ms, degraded, "the store answers again");
                *current = None;
            }
            (None, None) => {}
        }
    }

    fn begin_outage(&self) -> Current {
        let told = self.store().outage();
        // A service that is the store may answer, and say that it could not ask its own.
        let reason = told.as_ref().map_or("the store could not decide", |told| &told.reason);
        let store = self.store_name();
        warn!(store, reason, "the store does not answer: on_store_error of each policy decides");
        let lasted = told.as_ref().map_or(Duration::ZERO, |told| told.lasted);
        Current {
            since: self.clock().now().before(lasted),
            reason: reason.to_owned(),
            began: Instant::now().checked_sub(lasted).unwrap_or_else(Instant::now),
            decided: 0,
            is_fresh: false,
        }
    }
}

/// Looks for outages of the store of `service` until told to stop.
pub(crate) async fn watch(service: Arc<Service>, mut stop: Stop) {
    if service.memory().is_some() {
        return;
    }
    let mut look = interval(EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.stopped() => return,
            _ = look.tick() => service.look_for_outage(),
        }
    }
}
