//! Outages as operators are told of them: one line when one begins, one when it ends.
//!
//! The service may have two stores, that of its policies and that of its queues; both are watched
//! alike. When an outage begins and ends is said in [`tollway_core::outages`]. Log, metric and
//! `/readyz` say the same, since all of them ask here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};
use tollway_core::outages::{Episode, OutageEvent, Outages};
use tollway_core::{Outage, Timestamp};
use tracing::{info, warn};

use crate::drain::Stop;
use crate::metrics::Exposition;
use crate::service::Service;

/// Whether a store is out, and in which words its outages are logged.
#[derive(Debug)]
pub(crate) struct OutageLog {
    outages: Mutex<Outages>,
    words: Words,
}

/// What the log says of a store's outages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    /// When one begins.
    pub began: &'static str,
    /// When one ends.
    pub ended: &'static str,
}

/// What the log says of the store of the policies.
pub(crate) const OF_POLICIES: Words = Words {
    began: "the store does not answer: on_store_error of each policy decides",
    ended: "the store answers again",
};

/// What the log says of the store of the queues.
pub(crate) const OF_QUEUES: Words = Words {
    began: "the queue store does not answer: calls to queues are answered 503",
    ended: "the queue store answers again",
};

const EVERY: Duration = Duration::from_secs(1);

impl OutageLog {
    pub(crate) fn new(words: Words) -> Self {
        Self { outages: Mutex::default(), words }
    }

    /// The outage under way, if there is one.
    pub(crate) fn current(&self) -> Option<Episode> {
        self.lock().current().cloned()
    }

    /// Whether the store answers.
    pub(crate) fn is_up(&self) -> bool {
        self.lock().is_up()
    }

    /// Notes that `store` did not answer for so many of what it was asked.
    pub(crate) fn failed(
        &self,
        store: &str,
        told: impl FnOnce() -> Option<Outage>,
        unanswered: u64,
        now: Timestamp,
    ) {
        // Logged under the lock: otherwise the end may be logged before the beginning.
        let mut outages = self.lock();
        self.tell(store, outages.failed(told, unanswered, now));
    }

    /// Looks whether an outage of `store` has begun without a call, goes on, or is over.
    pub(crate) fn look(&self, store: &str, told: Option<&Outage>, now: Timestamp) {
        let mut outages = self.lock();
        self.tell(store, outages.look(told, now));
    }

    /// What `/readyz` says; why, only to whoever may know.
    pub(crate) fn readiness(&self, tells_why: bool) -> Value {
        let outage = self.current();
        let since_ms = outage.as_ref().map(|outage| outage.since.as_nanos() / 1_000_000);
        let last_error = outage.as_ref().map(|outage| &outage.reason).filter(|_| tells_why);
        json!({"up": outage.is_none(), "since_ms": since_ms, "last_error": last_error})
    }

    /// Writes the gauge called `name`.
    pub(crate) fn write(
        &self,
        (name, help): (&str, &str),
        labels: &[(&str, &str)],
        text: &mut Exposition,
    ) {
        text.family(name, "gauge", help);
        text.sample(labels, f64::from(u8::from(self.is_up())));
    }

    fn tell(&self, store: &str, turn: Option<OutageEvent>) {
        match turn {
            Some(OutageEvent::Began(outage)) => {
                warn!(store, reason = outage.reason, "{}", self.words.began);
            }
            Some(OutageEvent::Ended(outage, lasted)) => {
                let (lasted_ms, degraded) = (lasted.as_millis() as u64, outage.unanswered);
                info!(store, lasted_ms, degraded, "{}", self.words.ended);
            }
            None => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Outages> {
        self.outages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks for outages of the stores of `service` until told to stop.
pub(crate) async fn watch(service: Arc<Service>, mut stop: Stop) {
    let mut look = interval(EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.stopped() => return,
            _ = look.tick() => service.look_for_outage(),
        }
    }
}
