//! What changed, told once: a line of the log, and an entry in the ring that the page shows.
//!
//! ```text
//!  Ledger::take_changes, four times a second ─┐
//!  the store, the upstream, a 401 ────────────┴─► Events ─► first of its kind: a line, an entry
//!                                                   └─ more within 5 s: one line with a count
//! ```
//!
//! **Invariants.** A storm is a line per bucket and five seconds, and few lines in all. No
//! credential is told, only the beginning of its hash; what comes from a client is escaped, cut,
//! and veiled where it looks like a token.

mod storms;
mod words;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior};
use tollway_core::outages::OutageEvent;
use tollway_upstream::budget::Change;

use crate::State;
use crate::credential::{CredentialId, Verdict};
use storms::Storms;
pub(super) use words::shown;

/// Entries that the page can show.
const RING_MAX: usize = 200;
/// How often ledgers are asked what changed.
const EVERY: Duration = Duration::from_millis(250);

/// Something that changed, as people are told of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Event {
    /// A few words of ours.
    pub(super) what: &'static str,
    pub(super) is_warning: bool,
    /// The beginning of its hash.
    pub(super) credential: Option<String>,
    pub(super) bucket: Option<String>,
    pub(super) route: Option<String>,
    pub(super) dimension: Option<String>,
    pub(super) scope: Option<&'static str>,
    pub(super) limit: Option<u64>,
    pub(super) before: Option<u64>,
    pub(super) window_ms: Option<u64>,
    pub(super) wait_ms: Option<u64>,
    pub(super) lasted_ms: Option<u64>,
    /// Calls that the store did not answer meanwhile.
    pub(super) unanswered: Option<u64>,
    pub(super) reason: Option<String>,
    /// How many times it happened since it was told last.
    pub(super) count: u64,
}

/// The last events, and the storms that are held back.
#[derive(Debug, Default)]
pub(super) struct Events(Mutex<Recent>);

#[derive(Debug, Default)]
struct Recent {
    ring: VecDeque<(u64, u64, Event)>,
    told: u64,
    storms: Storms,
    upstream_down: Option<Instant>,
}

impl Events {
    /// Tells of what changed in the budgets of a credential.
    pub(super) fn budgets(&self, credential: CredentialId, changes: &[Change]) {
        for change in changes {
            self.tell(words::of_change(credential, change), Instant::now());
        }
    }

    /// Tells of a credential that is not tried for a while because of its 401s, or is again.
    pub(super) fn verdict(&self, id: CredentialId, verdict: Option<Verdict>) {
        if let Some(verdict) = verdict {
            self.tell(words::of_verdict(id, verdict), Instant::now());
        }
    }

    /// Tells of the beginning or the end of an outage of the store.
    pub(super) fn store(&self, turn: &OutageEvent) {
        self.tell(words::of_outage(turn), Instant::now());
    }

    /// No connection to the upstream could be made.
    pub(super) fn upstream_failed(&self, reason: &str) {
        let now = Instant::now();
        let is_news = self.lock().upstream_down.replace(now).is_none();
        if is_news {
            let reason = Some(reason.to_owned());
            let event = Event { what: "upstream down", is_warning: true, ..Event::default() };
            self.tell(Event { reason, count: 1, ..event }, now);
        }
    }

    /// The upstream answered.
    pub(super) fn upstream_answered(&self) {
        let now = Instant::now();
        let Some(since) = self.lock().upstream_down.take() else { return };
        let lasted_ms = Some(words::millis(now - since));
        let event = Event { what: "upstream up again", lasted_ms, count: 1, ..Event::default() };
        self.tell(event, now);
    }

    /// Whether the upstream could be reached when it was last tried.
    pub(super) fn is_upstream_up(&self) -> bool {
        self.lock().upstream_down.is_none()
    }

    /// The last events, newest first.
    pub(super) fn recent(&self) -> Vec<Value> {
        let recent = self.lock();
        recent.ring.iter().rev().map(|(id, at_ms, event)| event.json(*id, *at_ms)).collect()
    }

    fn tell(&self, event: Event, now: Instant) {
        let mut recent = self.lock();
        if let Some(event) = recent.storms.admit(event, now) {
            recent.record(event);
        }
    }

    /// Tells of what was held back for long enough.
    fn flush(&self, now: Instant) {
        let mut recent = self.lock();
        for event in recent.storms.over(now) {
            recent.record(event);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recent {
    fn record(&mut self, event: Event) {
        event.log();
        self.told += 1;
        if self.ring.len() >= RING_MAX {
            self.ring.pop_front();
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.ring.push_back((self.told, words::millis(since), event));
    }
}

impl Event {
    /// One line; fields that are none are left out, and texts are escaped by the subscriber.
    fn log(&self) {
        macro_rules! emit {
            ($level:ident) => {
                tracing::$level!(
                    credential = self.credential.as_deref(),
                    bucket = self.bucket.as_deref(),
                    route = self.route.as_deref(),
                    dimension = self.dimension.as_deref(),
                    scope = self.scope,
                    limit = self.limit,
                    before = self.before,
                    window_ms = self.window_ms,
                    wait_ms = self.wait_ms,
                    lasted_ms = self.lasted_ms,
                    unanswered = self.unanswered,
                    reason = self.reason.as_deref(),
                    count = self.count,
                    "{}",
                    self.what
                )
            };
        }
        if self.is_warning { emit!(warn) } else { emit!(info) }
    }

    fn json(&self, id: u64, at_ms: u64) -> Value {
        json!({
            "id": id,
            "at_ms": at_ms,
            "what": self.what,
            "warning": self.is_warning,
            "credential": self.credential,
            "bucket": self.bucket,
            "route": self.route,
            "dimension": self.dimension,
            "scope": self.scope,
            "limit": self.limit,
            "before": self.before,
            "window_ms": self.window_ms,
            "wait_ms": self.wait_ms,
            "lasted_ms": self.lasted_ms,
            "unanswered": self.unanswered,
            "reason": self.reason,
            "count": self.count,
        })
    }
}

/// Asks all ledgers what changed, and tells of it, as long as the proxy lives.
pub(super) async fn watch(state: Arc<State>) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        gather(&state);
        state.events.flush(Instant::now());
    }
}

/// Takes what changed from all ledgers.
pub(super) fn gather(state: &State) {
    for (id, changes) in state.accounts.take_changes() {
        state.events.budgets(id, &changes);
    }
}

#[cfg(test)]
mod tests;
