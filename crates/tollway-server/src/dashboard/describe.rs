//! Policies in words: what the page shows of a configuration.

use std::time::Duration;

use serde_json::{Value, json};
use tollway_core::fixed_window::FixedWindow;
use tollway_core::gcra::Gcra;
use tollway_core::sliding_window::SlidingWindow;
use tollway_core::{Algorithm, OnStoreError, Policy, Quota};

use crate::rules::{GateKey, Rule};

/// A rule as the page shows it.
pub(super) fn rule(rule: &Rule, shadow: bool) -> Value {
    let policy = rule.policy();
    let options = rule.options();
    json!({
        "algorithm": policy.algorithm().label(),
        "quota": policy.algorithm().to_string(),
        "limit": policy.algorithm().limit(),
        "on_store_error": match options.unavailable_on_store_error {
            true => "unavailable".to_owned(),
            false => on_store_error(policy.store_error()),
        },
        "shadow": options.shadow || shadow,
        "overrides": options.own.len(),
        "gate_key": match &options.gate_key {
            GateKey::Address => "address".to_owned(),
            GateKey::Header(name) => format!("header:{name}"),
        },
    })
}

fn on_store_error(answer: OnStoreError) -> String {
    match answer {
        OnStoreError::Allow { at_most } => format!("allow for at most {}", seconds(at_most)),
        OnStoreError::Local { shares } => format!("local, 1 of {shares}"),
        OnStoreError::AllowThenLocal { at_most, shares } => {
            format!("allow for at most {}, then local, 1 of {shares}", seconds(at_most))
        }
        _ => "deny".to_owned(),
    }
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

/// `policy` with other numbers: the same algorithm, if it is one that a quota describes.
pub(super) fn with_quota(policy: &Policy, quota: Quota) -> Result<Policy, String> {
    let algorithm: Algorithm = match policy.algorithm() {
        Algorithm::Gcra(_) => Gcra::new(quota).into(),
        Algorithm::FixedWindow(window) => FixedWindow::new(quota, window.anchor()).into(),
        Algorithm::SlidingWindow(window) => {
            let other = match window.is_exact() {
                true => SlidingWindow::exact(quota),
                false => SlidingWindow::new(quota, window.buckets()),
            };
            other.map_err(|error| error.to_string())?.into()
        }
        other => return Err(format!("a {} policy has no quota to replace", other.label())),
    };
    let own = Policy::new(policy.name(), algorithm).map_err(|error| error.to_string())?;
    let own = own.on_store_error(policy.store_error()).on_change(policy.change_rule());
    let own = match policy.durable_for() {
        Some(keep) => own.durable(keep),
        None => own,
    };
    Ok(own.reservations(policy.reservation_terms()))
}
