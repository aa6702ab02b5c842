//! What operators ask: health, readiness, metrics, top keys, reload, the OpenAPI document.
//!
//! `/healthz` says that the process runs, `/readyz` that it wants work: not while it drains. A
//! refused reload does not make it unready, since the old rules still hold, but shows in the
//! detail. Nor does a store that is gone: policies say what is answered then, and a store that all
//! nodes share would take all of them from the balancer at once.

use std::sync::Arc;

use serde_json::json;

use super::problem::Trouble;
use super::reply::Reply;
use super::request::Request;
use crate::auth::Role;
use crate::metrics::Exposition;
use crate::pressure;
use crate::process;
use crate::reload;
use crate::service::Service;
use crate::top::{Ranked, Ranking};
use crate::worker::Worker;

const OPENAPI: &str = include_str!("../../openapi.json");
const TOP_DEFAULT: usize = 20;
const TOP_MAX: usize = 100;
const TEXT: &str = "text/plain; charset=utf-8";

/// The method and role that a path needs; `None` if there is nothing there. Probes need no role.
pub(super) fn needs(path: &str) -> Option<(&'static str, Option<Role>)> {
    Some(match path {
        "/healthz" | "/health" | "/healthcheck" | "/readyz" | "/openapi.json" => ("GET", None),
        "/metrics" => ("GET", Some(Role::Read)),
        "/admin/top" | "/admin/rules" => ("GET", Some(Role::Admin)),
        "/admin/reload" => ("POST", Some(Role::Admin)),
        _ => return None,
    })
}

/// Whether whoever asks only wants to know if the process lives and wants work.
pub(super) fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/health" | "/healthcheck" | "/readyz")
}

/// Answers for one of the paths.
pub(super) async fn answer(
    worker: &Worker,
    path: &str,
    request: &Request<'_>,
    reply: &mut Reply,
) -> Result<(), Trouble> {
    let service = &worker.service;
    match path {
        "/readyz" => readiness(service, request, reply),
        "/openapi.json" => reply.set_constant(OPENAPI.as_bytes()),
        "/metrics" => {
            reply.content_type = Exposition::CONTENT_TYPE;
            reply.body.extend_from_slice(exposition(service).as_bytes());
        }
        "/admin/top" => top(service, request, reply)?,
        "/admin/rules" => rules(service, reply),
        "/admin/reload" => {
            reload_apart(service).await.map_err(Trouble::Reload)?;
            reply.body.extend_from_slice(b"{\"reloaded\":true}");
        }
        _ => {
            reply.content_type = TEXT;
            reply.body.extend_from_slice(b"OK");
        }
    }
    Ok(())
}

/// Reloads on a thread of its own: a long file must not keep the connections of this worker waiting.
async fn reload_apart(service: &Arc<Service>) -> Result<(), String> {
    let service = Arc::clone(service);
    let reloaded = tokio::task::spawn_blocking(move || reload::reload(&service)).await;
    reloaded.unwrap_or_else(|error| Err(format!("the reload broke off: {error}")))
}

fn readiness(service: &Service, request: &Request<'_>, reply: &mut Reply) {
    let is_ready = !service.is_draining();
    let auth = service.auth();
    let may_read = auth.role_of_field(request.fields.field("authorization")).is_some();
    let stale = service.reload_error();
    reply.status = if is_ready { 200 } else { 503 };
    let body = json!({
        "ready": is_ready,
        "draining": service.is_draining(),
        "config": if stale.is_some() { "stale" } else { "current" },
        "config_error": stale.filter(|_| may_read),
        "queues": service.queues().map(|queues| if queues.health().is_full { "full" } else { "ok" }),
        "queue_store": service.queues().map(|queues| queues.outages().readiness(may_read)),
        "store": service.enforcer.outages().readiness(may_read),
    });
    reply.body.extend_from_slice(body.to_string().as_bytes());
}

fn top(service: &Service, request: &Request<'_>, reply: &mut Reply) -> Result<(), Trouble> {
    let wrong = || Trouble::Bad(format!("n must be 1 to {TOP_MAX}"));
    let most = match request.parameter("n") {
        Some(text) => text.parse().ok().filter(|n| (1..=TOP_MAX).contains(n)).ok_or_else(wrong)?,
        None => TOP_DEFAULT,
    };
    let (allowed, denied) = service.enforcer.top(most);
    let listed = |ranking: Ranking| -> Vec<_> {
        let entry = |Ranked { key, seen }: Ranked| {
            let key = key.escape_ascii().to_string();
            json!({"key": key, "rate_1m": seen.minute, "rate_5m": seen.five_minute_rate()})
        };
        ranking.into_iter().map(entry).collect()
    };
    let body = json!({
        "unit": "per minute",
        "allowed": listed(allowed),
        "denied": listed(denied),
    });
    reply.body.extend_from_slice(body.to_string().as_bytes());
    Ok(())
}

fn rules(service: &Service, reply: &mut Reply) {
    let rules = service.enforcer.rules();
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
    let body = json!({"policies": policies, "domains": domains, "shadow": rules.is_shadow()});
    reply.body.extend_from_slice(body.to_string().as_bytes());
}

fn exposition(service: &Service) -> String {
    let mut text = Exposition::default();
    text.family("tollway_build_info", "gauge", "The version that runs.");
    text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    text.family("tollway_draining", "gauge", "Whether the service is about to stop.");
    text.sample(&[], f64::from(u8::from(service.is_draining())));
    let help = "Whether the store answers; without it each policy's on_store_error does.";
    let labels = [("store", service.enforcer.store_name())];
    service.enforcer.outages().write(("tollway_store_up", help), &labels, &mut text);
    service.stale.write(&mut text);
    service.metrics().write(service.enforcer.store_name(), &mut text);
    text.family("tollway_held_bytes", "gauge", "Held for unfinished requests.");
    text.sample(&[], service.room().bytes() as f64);
    if let Some(memory) = service.enforcer.memory() {
        pressure::write(memory, service, &mut text);
    }
    if let Some(queues) = service.queues() {
        let health = queues.health();
        let help = "Whether the store of the queues answers.";
        queues.outages().write(("tollway_queue_store_up", help), &[], &mut text);
        let help = "Calls that the store of the queues did not answer.";
        text.family("tollway_queue_store_errors_total", "counter", help);
        text.sample(&[], health.failed_calls as f64);
        let help = "Whether the disk of the queues is full, so that new jobs are refused.";
        text.family("tollway_queue_store_full", "gauge", help);
        text.sample(&[], f64::from(u8::from(health.is_full)));
        let help = "Commits of the queue file that failed.";
        text.family("tollway_queue_commit_failures_total", "counter", help);
        text.sample(&[], health.failed_commits as f64);
    }
    process::write(&mut text);
    text.finish()
}
