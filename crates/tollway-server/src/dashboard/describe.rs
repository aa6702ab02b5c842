//! Policies in words: what the page shows of a configuration.

use std::time::Duration;

use serde_json::{Value, json};
use tollway_core::OnStoreError;

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
