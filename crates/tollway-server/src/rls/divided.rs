//! The limit of a bucket that a gateway enforces by itself.

use std::sync::Arc;

use tollway_core::{Algorithm, Quota};

use crate::descriptors::Limit;
use crate::metrics::Tally;
use crate::rules::Rules;

/// How a bucket is limited.
pub(crate) enum Divided {
    /// By portions of a quota, counted under a key.
    Quota { key: Vec<u8>, quota: Quota },
    /// Not at all, or nothing passes.
    Blanket { allows: bool },
}

/// What the rules say about a bucket.
pub(crate) struct Found {
    /// Its limit.
    pub divided: Divided,
    /// Where its requests are counted.
    pub tally: Option<Arc<Tally>>,
}

/// The limit of the bucket with these pairs, whose order means nothing. Without a rule it has none.
pub(crate) fn divided(rules: &Rules, domain: &str, pairs: &[(&str, &str)]) -> Found {
    let found = rules.domain(domain).and_then(|domain| domain.find_in_any_order(pairs));
    let Some(found) = found else {
        return Found { divided: Divided::Blanket { allows: true }, tally: None };
    };
    let Limit { policy, deny_all, shadow, tally, .. } = found.limit;
    let tally = Some(Arc::clone(tally));
    let allows = *shadow || rules.is_shadow();
    let divided = match policy.as_ref().filter(|_| !allows) {
        None => Divided::Blanket { allows: true },
        Some(_) if *deny_all => Divided::Blanket { allows: false },
        Some(policy) => match quota(policy.algorithm()) {
            Some(quota) => Divided::Quota { key: found.key, quota },
            // Whoever cannot be limited is not let through unlimited.
            None => Divided::Blanket { allows: false },
        },
    };
    Found { divided, tally }
}

/// The rate and the burst of an algorithm; `None` if it has no rate.
fn quota(algorithm: &Algorithm) -> Option<Quota> {
    if matches!(
        algorithm,
        Algorithm::Concurrency(_) | Algorithm::CalendarWindow(_) | Algorithm::Shares(_)
    ) {
        return None;
    }
    let (units, period) = algorithm.window()?;
    Quota::with_burst(units, period, algorithm.limit()).ok()
}
