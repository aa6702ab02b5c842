//! What an upstream's answer says about waiting: header fields to a wait for the whole group.

use std::time::Duration;

use tollway_core::Timestamp;
use tollway_core::fields::{Lines, Reading, read};
#[cfg(feature = "push")]
use tollway_upstream::profile::{Observation, Profile, Response};

use crate::Outcome;

/// How long to wait when an upstream refuses and does not say for how long.
pub const WAIT_UNSAID: Duration = Duration::from_secs(1);

/// How long a group must wait after a refused call, by the fields of the answer.
///
/// Any dialect that [`tollway_core::fields`] reads will do. Never longer than
/// [`Outcome::LIMITED_MAX`], and [`WAIT_UNSAID`] if the fields say nothing.
///
/// ```
/// use std::time::Duration;
/// use tollway_core::Timestamp;
/// use tollway_core::fields::Lines;
/// use tollway_queue::feedback;
///
/// let lines: Lines<'_> = [("Retry-After", &b"7"[..])].into_iter().collect();
/// assert_eq!(feedback::wait(&lines, Timestamp::MIN), Duration::from_secs(7));
/// ```
pub fn wait(lines: &Lines<'_>, now: Timestamp) -> Duration {
    wait_of(&read(lines, Duration::from_nanos(now.as_nanos()))).unwrap_or(WAIT_UNSAID)
}

/// How long a group must wait after any call, by what the answer said of limits that are spent;
/// `None` if it need not wait. For answers that were no refusal too: the last unit may be gone.
pub fn wait_of(reading: &Reading) -> Option<Duration> {
    let wait = reading.retry_after.or_else(|| wait_of_spent(reading))?;
    Some(wait.min(Outcome::LIMITED_MAX))
}

/// How long a group must wait after a call that was not refused: until a limit that is spent has a
/// unit again. `Retry-After` does not count, since a good answer says something else with it.
pub fn wait_of_spent(reading: &Reading) -> Option<Duration> {
    let spent = reading.limits.iter().filter(|limit| limit.remaining == Some(0));
    let resets = spent.filter_map(|limit| limit.more_after.or(limit.reset_after));
    resets.max().map(|wait| wait.min(Outcome::LIMITED_MAX))
}

/// How long a group must wait after a call that was refused with `status`, as the profile of that
/// name in `tollway-upstream` reads the answer's fields.
///
/// # Errors
///
/// If there is no such profile.
#[cfg(feature = "push")]
pub fn wait_by_profile(
    name: &str,
    status: u16,
    lines: &Lines<'_>,
    now: Timestamp,
) -> Result<Duration, crate::Error> {
    let profile = profile(name)?;
    let now = Duration::from_nanos(now.as_nanos());
    let observed = profile.read(&Response { status, lines, body: &[], now });
    Ok(wait_observed(&profile, &observed))
}

/// How long a group must wait after a call that was not refused, as the profile of that name reads
/// the answer's fields; `None` if it need not wait.
///
/// # Errors
///
/// If there is no such profile.
#[cfg(feature = "push")]
pub fn wait_of_spent_by_profile(
    name: &str,
    status: u16,
    lines: &Lines<'_>,
    now: Timestamp,
) -> Result<Option<Duration>, crate::Error> {
    let now = Duration::from_nanos(now.as_nanos());
    let observed = profile(name)?.read(&Response { status, lines, body: &[], now });
    Ok(wait_observed_spent(&observed))
}

/// A profile that is shipped, by name.
#[cfg(feature = "push")]
pub(crate) fn profile(name: &str) -> Result<std::sync::Arc<Profile>, crate::Error> {
    Profile::builtin(name).ok_or_else(|| {
        let known = Profile::builtins().join(", ");
        crate::Error::invalid(format!("no profile is called {name:?}; expected one of {known}"))
    })
}

/// How long a group must wait after a refused call, by what a profile of its upstream read in the
/// answer: what is said of trying again, or of limits that are spent, or what the profile supposes.
#[cfg(feature = "push")]
pub fn wait_observed(profile: &Profile, observed: &Observation) -> Duration {
    let wait = observed.retry_after.or_else(|| wait_observed_spent(observed));
    wait.unwrap_or_else(|| profile.retry_unsaid()).min(Outcome::LIMITED_MAX)
}

/// How long a group must wait after a call that was not refused, by what a profile read in the
/// answer: until a limit that is spent has a unit again.
#[cfg(feature = "push")]
pub fn wait_observed_spent(observed: &Observation) -> Option<Duration> {
    let spent = observed.readings.iter().filter(|reading| reading.remaining == Some(0));
    let resets = spent.filter_map(|reading| reading.reset_after);
    resets.max().map(|wait| wait.min(Outcome::LIMITED_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_for(fields: &[(&str, &str)]) -> Duration {
        let lines: Lines<'_> =
            fields.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        wait(&lines, Timestamp::from_millis(1_700_000_000_000))
    }

    #[test]
    fn retry_after_goes_before_what_the_limits_say() {
        let fields =
            [("retry-after", "3"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "9")];
        assert_eq!(wait_for(&fields), Duration::from_secs(3));
    }

    #[test]
    fn of_several_spent_limits_the_longest_counts() {
        let fields = [("ratelimit", r#""a";r=0;t=5, "b";r=0;t=8, "c";r=1;t=60"#)];
        assert_eq!(wait_for(&fields), Duration::from_secs(8));
    }

    #[test]
    fn an_answer_that_says_nothing_costs_a_second() {
        assert_eq!(wait_for(&[("server", "x")]), WAIT_UNSAID);
    }

    #[test]
    fn a_wait_of_years_is_cut_to_a_day() {
        assert_eq!(wait_for(&[("retry-after", "99999999")]), Outcome::LIMITED_MAX);
    }
}
