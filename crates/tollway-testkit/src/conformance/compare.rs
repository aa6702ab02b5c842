//! What is said against what must be: durations rounded up to what the subject can express.

use std::fmt;
use std::time::Duration;

use super::{Capabilities, Figure, Figures, Outcome, Wait};

/// An answer that was not as expected.
#[derive(Clone, Debug)]
pub struct Mismatch {
    /// The scenario.
    pub scenario: String,
    /// The step, counted from zero.
    pub step: usize,
    /// What was asked.
    pub asked: String,
    /// What was wrong with the answer.
    pub faults: Vec<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, step {}, {}", self.scenario, self.step, self.asked)?;
        self.faults.iter().try_for_each(|fault| write!(f, "\n    {fault}"))
    }
}

/// Every part of `said` that is not as `expected`, in words.
pub(crate) fn faults(
    expected: &Outcome,
    said: &Outcome,
    capabilities: &Capabilities,
) -> Vec<String> {
    let mut faults = Vec::new();
    differ(&mut faults, "allowed", expected.allowed, said.allowed);
    differ(&mut faults, "granted", expected.granted, said.granted);
    differ(&mut faults, "settlement", expected.settlement, said.settlement);
    if capabilities.says(Figure::Expires) {
        let rounded = expected.expires_after.map(|wait| round_up(wait, capabilities.resolution));
        differ(&mut faults, "expires", rounded, said.expires_after);
    }
    if capabilities.says(Figure::DeniedBy) {
        differ(&mut faults, "denied_by", expected.denied_by.as_ref(), said.denied_by.as_ref());
    }
    for (index, wanted) in expected.figures.iter().enumerate() {
        let figures = said.figures.get(index).copied().unwrap_or_default();
        compare_figures(&mut faults, index, wanted, &figures, capabilities);
    }
    if expected.allowed == Some(true) {
        faults.extend(denials(said));
    }
    faults
}

fn compare_figures(
    faults: &mut Vec<String>,
    index: usize,
    wanted: &Figures,
    said: &Figures,
    capabilities: &Capabilities,
) {
    let up = |wait: Duration| round_up(wait, capabilities.resolution);
    let wait = |wait| match wait {
        Wait::After(wait) => Wait::After(up(wait)),
        other => other,
    };
    let name = |figure: &str| format!("charge {index} {figure}");
    if capabilities.says(Figure::Limit) {
        differ(faults, &name("limit"), wanted.limit, said.limit);
    }
    if capabilities.says(Figure::Remaining) {
        differ(faults, &name("remaining"), wanted.remaining, said.remaining);
    }
    if capabilities.says(Figure::Retry) {
        differ(faults, &name("retry"), wanted.retry.map(wait), said.retry);
    }
    if capabilities.says(Figure::ResetAfter) {
        differ(faults, &name("reset"), wanted.reset_after.map(up), said.reset_after);
    }
    if capabilities.says(Figure::NextAfter) {
        differ(faults, &name("next"), wanted.next_after.map(up), said.next_after);
    }
}

fn denials(said: &Outcome) -> impl Iterator<Item = String> + '_ {
    said.figures.iter().enumerate().filter_map(|(index, figures)| match figures.retry {
        None | Some(Wait::No) => None,
        Some(wait) => Some(format!("charge {index} is denied ({wait:?}) in an allowed request")),
    })
}

fn differ<T: PartialEq + fmt::Debug>(
    faults: &mut Vec<String>,
    what: &str,
    expected: Option<T>,
    said: Option<T>,
) {
    let Some(expected) = expected else { return };
    match said {
        Some(said) if said == expected => {}
        Some(said) => faults.push(format!("{what}: expected {expected:?}, got {said:?}")),
        None => faults.push(format!("{what}: expected {expected:?}, got nothing")),
    }
}

/// The first multiple of `resolution` that is not before `wait`: told a moment too early, a client
/// would be denied again.
fn round_up(wait: Duration, resolution: Duration) -> Duration {
    let step = resolution.as_nanos().max(1);
    let nanos = wait.as_nanos().div_ceil(step).saturating_mul(step);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(millis: u64) -> Option<Wait> {
        Some(Wait::After(Duration::from_millis(millis)))
    }

    fn said(retry: Option<Wait>) -> Outcome {
        Outcome { figures: vec![Figures { retry, ..Figures::default() }], ..Outcome::default() }
    }

    #[test]
    fn a_coarse_subject_is_held_to_durations_rounded_up() {
        let seconds = Capabilities { resolution: Duration::from_secs(1), ..Capabilities::FULL };
        assert!(faults(&said(wait(1_001)), &said(wait(2_000)), &seconds).is_empty());
        assert_eq!(faults(&said(wait(1_001)), &said(wait(1_000)), &seconds).len(), 1);
        assert_eq!(faults(&said(wait(1_000)), &said(wait(2_000)), &seconds).len(), 1);
    }

    #[test]
    fn what_a_subject_cannot_say_is_not_compared_but_what_it_omits_is() {
        let mute = Capabilities { figures: &[], ..Capabilities::FULL };
        assert!(faults(&said(wait(1)), &said(None), &mute).is_empty());
        assert_eq!(faults(&said(wait(1)), &said(None), &Capabilities::FULL).len(), 1);
    }

    #[test]
    fn an_allowed_request_has_no_charge_that_denies() {
        let allowed = Outcome { allowed: Some(true), ..Outcome::default() };
        let contradiction = Outcome { allowed: Some(true), ..said(Some(Wait::Never)) };
        assert_eq!(faults(&allowed, &contradiction, &Capabilities::FULL).len(), 1);
    }
}
