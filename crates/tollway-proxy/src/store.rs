//! The store that the proxies of a fleet share, as operators are told of it.
//!
//! Without it each proxy keeps its part of the budgets by itself, so requests go on. When an outage
//! begins and ends is said in [`tollway_core::outages`]; log, metrics and `/readyz` all ask here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::MissedTickBehavior;
use tollway_core::outages::{Episode, OutageEvent, Outages};
use tollway_core::{Outage, Timestamp};

/// How often the store is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// What a store that is shared says of itself.
pub trait SharedStore: Send + Sync {
    /// The outage under way, if there is one.
    fn outage(&self) -> Option<Outage>;

    /// Calls since the start that it did not answer.
    fn failures(&self) -> u64;
}

/// A store that is looked at, and whether it is out.
pub(super) struct Watched {
    store: Arc<dyn SharedStore>,
    /// What it did not answer beside the budgets.
    others: AtomicU64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    outages: Outages,
    failures: u64,
}

impl Watched {
    pub(super) fn new(store: Arc<dyn SharedStore>) -> Self {
        Self { store, others: AtomicU64::new(0), seen: Mutex::default() }
    }

    /// The outage under way, if there is one.
    pub(super) fn current(&self) -> Option<Episode> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).outages.current().cloned()
    }

    /// Calls since the start that the store did not answer.
    pub(super) fn failures(&self) -> u64 {
        self.store.failures() + self.others.load(Ordering::Relaxed)
    }

    /// It did not answer something beside the budgets: the count of invalid requests.
    pub(super) fn failed(&self) {
        self.others.fetch_add(1, Ordering::Relaxed);
    }

    /// What `/readyz` says after its first word; why, only to whoever may know.
    pub(super) fn readiness(&self, tells_why: bool) -> String {
        match self.current() {
            None => "store up\n".to_owned(),
            Some(outage) => {
                let seconds = now().since(outage.since).as_secs();
                let reason = if tells_why { format!(": {}", outage.reason) } else { String::new() };
                format!("store down for {seconds} s{reason}\n")
            }
        }
    }

    /// Looks at the store now; what is to be told.
    fn look(&self, now: Timestamp) -> Option<OutageEvent> {
        let (told, failures) = (self.store.outage(), self.failures());
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let unanswered = failures.saturating_sub(std::mem::replace(&mut seen.failures, failures));
        let began = match unanswered {
            0 => None,
            _ => seen.outages.failed(|| told.clone(), unanswered, now),
        };
        let turn = seen.outages.look(told.as_ref(), now);
        began.or(turn)
    }
}

/// Looks at the store once a second, and tells of what has changed.
pub(super) async fn watch(watched: Arc<Watched>, tell: impl Fn(&OutageEvent) + Send) {
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        if let Some(turn) = watched.look(now()) {
            tell(&turn);
        }
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that is away, or not, and did not answer so often.
    #[derive(Default)]
    struct Told(Mutex<(Option<Outage>, u64)>);

    impl SharedStore for Told {
        fn outage(&self) -> Option<Outage> {
            self.0.lock().unwrap().0.clone()
        }

        fn failures(&self) -> u64 {
            self.0.lock().unwrap().1
        }
    }

    #[test]
    fn the_ends_of_outages_tell_of_every_failure_that_the_metric_counts() {
        let store = Arc::new(Told::default());
        let watched = Watched::new(Arc::clone(&store) as Arc<dyn SharedStore>);
        let gone = Outage { lasted: Duration::from_secs(1), reason: "gone".to_owned() };
        // Failures of the budgets, others, and whether the store says that it is away.
        let steps = [(0, 0, true), (3, 1, true), (3, 2, false), (3, 2, false), (3, 3, false)];
        let (mut told, mut others) = (0, 0);
        for (second, (failures, of_others, is_gone)) in steps.into_iter().enumerate() {
            *store.0.lock().unwrap() = (is_gone.then(|| gone.clone()), failures);
            (others..of_others).for_each(|_| watched.failed());
            others = of_others;
            let turn = watched.look(Timestamp::from_millis(second as u64 * 1_000));
            if let Some(OutageEvent::Ended(outage, _)) = turn {
                told += outage.unanswered;
            }
        }
        assert_eq!((told, watched.failures()), (5, 6), "the last outage is not over yet");
        if let Some(OutageEvent::Ended(outage, _)) = watched.look(Timestamp::from_millis(9_000)) {
            told += outage.unanswered;
        }
        assert_eq!(told, watched.failures());
    }
}
