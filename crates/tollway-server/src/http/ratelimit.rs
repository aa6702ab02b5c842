//! What envoyproxy/ratelimit tells its operators, told as it does: health, rules, metrics.

use crate::metrics::{Exposition, Metrics, hits};
use crate::rls::limits::unit_and_requests;
use crate::rules::Rules;
use crate::service::Service;
use crate::settings::Ratelimit;

/// Whether its `/healthcheck` would be answered with 200.
pub(super) fn is_healthy(service: &Service, needs: Ratelimit) -> bool {
    let has_rules = || service.enforcer.rules().domains().next().is_some();
    let has_store = || service.enforcer.outages().is_up();
    !service.is_draining()
        && (!needs.needs_rules || has_rules())
        && (!needs.needs_store || has_store())
}

/// The limits in force, a line each, in the order of their names.
pub(super) fn configuration(rules: &Rules) -> String {
    let mut lines = Vec::new();
    for domain in rules.domains() {
        for limit in domain.limits() {
            let (requests, unit) = limit.policy.as_ref().map(unit_and_requests).unwrap_or_default();
            let requests = if limit.deny_all { 0 } else { requests };
            let (name, path, unit) = (domain.name(), &limit.path, unit.name());
            let (shadow, quota) = (limit.shadow, limit.quota_mode);
            lines.push(format!(
                "{name}.{path}: unit={unit} requests_per_unit={requests}, \
                 shadow_mode: {shadow}, quota_mode: {quota}\n"
            ));
        }
    }
    lines.sort_unstable();
    lines.concat()
}

/// Writes metrics under its names.
pub(super) fn write(metrics: &Metrics, text: &mut Exposition) {
    metrics.with_hits(|all| hits::write_as_ratelimit(all, text));
    let loads = [
        ("ratelimit_service_config_load_success", "Reloads that took effect.", &metrics.reloads),
        ("ratelimit_service_config_load_error", "Reloads refused.", &metrics.reloads_failed),
    ];
    for (name, help, count) in loads {
        text.counter(name, help, count.get());
    }
    let help = "Calls that were not answered.";
    text.family("ratelimit_service_should_rate_limit_error", "counter", help);
    text.sample(&[("err_type", "redis_error")], metrics.store_error_count() as f64);
    text.sample(&[("err_type", "service_error")], metrics.rls_refused.get() as f64);
    let method = [("grpc_method", "ShouldRateLimit")];
    text.family("ratelimit_service_total_requests", "counter", "Calls answered or refused.");
    text.sample(&method, metrics.rls_seconds.counts().iter().sum::<u64>() as f64);
    let help = "Time to answer a call.";
    text.family("ratelimit_service_response_time_seconds", "histogram", help);
    metrics.rls_seconds.write(&method, text);
}
