//! What the service counts, and the text in which Prometheus reads it.
//!
//! Never a key as a label: a policy's name is chosen by the operator, a key by strangers. Counters
//! are plain atomics added to once per batch, so that counting costs a pipelined decision nothing.

pub(crate) mod hits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tollway_core::{ErrorKind, Timestamp};

use crate::fallback::Fallback;
use crate::front::Front;
use hits::{Hits, NamedHits};

pub use tollway_http::metrics::Counter;
pub(crate) use tollway_http::metrics::{BUCKETS, Bounds, Exposition};

/// Durations of decisions and of stores.
pub(crate) type Histogram = tollway_http::metrics::Histogram<DecisionBounds>;

/// From what a decision in memory takes to what a lost store takes.
#[derive(Debug)]
pub(crate) struct DecisionBounds;

impl Bounds for DecisionBounds {
    const NS: [u64; BUCKETS - 1] = [
        1_000,
        5_000,
        25_000,
        100_000,
        500_000,
        1_000_000,
        5_000_000,
        25_000_000,
        100_000_000,
        1_000_000_000,
    ];
}

/// Decisions of one policy.
#[derive(Debug, Default)]
pub struct Tally {
    /// Which of the tallies it is, from 1; 0 outside of [`Metrics`].
    pub(crate) number: u32,
    /// Requests allowed.
    pub allowed: Counter,
    /// Requests denied.
    pub(crate) denied: Counter,
    /// Requests that would have been denied, had the policy not been in shadow mode.
    pub(crate) shadow_denied: Counter,
    /// Requests allowed with less than a fifth of the limit left.
    pub(crate) near_limit: Counter,
    /// Requests allowed in the grace band of a soft limit.
    pub(crate) in_grace: Counter,
    /// Decisions made without the store.
    pub(crate) degraded: Degraded,
    /// Units, of limits of descriptors.
    pub(crate) hits: Option<Hits>,
}

/// How many names of values that clients have sent are told apart (`detailed_metric`,
/// `value_to_metric`). Beyond them, values are counted with their limit.
pub(crate) const SERIES_MAX: usize = 1_000;
/// A longer name is not told apart either.
const SERIES_NAME_BYTES_MAX: usize = 256;

impl Tally {
    fn new(number: u32, domain: &str) -> Self {
        let hits = (!domain.is_empty()).then(Hits::default);
        Self { number, hits, ..Self::default() }
    }
}

/// Decisions made without the store, by what was answered. Plain atomics: nobody is in a hurry for
/// a store that does not answer.
#[derive(Debug, Default)]
pub(crate) struct Degraded([AtomicU64; Fallback::ALL.len()]);

impl Degraded {
    /// Adds so many decisions.
    pub(crate) fn add(&self, fallback: Fallback, count: u64) {
        if count > 0 {
            self.0[fallback as usize].fetch_add(count, Ordering::Relaxed);
        }
    }

    /// The decisions of one kind.
    pub(crate) fn of(&self, fallback: Fallback) -> u64 {
        self.0[fallback as usize].load(Ordering::Relaxed)
    }

    /// All of them.
    pub(crate) fn get(&self) -> u64 {
        Fallback::ALL.into_iter().map(|fallback| self.of(fallback)).sum()
    }
}

/// What one front counts.
#[derive(Debug, Default)]
pub(crate) struct FrontCounts {
    /// Connections open now.
    pub(crate) open: AtomicI64,
    /// Connections accepted.
    pub(crate) accepted: Counter,
    /// Connections refused because there were too many.
    pub(crate) refused: Counter,
    /// Connections closed because the client was too slow.
    pub(crate) timed_out: Counter,
    /// Requests that were malformed or not permitted.
    pub(crate) rejected: Counter,
    /// Tokens that were wrong.
    pub(crate) wrong_tokens: Counter,
}

/// Everything the service counts.
#[derive(Debug, Default)]
pub struct Metrics {
    tallies: Mutex<BTreeMap<(String, String), Arc<Tally>>>,
    /// How many of them are for values that clients have sent.
    series: AtomicUsize,
    fronts: [FrontCounts; Front::ALL.len()],
    store_errors: [Counter; ErrorKind::ALL.len()],
    /// Time to decide one request, or one batch of pipelined requests.
    pub(crate) decision_seconds: Histogram,
    /// Time that a store outside this process took to answer.
    pub(crate) store_seconds: Histogram,
    /// Time to answer a call of Envoy's rate limit filter.
    pub(crate) rls_seconds: Histogram,
    /// Such calls that were malformed.
    pub(crate) rls_refused: Counter,
    /// Reloads that took effect.
    pub(crate) reloads: Counter,
    /// Reloads that were refused because the configuration was wrong.
    pub(crate) reloads_failed: Counter,
    reloaded_at_s: AtomicU64,
    /// How many tallies there have been: each has a number of its own.
    tallies_made: AtomicU32,
}

/// Tallies that no rule has any more and that are kept all the same, so that a rule that comes back
/// counts on. Whoever pushes rules may give them other names each time.
const UNUSED_TALLIES_MAX: usize = 10_000;

impl Metrics {
    /// The tally of a policy, the same for as long as the service runs, whatever is reloaded;
    /// `forget_unused` says until when.
    pub fn tally(&self, domain: &str, policy: &str) -> Arc<Tally> {
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Tally::new(self.next_number(), domain));
        Arc::clone(tallies.entry((domain.to_owned(), policy.to_owned())).or_insert_with(new))
    }

    fn next_number(&self) -> u32 {
        self.tallies_made.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// The tally of values that a client has sent, if there is still room for their name: there is
    /// for the first [`SERIES_MAX`]. Strangers choose values.
    pub(crate) fn series(&self, domain: &str, name: &str) -> Option<Arc<Tally>> {
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (domain.to_owned(), name.to_owned());
        if let Some(known) = tallies.get(&key) {
            return Some(Arc::clone(known));
        }
        // The lock is held, so nobody else adds one meanwhile.
        let series = self.series.load(Ordering::Relaxed);
        if series >= SERIES_MAX || name.len() > SERIES_NAME_BYTES_MAX {
            return None;
        }
        self.series.store(series + 1, Ordering::Relaxed);
        let tally = Arc::new(Tally::new(self.next_number(), domain));
        tallies.insert(key, Arc::clone(&tally));
        Some(tally)
    }

    /// Shows the units of all limits of descriptors.
    pub(crate) fn with_hits<T>(&self, show: impl FnOnce(&NamedHits<'_>) -> T) -> T {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let named = tallies.iter().filter_map(|((domain, policy), tally)| {
            Some((domain.as_str(), policy.as_str(), tally.hits.as_ref()?))
        });
        show(&named.collect::<Vec<_>>())
    }

    /// Forgets the tallies that nothing counts in any more, once they are many.
    pub(crate) fn forget_unused(&self) {
        let mut tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let is_used = |tally: &Arc<Tally>| Arc::strong_count(tally) > 1;
        let unused = tallies.values().filter(|tally| !is_used(tally)).count();
        if unused > UNUSED_TALLIES_MAX {
            tallies.retain(|_, tally| is_used(tally));
        }
    }

    /// Domain and policy of the tallies with these numbers.
    pub(crate) fn names(&self, numbers: &BTreeSet<u32>) -> BTreeMap<u32, (String, String)> {
        let mut names = BTreeMap::new();
        self.each_tally(|name, tally| {
            if numbers.contains(&tally.number) {
                names.insert(tally.number, name.clone());
            }
        });
        names
    }

    /// Shows every tally, by domain and policy.
    pub(crate) fn each_tally(&self, mut show: impl FnMut(&(String, String), &Tally)) {
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        tallies.iter().for_each(|(name, tally)| show(name, tally));
    }

    /// Failures of the store, of every kind.
    pub(crate) fn store_error_count(&self) -> u64 {
        self.store_errors.iter().map(Counter::get).sum()
    }

    /// What a front counts.
    pub(crate) const fn front(&self, front: Front) -> &FrontCounts {
        &self.fronts[front as usize]
    }

    /// Counts a failure of the store.
    pub(crate) fn store_error(&self, kind: ErrorKind) {
        self.store_errors[kind as usize].add(1);
    }

    /// Notes a reload that took effect.
    pub(crate) fn reloaded(&self, now: Timestamp) {
        self.reloads.add(1);
        self.reloaded_at_s.store(now.as_nanos() / 1_000_000_000, Ordering::Relaxed);
    }

    /// Writes every count as Prometheus text, except what only the service knows; `store` is the
    /// store's label.
    pub(crate) fn write(&self, store: &str, text: &mut Exposition) {
        self.write_decisions(text);
        self.with_hits(|hits| hits::write(hits, text));
        self.write_fronts(text);
        text.family(
            "tollway_store_errors_total",
            "counter",
            "Calls that the store did not answer.",
        );
        for (kind, errors) in ErrorKind::ALL.into_iter().zip(&self.store_errors) {
            let labels = [("store", store), ("kind", kind.name())];
            text.sample(&labels, errors.get() as f64);
        }
        let help = "Time that a store outside the process took to answer.";
        text.family("tollway_store_duration_seconds", "histogram", help);
        self.store_seconds.write(&[("store", store)], text);
        text.family("tollway_config_reloads_total", "counter", "Reloads by result.");
        text.sample(&[("result", "ok")], self.reloads.get() as f64);
        text.sample(&[("result", "refused")], self.reloads_failed.get() as f64);
        let reloaded_at_s = self.reloaded_at_s.load(Ordering::Relaxed);
        text.gauge(
            "tollway_config_last_reload_success_timestamp_seconds",
            "When the configuration in force was loaded.",
            reloaded_at_s as f64,
        );
        let help = "Time to decide one request or one pipelined batch.";
        text.family("tollway_decision_duration_seconds", "histogram", help);
        self.decision_seconds.write(&[], text);
    }

    fn write_decisions(&self, text: &mut Exposition) {
        type Pick = fn(&Tally) -> &Counter;
        let decisions: [(&str, Pick); 3] = [
            ("allow", |tally| &tally.allowed),
            ("deny", |tally| &tally.denied),
            ("shadow_deny", |tally| &tally.shadow_denied),
        ];
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        text.family("tollway_decisions_total", "counter", "Decisions by policy.");
        for ((domain, policy), tally) in &*tallies {
            for (decision, pick) in decisions {
                let labels = [("domain", &**domain), ("policy", policy), ("decision", decision)];
                text.sample(&labels, pick(tally).get() as f64);
            }
        }
        let help = "Allowed with under a fifth left.";
        text.family("tollway_near_limit_total", "counter", help);
        for ((domain, policy), tally) in &*tallies {
            let labels = [("domain", &**domain), ("policy", policy)];
            text.sample(&labels, tally.near_limit.get() as f64);
        }
        let help = "Allowed in the grace band of a soft limit.";
        text.family("tollway_in_grace_total", "counter", help);
        for ((domain, policy), tally) in &*tallies {
            let labels = [("domain", &**domain), ("policy", policy)];
            text.sample(&labels, tally.in_grace.get() as f64);
        }
        let help = "Decisions made without the store, by answer.";
        text.family("tollway_degraded_decisions_total", "counter", help);
        for ((domain, policy), tally) in &*tallies {
            for fallback in Fallback::ALL {
                let answer = ("answer", fallback.name());
                let labels = [("domain", &**domain), ("policy", policy), answer];
                text.sample(&labels, tally.degraded.of(fallback) as f64);
            }
        }
    }

    fn write_fronts(&self, text: &mut Exposition) {
        type Pick = fn(&FrontCounts) -> &Counter;
        let families: [(&str, &str, Pick); 5] = [
            ("tollway_connections_total", "Connections accepted.", |front| &front.accepted),
            ("tollway_connections_refused_total", "Over the limit.", |front| &front.refused),
            ("tollway_connections_timed_out_total", "Client too slow.", |front| &front.timed_out),
            ("tollway_requests_rejected_total", "Malformed or forbidden.", |front| &front.rejected),
            ("tollway_wrong_tokens_total", "Tokens that nobody knows.", |front| {
                &front.wrong_tokens
            }),
        ];
        text.family("tollway_connections", "gauge", "Connections open now.");
        for front in Front::ALL {
            let open = self.front(front).open.load(Ordering::Relaxed);
            text.sample(&[("front", front.name())], open as f64);
        }
        for (name, help, pick) in families {
            text.family(name, "counter", help);
            for front in Front::ALL {
                text.sample(&[("front", front.name())], pick(self.front(front)).get() as f64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_without_rules_are_forgotten_once_they_are_many() {
        let metrics = Metrics::default();
        let used = metrics.tally("edge", "used");
        used.allowed.add(1);
        let count = || metrics.tallies.lock().unwrap().len();
        for push in 0..3 {
            for rule in 0..UNUSED_TALLIES_MAX / 2 {
                metrics.tally("edge", &format!("{push}.{rule}"));
            }
            metrics.forget_unused();
        }
        assert_eq!(count(), 1, "all but the one that is used");
        let numbers = [metrics.tally("", "a").number, metrics.tally("", "b").number];
        assert!(used.number < numbers[0] && numbers[0] < numbers[1], "{numbers:?}");
        assert_eq!(metrics.tally("edge", "used").allowed.get(), 1);
    }

    #[test]
    fn names_that_clients_choose_have_a_bound() {
        let metrics = Metrics::default();
        let rule = metrics.tally("edge", "route");
        for value in 0..SERIES_MAX {
            assert!(metrics.series("edge", &format!("route_{value}")).is_some());
        }
        assert!(metrics.series("edge", "route_one-more").is_none());
        assert!(metrics.series("edge", "route_7").is_some(), "one that is known");
        let same = metrics.series("edge", "route").unwrap();
        assert!(Arc::ptr_eq(&rule, &same), "a rule's own name is no new one");
        let fresh = Metrics::default();
        assert!(fresh.series("edge", &"x".repeat(SERIES_NAME_BYTES_MAX + 1)).is_none());
    }

    #[test]
    fn counts_come_out_by_policy_and_decision() {
        let metrics = Metrics::default();
        metrics.tally("", "api").denied.add(3);
        metrics.tally("", "api").allowed.add(1);
        metrics.store_error(ErrorKind::Unknown);
        let mut text = Exposition::default();
        metrics.write("memory", &mut text);
        let text = text.finish();
        for line in [
            r#"tollway_decisions_total{domain="",policy="api",decision="deny"} 3"#,
            r#"tollway_decisions_total{domain="",policy="api",decision="allow"} 1"#,
            r#"tollway_store_errors_total{store="memory",kind="unknown"} 1"#,
            r#"tollway_store_duration_seconds_count{store="memory"} 0"#,
            "# TYPE tollway_decision_duration_seconds histogram",
            r#"tollway_decision_duration_seconds_bucket{le="+Inf"} 0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
