//! A policy with the numbers of one key: another quota, or more units.

use tollway_core::calendar_window::CalendarWindow;
use tollway_core::fixed_window::FixedWindow;
use tollway_core::gcra::Gcra;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Algorithm, Policy, Quota};

use crate::rules::Rules;

/// `policy` with this quota, which is a calendar window if the text is one: by the same algorithm,
/// if a quota describes that.
pub(super) fn with_quota(policy: &Policy, text: &str) -> Result<Policy, String> {
    check_is_plain(policy)?;
    if CalendarWindow::is_meant_by(text) {
        let window = tollway_zones::calendar_window(text).map_err(|error| {
            format!(
                "{text:?} is not a calendar window: {error}; \
                 expected for example 10000/month tz Europe/Berlin anchor 15"
            )
        })?;
        return remade(policy, window.into());
    }
    let quota = text.parse().map_err(|error| {
        format!("{text:?} is not a quota: {error}; expected for example 100/1m burst 20")
    })?;
    let algorithm = match policy.algorithm() {
        // What is no calendar window needs no calendar.
        Algorithm::CalendarWindow(_) => Gcra::new(quota).into(),
        other => of_quota(other, quota)?,
    };
    remade(policy, algorithm)
}

/// `policy` with so many units more at once, or in each window.
pub(super) fn with_gift(policy: &Policy, units: u64) -> Result<Policy, String> {
    check_is_plain(policy)?;
    let sum = |had: u64| had.saturating_add(units);
    let algorithm = match policy.algorithm() {
        Algorithm::CalendarWindow(window) => {
            let more = CalendarWindow::new(sum(window.units()), window.calendar())
                .and_then(|more| more.with_carry(window.carry()))
                .and_then(|more| more.with_grace(window.grace()));
            more.map_err(|error| error.to_string())?.into()
        }
        Algorithm::Gcra(gcra) => {
            let quota = gcra.quota();
            let more = Quota::with_burst(quota.units(), quota.period(), sum(quota.burst()));
            Gcra::new(more.map_err(|error| error.to_string())?).into()
        }
        other => {
            let (units, period) = other.window().ok_or_else(|| has_none(other))?;
            let more = Quota::new(sum(units), period).map_err(|error| error.to_string())?;
            of_quota(other, more)?
        }
    };
    remade(policy, algorithm)
}

/// Whether every part of a split key would have units.
pub(super) fn check_split(rules: &Rules, policy: &Policy) -> Result<(), String> {
    let split = rules.rule(policy.name()).and_then(|rule| rule.options().split);
    let is_too_small = |parts: &u32| policy.algorithm().share(*parts, *parts - 1).is_none();
    match split.map(|parts| u32::from(parts.get())).filter(is_too_small) {
        Some(parts) => Err(format!("the keys are split into {parts} parts, and one has no units")),
        None => Ok(()),
    }
}

fn check_is_plain(policy: &Policy) -> Result<(), String> {
    match policy.shares() {
        Some(_) => Err("the keys of this policy are owners: change its tree instead".to_owned()),
        None => Ok(()),
    }
}

fn of_quota(algorithm: &Algorithm, quota: Quota) -> Result<Algorithm, String> {
    Ok(match algorithm {
        Algorithm::Gcra(_) => Gcra::new(quota).into(),
        Algorithm::FixedWindow(window) => FixedWindow::new(quota, window.anchor()).into(),
        Algorithm::SlidingWindow(window) => {
            let other = match window.is_exact() {
                true => SlidingWindow::exact(quota),
                false => SlidingWindow::new(quota, window.buckets()),
            };
            other.map_err(|error| error.to_string())?.into()
        }
        other => return Err(has_none(other)),
    })
}

fn has_none(algorithm: &Algorithm) -> String {
    format!("a {} policy has no quota to replace", algorithm.label())
}

fn remade(policy: &Policy, algorithm: Algorithm) -> Result<Policy, String> {
    let own = Policy::new(policy.name(), algorithm).map_err(|error| error.to_string())?;
    let own = own.on_store_error(policy.store_error()).on_change(policy.change_rule());
    let own = match policy.durable_for() {
        Some(keep) => own.durable(keep),
        None => own,
    };
    Ok(own.reservations(policy.reservation_terms()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gift_is_more_at_once_and_leaves_the_rate_as_it_is() {
        let policy = |quota: &str| with_quota(&Policy::parse("p", "1/s").unwrap(), quota).unwrap();
        let more = |quota: &str| with_gift(&policy(quota), 50).unwrap().algorithm().to_string();
        assert_eq!(more("100/1m burst 20"), "100/1m burst 70");
        assert_eq!(more("100/month tz UTC"), policy("150/month tz UTC").algorithm().to_string());
        let window = FixedWindow::new("100/1m".parse().unwrap(), Default::default());
        let window = with_gift(&Policy::new("p", window).unwrap(), 50).unwrap();
        assert_eq!(window.algorithm().limit(), 150);
        assert!(with_gift(&policy("1/s"), u64::MAX).is_err());
    }
}
