//! `GET /dashboard/policies`: policies with their configuration and counts, filtered and paged.

use std::cmp::Reverse;

use serde_json::{Value, json};

use super::history::{Name, Series};
use super::{describe, reply, text};
use crate::adhoc::AdHoc;
use crate::enforcer::Enforcer;
use crate::http::{Call, Trouble, why_no_usage};
use crate::rules::Rules;

const PAGE: usize = 25;
const PAGE_MAX: usize = 100;
const OFFSET_MAX: usize = 10_000_000;

/// One page of policies.
pub(crate) fn list(call: Call<'_>) -> Result<(), Trouble> {
    let service = call.service();
    let offset = call.query_number("offset", 0, 0..=OFFSET_MAX)?;
    let limit = call.query_number("limit", PAGE, 0..=PAGE_MAX)?;
    let wanted = text(&call, "q")?.unwrap_or_default().to_ascii_lowercase();
    let exactly = text(&call, "policy")?;
    let rules = service.enforcer.rules();
    let history = service.dashboard.history();
    let is_shown = |name: &Name, series: &Series| {
        let (domain, policy) = name;
        let in_force = is_in_force(&rules, name);
        let matches = policy.to_ascii_lowercase().contains(&wanted)
            || (!domain.is_empty() && domain.to_ascii_lowercase().contains(&wanted));
        let is_meant = exactly.as_ref().is_none_or(|name| name == policy);
        is_meant && matches && (in_force || series.totals != [0; 3])
    };
    let mut shown: Vec<(&Name, &Series)> =
        history.series().filter(|(name, series)| is_shown(name, series)).collect();
    match call.request.parameter("sort").unwrap_or("name") {
        "name" | "" => {}
        "allowed" => shown.sort_by_key(|(_, series)| Reverse((series.recent[0], series.totals[0]))),
        "denied" => shown.sort_by_key(|(_, series)| Reverse((series.recent[1], series.totals[1]))),
        "shadow" => shown.sort_by_key(|(_, series)| Reverse((series.recent[2], series.totals[2]))),
        _ => return Err(Trouble::bad("sort must be name, allowed, denied or shadow")),
    }
    let page = shown.iter().skip(offset).take(limit);
    let row = |(name, series): &(&Name, &Series)| row(&service.enforcer, &rules, name, series);
    let policies: Vec<Value> = page.map(row).collect();
    reply(call, &json!({"matched": shown.len(), "offset": offset, "policies": policies}))
}

fn is_in_force(rules: &Rules, (domain, policy): &Name) -> bool {
    match domain.is_empty() {
        true => rules.rule(policy).is_some(),
        false => rules.domain(domain).is_some(),
    }
}

fn row(enforcer: &Enforcer, rules: &Rules, name: &Name, series: &Series) -> Value {
    let (domain, policy) = name;
    let config = rules.rule(policy).filter(|_| domain.is_empty());
    json!({
        "domain": domain,
        "policy": policy,
        "in_force": is_in_force(rules, name) || policy == AdHoc::NAME,
        "usage": config.is_some_and(|rule| why_no_usage(enforcer, rule.policy()).is_none()),
        "totals": series.totals,
        "recent": series.recent,
        "config": config.map(|rule| describe::rule(rule, rules.is_shadow())),
    })
}
