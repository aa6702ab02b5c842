//! Units asked of a limit of descriptors, by what became of them: the counts that
//! envoyproxy/ratelimit keeps.
//!
//! Beside [`Tally`](super::Tally), which counts requests, these count units: a request may ask for
//! many. Nothing of a denied request is taken, so all of its units are over the limit, where
//! envoyproxy/ratelimit counts some as within it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use tollway_core::Decision;

use super::Exposition;

/// The counts of one limit, or of one series of values.
#[derive(Debug, Default)]
pub(crate) struct Hits([AtomicU64; Outcome::ALL.len()]);

tollway_core::named_enum! {
    /// What became of units, as envoyproxy/ratelimit calls it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Outcome {
        /// All that were asked.
        Total = "total_hits",
        /// Those of denied requests.
        Over = "over_limit",
        /// Those that were taken beyond four fifths of the limit.
        Near = "near_limit",
        /// Those of allowed requests.
        Within = "within_limit",
        /// Those that a limit on trial would have denied.
        Shadow = "shadow_mode",
    }
}

impl Hits {
    /// Counts the units of a request that was decided so; on trial, nothing of it is denied.
    pub(crate) fn count(&self, cost: u64, decision: &Decision, is_on_trial: bool) {
        self.add(Outcome::Total, cost);
        let snapshot = decision.snapshot();
        if !decision.is_allowed() {
            self.add(Outcome::Over, cost);
            self.add(Outcome::Shadow, if is_on_trial { cost } else { 0 });
            return;
        }
        self.add(Outcome::Within, cost);
        let used = snapshot.limit().saturating_sub(snapshot.remaining());
        let near_at = snapshot.limit() - snapshot.limit().div_ceil(5);
        self.add(Outcome::Near, cost.min(used.saturating_sub(near_at)));
    }

    /// How many there were.
    pub(crate) fn of(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize].load(Ordering::Relaxed)
    }

    fn add(&self, outcome: Outcome, units: u64) {
        if units > 0 {
            self.0[outcome as usize].fetch_add(units, Ordering::Relaxed);
        }
    }
}

/// Hits by domain and by the keys and values of a limit.
pub(crate) type NamedHits<'a> = [(&'a str, &'a str, &'a Hits)];

/// Writes them under names of our own.
pub(crate) fn write(hits: &NamedHits<'_>, text: &mut Exposition) {
    if hits.is_empty() {
        return;
    }
    let help = "Units asked of limits of descriptors, by what became of them.";
    text.family("tollway_descriptor_hits_total", "counter", help);
    for (domain, policy, hits) in hits {
        for outcome in Outcome::ALL {
            let labels = [("domain", *domain), ("policy", *policy), ("outcome", outcome.name())];
            text.sample(&labels, hits.of(outcome) as f64);
        }
    }
}

/// Writes them as envoyproxy/ratelimit's own mapping for Prometheus does: two keys at most, and
/// what differs below them added up.
pub(crate) fn write_as_ratelimit(hits: &NamedHits<'_>, text: &mut Exposition) {
    for outcome in Outcome::ALL {
        let mut sums: BTreeMap<(&str, &str, &str), u64> = BTreeMap::new();
        for (domain, policy, hits) in hits {
            let mut keys = policy.split('.');
            let name = (*domain, keys.next().unwrap_or_default(), keys.next().unwrap_or_default());
            *sums.entry(name).or_default() += hits.of(outcome);
        }
        let family = format!("ratelimit_service_rate_limit_{}", outcome.name());
        text.family(&family, "counter", "Units asked of a limit, as envoyproxy/ratelimit counts.");
        for ((domain, key1, key2), sum) in sums {
            let mut labels = vec![("domain", domain), ("key1", key1)];
            labels.extend((!key2.is_empty()).then_some(("key2", key2)));
            text.sample(&labels, sum as f64);
        }
    }
}

/// Writes a line for each, as `/stats` of envoyproxy/ratelimit names them.
pub(crate) fn lines(hits: &NamedHits<'_>) -> String {
    let mut lines = String::new();
    for (domain, policy, hits) in hits {
        for outcome in Outcome::ALL {
            let (name, count) = (outcome.name(), hits.of(outcome));
            lines += &format!("ratelimit.service.rate_limit.{domain}.{policy}.{name}: {count}\n");
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollway_core::{Retry, Snapshot};

    use super::*;

    #[test]
    fn units_are_counted_by_what_became_of_them() {
        let hits = Hits::default();
        let left = |remaining| Snapshot::new(10, remaining, Duration::ZERO, Duration::ZERO);
        let denied = Decision::Deny { snapshot: left(1), retry: Retry::Never };
        hits.count(7, &Decision::Allow(left(3)), false);
        hits.count(2, &Decision::Allow(left(1)), false);
        hits.count(4, &denied, false);
        hits.count(5, &denied, true);
        let counts = Outcome::ALL.map(|outcome| hits.of(outcome));
        assert_eq!(counts, [18, 9, 1, 9, 5]);
    }

    #[test]
    fn as_ratelimit_names_them_deeper_keys_are_added_up() {
        let (one, other) = (Hits::default(), Hits::default());
        let left = Snapshot::new(10, 9, Duration::ZERO, Duration::ZERO);
        one.count(1, &Decision::Allow(left), false);
        other.count(1, &Decision::Allow(left), false);
        let mut text = Exposition::default();
        write_as_ratelimit(&[("d", "a_1.b.c", &one), ("d", "a_1.b.e", &other)], &mut text);
        let text = text.finish();
        let line = r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="a_1",key2="b"} 2"#;
        assert!(text.lines().any(|found| found == line), "{text}");
    }
}
