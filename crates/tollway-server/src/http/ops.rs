//! What operators ask: health, readiness, metrics, top keys, reload, the OpenAPI document.
//!
//! `/healthz` says that the process runs, `/readyz` that it wants work: not while it drains, and
//! not before a control plane that it follows has pushed the first rules. A refused reload does not
//! make it unready, since the old rules still hold, but shows in the detail. Nor does a store that
//! is gone: policies say what is answered then, and a store that all nodes share would take all of
//! them from the balancer at once.

use std::sync::Arc;

use serde_json::json;

use super::problem::Trouble;
use super::ratelimit;
use super::request::Call;
use crate::metrics::{Exposition, hits};
use crate::pressure;
use crate::process;
use crate::queues::Queues;
use crate::service::Service;
use crate::top::{Names, list};

/// Written by hand; a test beside the routes compares the two.
pub(super) const OPENAPI: &str = include_str!("../../openapi.json");
const TOP_DEFAULT: usize = 20;
const TOP_MAX: usize = 100;
const TEXT: &str = "text/plain; charset=utf-8";

/// Whether whoever asks only wants to know if the process lives and wants work.
pub(super) fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/health" | "/healthcheck" | "/readyz")
}

/// `GET /healthz`.
pub(super) fn health(call: Call<'_>) -> Result<(), Trouble> {
    call.reply.content_type = TEXT;
    call.reply.body.extend_from_slice(b"OK");
    Ok(())
}

/// `GET /healthcheck`: where this stands in for envoyproxy/ratelimit, its answer.
pub(super) fn healthcheck(call: Call<'_>) -> Result<(), Trouble> {
    let service = call.service();
    if service.settings().ratelimit.is_some_and(|needs| !ratelimit::is_healthy(service, needs)) {
        call.reply.status = 500;
        return Ok(());
    }
    health(call)
}

/// `GET /rlconfig`.
pub(super) fn rlconfig(call: Call<'_>) -> Result<(), Trouble> {
    call.reply.content_type = TEXT;
    let rules = call.service().enforcer.rules();
    call.reply.body.extend_from_slice(ratelimit::configuration(&rules).as_bytes());
    Ok(())
}

/// `GET /stats`.
pub(super) fn stats(call: Call<'_>) -> Result<(), Trouble> {
    call.reply.content_type = TEXT;
    let lines = call.service().metrics().with_hits(hits::lines);
    call.reply.body.extend_from_slice(lines.as_bytes());
    Ok(())
}

/// `GET /openapi.json`.
pub(super) fn openapi(call: Call<'_>) -> Result<(), Trouble> {
    call.reply.set_constant(OPENAPI.as_bytes());
    Ok(())
}

/// `GET /metrics`.
pub(super) fn metrics(call: Call<'_>) -> Result<(), Trouble> {
    call.reply.content_type = Exposition::CONTENT_TYPE;
    call.reply.body.extend_from_slice(exposition(call.service()).as_bytes());
    Ok(())
}

/// `POST /admin/reload`: on a thread of its own, since a long file must not keep the connections of
/// this worker waiting.
pub(super) async fn reload(mut call: Call<'_>) -> Result<(), Trouble> {
    let service = Arc::clone(call.service());
    let reloaded = tokio::task::spawn_blocking(move || crate::reload::reload(&service)).await;
    reloaded
        .unwrap_or_else(|error| Err(format!("the reload broke off: {error}")))
        .map_err(Trouble::Reload)?;
    if let Some(queues) = call.service().queues() {
        queues.reloaded().await.map_err(Trouble::Reload)?;
    }
    call.write(&json!({"reloaded": true}))
}

/// The queues, unless nobody has named any.
fn used_queues(service: &Service) -> Option<&Queues> {
    service.queues().filter(|queues| queues.is_used())
}

/// `GET /readyz`.
pub(super) fn readiness(mut call: Call<'_>) -> Result<(), Trouble> {
    let service = call.service();
    let (is_ready, may_read) = (service.is_ready(), call.role().is_some());
    let stale = service.reload_error();
    let queues = used_queues(service);
    call.reply.status = if is_ready { 200 } else { 503 };
    call.write(&json!({
        "ready": is_ready,
        "draining": service.is_draining(),
        "config": if stale.is_some() { "stale" } else { "current" },
        "config_error": stale.filter(|_| may_read),
        "queues": queues.map(|queues| if queues.health().is_full { "full" } else { "ok" }),
        "queue_store": queues.map(|queues| queues.outages().readiness(may_read)),
        "store": service.enforcer.outages().readiness(may_read),
        "xds": service.xds().map(|xds| xds.status().json(may_read)),
    }))
}

/// `GET /admin/top`.
pub(super) fn top(mut call: Call<'_>) -> Result<(), Trouble> {
    let most = call.query_number("n", TOP_DEFAULT, 1..=TOP_MAX)?;
    let enforcer = &call.service().enforcer;
    let [allowed, denied] = enforcer.top(most);
    let names = Names::of_ranked(enforcer.metrics(), allowed.iter().chain(&denied));
    call.write(&json!({
        "unit": "per second",
        "windows_s": [60, 300],
        "denied": list(&denied, &names),
        "allowed": list(&allowed, &names),
    }))
}

/// `GET /admin/rules`.
pub(super) fn rules(mut call: Call<'_>) -> Result<(), Trouble> {
    let rules = call.service().enforcer.rules();
    let policies: Vec<_> = rules
        .rules()
        .iter()
        .map(|rule| {
            let algorithm = rule.policy().algorithm();
            let window_ms = algorithm.window().map(|(_, window)| window.as_millis() as u64);
            json!({
                "policy": rule.policy().name(),
                "limit": algorithm.limit(),
                "units": algorithm.window().map(|(units, _)| units),
                "window_ms": window_ms,
                "shadow": rule.options().shadow || rules.is_shadow(),
            })
        })
        .collect();
    let mut domains: Vec<&str> = rules.domains().map(|domain| domain.name()).collect();
    domains.sort_unstable();
    let xds = call.service().xds().map(|xds| {
        let mut overruled: Vec<&str> = rules.overruled().collect();
        overruled.sort_unstable();
        let mut told = xds.status().json(true);
        told["overruled"] = overruled.into();
        told
    });
    call.write(&json!({
        "policies": policies,
        "domains": domains,
        "shadow": rules.is_shadow(),
        "xds": xds,
    }))
}

fn exposition(service: &Service) -> String {
    let mut text = Exposition::default();
    text.family("tollway_build_info", "gauge", "The version that runs.");
    text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    let is_draining = f64::from(u8::from(service.is_draining()));
    text.gauge("tollway_draining", "Whether the service is about to stop.", is_draining);
    service.enforcer.write_store(&mut text);
    service.stale.write(&mut text);
    service.quota_streams().write(&mut text);
    service.metrics().write(service.enforcer.store_name(), &mut text);
    if service.settings().ratelimit.is_some() {
        ratelimit::write(service.metrics(), &mut text);
    }
    let held_bytes = service.room().bytes() as f64;
    text.gauge("tollway_held_bytes", "Held for unfinished requests.", held_bytes);
    if let Some(memory) = service.enforcer.memory() {
        pressure::write(memory, service, &mut text);
    }
    if let Some(durable) = service.enforcer.durable() {
        let health = durable.health();
        let help = "Keys of durable policies.";
        text.gauge("tollway_durable_keys", help, health.keys as f64);
        let help = "Whether the disk of durable counts is full, so that their charges are refused.";
        text.gauge("tollway_durable_full", help, f64::from(u8::from(health.is_full)));
        let help = "Commits of the file of durable counts, each with one sync for all who wait.";
        text.counter("tollway_durable_commits_total", help, health.commits);
        let help = "Commits of the file of durable counts that failed.";
        text.counter("tollway_durable_commit_failures_total", help, health.failed_commits);
    }
    if let Some(usage) = service.enforcer.shared_usage() {
        let help = "Requests whose usage is not in the store yet.";
        text.gauge("tollway_usage_waiting", help, usage.book().waiting() as f64);
        let help = "Units that will not be billed, because too much waited for the store.";
        text.counter("tollway_usage_lost_units_total", help, usage.book().lost());
    }
    if let Some(xds) = service.xds() {
        xds.status().write(&mut text);
    }
    if let Some(queues) = used_queues(service) {
        let health = queues.health();
        let help = "Whether the store of the queues answers.";
        queues.outages().write(("tollway_queue_store_up", help), &[], &mut text);
        let help = "Calls that the store of the queues did not answer.";
        text.counter("tollway_queue_store_errors_total", help, health.failed_calls);
        let help = "Whether the disk of the queues is full, so that new jobs are refused.";
        text.gauge("tollway_queue_store_full", help, f64::from(u8::from(health.is_full)));
        let help = "Commits of the queue file that failed.";
        text.counter("tollway_queue_commit_failures_total", help, health.failed_commits);
        queues.watch().write(&mut text);
    }
    process::write(&mut text);
    text.finish()
}
