//! What a request really took, told after it was let go for an estimate.
//!
//! ```text
//!  claim: tokens=1200 ──► sent ──► head ──► body: "total_tokens": 830
//!         └───────────── 1200 count ──────────────┴── 830 count
//! ```
//!
//! An answer that tells what is left of a dimension has settled that dimension already: the
//! upstream's own count is better than the difference of two of ours.

use std::time::Duration;

use super::Claim;
use crate::profile::{Costs, Observation, Route, Usage};

/// What a request really took of the dimensions of which its answer did not tell what is left.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "it does nothing until a ledger is told of it"]
pub struct Correction {
    pub(crate) route: Route,
    pub(crate) estimated: Costs,
    pub(crate) used: Usage,
    pub(crate) left_ago: Duration,
}

impl Correction {
    /// The correction of a `claim` that left so long ago; none if there is nothing to correct.
    #[must_use]
    pub fn of(
        claim: &Claim,
        observation: &Observation,
        usage: &Usage,
        left_ago: Duration,
    ) -> Option<Self> {
        let mut used = *usage;
        for (index, (used, estimated)) in used.iter_mut().zip(claim.costs).enumerate() {
            if *used == Some(estimated) || is_settled(observation, index) {
                *used = None;
            }
        }
        let estimated = claim.costs;
        let is_needed = !claim.route.is_exempt() && used.iter().any(Option::is_some);
        is_needed.then(|| Self { route: claim.route.clone(), estimated, used, left_ago })
    }

    /// What a request was let go for, and what it took.
    pub(crate) fn units(&self, dimension: usize) -> Option<(u64, u64)> {
        let used = (*self.used.get(dimension)?)?;
        Some((u64::from(*self.estimated.get(dimension)?), u64::from(used)))
    }
}

/// Whether the answer told what is left of a dimension.
pub(crate) fn is_settled(observation: &Observation, dimension: usize) -> bool {
    let mut readings = observation.readings.iter();
    readings.any(|it| usize::from(it.dimension) == dimension && it.remaining.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Reading;

    #[test]
    fn what_the_answer_has_told_itself_is_not_corrected() {
        let claim = Claim::new(Route::new("POST", "/", "")).cost(1, 100).cost(2, 7);
        let mut usage = Usage::default();
        (usage[0], usage[1], usage[2]) = (Some(1), Some(80), Some(9));
        let mut answer = Observation::default();
        let found = Correction::of(&claim, &answer, &usage, Duration::ZERO).unwrap();
        assert_eq!((found.units(0), found.units(1)), (None, Some((100, 80))));
        let told = Reading { dimension: 1, remaining: Some(3), ..Reading::default() };
        answer.readings.push(told);
        let found = Correction::of(&claim, &answer, &usage, Duration::ZERO).unwrap();
        assert_eq!((found.units(1), found.units(2)), (None, Some((7, 9))));
        answer.readings.push(Reading { dimension: 2, ..answer.readings[0].clone() });
        assert_eq!(Correction::of(&claim, &answer, &usage, Duration::ZERO), None);
    }
}
