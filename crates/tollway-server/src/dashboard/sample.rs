//! One look at the counters per second, made into an event for everybody who watches.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::history::{History, Name, Three};
use crate::drain::Stop;
use crate::front::Front;
use crate::own_quotas::Keeper;
use crate::service::Service;
use crate::top::{Names, list};

const EVERY: Duration = Duration::from_secs(1);
/// Policies in an event; all of them are in the paged list.
const BUSIEST: usize = 12;
const TOP_KEYS: usize = 20;

/// One event, as bytes: what may be read, and what an administrator may see besides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tick {
    pub(super) number: u64,
    pub(super) reader: Bytes,
    pub(super) admin: Bytes,
    /// There will be no more.
    pub(super) last: bool,
}

/// Looks at the counters of `service` until told to stop.
pub(crate) async fn sample(service: Arc<Service>, mut stop: Stop) {
    let mut look = interval(EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.stopped() => break,
            _ = look.tick() => tick(&service),
        }
    }
    service.dashboard.ticks.send_modify(|tick| tick.last = true);
}

fn tick(service: &Service) {
    let totals = totals(service);
    let mut history = service.dashboard.history();
    let at_ms = service.clock().now().as_nanos() / 1_000_000;
    let latency = service.metrics().decision_seconds.counts();
    history.note(at_ms, totals.iter().map(|(name, totals, _)| (name, *totals)), latency);
    Keeper::look(service);
    let dashboard = &service.dashboard;
    let degraded = totals.iter().map(|(_, _, degraded)| degraded).sum();
    let mut watch = dashboard.troubles.lock().unwrap_or_else(PoisonError::into_inner);
    let troubles = watch.look(service, degraded);
    drop(watch);
    if dashboard.viewers.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut event = event(service, &history, degraded);
    drop(history);
    event["troubles"] = troubles.into();
    let reader = as_event(&event);
    let [allowed, denied] = service.enforcer.top(TOP_KEYS);
    let names = Names::of_ranked(service.metrics(), allowed.iter().chain(&denied));
    event["top"] = json!({"allowed": list(&allowed, &names), "denied": list(&denied, &names)});
    let admin = as_event(&event);
    dashboard.ticks.send_modify(|tick| {
        *tick = Tick { number: tick.number + 1, reader, admin, last: false };
    });
}

/// Totals of every policy, and how many of its decisions were made without the store.
fn totals(service: &Service) -> Vec<(Name, Three, u64)> {
    let mut totals = Vec::new();
    service.metrics().each_tally(|name, tally| {
        let counts = [tally.allowed.get(), tally.denied.get(), tally.shadow_denied.get()];
        totals.push((name.clone(), counts, tally.degraded.get()));
    });
    totals
}

fn event(service: &Service, history: &History, degraded: u64) -> Value {
    let point = history.last();
    let mut sums = Three::default();
    let mut busiest: Vec<(&Name, Three)> = Vec::new();
    for (name, series) in history.series() {
        for (sum, count) in sums.iter_mut().zip(series.totals) {
            *sum += count;
        }
        if series.recent != [0; 3] {
            busiest.push((name, series.recent));
        }
    }
    // Whoever is paged looks for denials.
    busiest.sort_by_key(|(name, [allowed, denied, shadow])| {
        (Reverse((*denied, *shadow, *allowed)), *name)
    });
    busiest.truncate(BUSIEST);
    let busiest: Vec<Value> = busiest
        .into_iter()
        .map(|((domain, policy), recent)| {
            json!({"domain": domain, "policy": policy, "recent": recent})
        })
        .collect();
    json!({
        "at_ms": point.at_ms,
        "recent": point.counts,
        "totals": sums,
        "latency_us": point.latency_us,
        "busiest": busiest,
        "store": store(service, degraded),
        "connections": connections(service),
        "config_error": service.reload_error(),
        "amended_keys": amended_keys(service),
        "queues": service.queues().and_then(|queues| queues.watch().sums()),
    })
}

fn store(service: &Service, degraded: u64) -> Value {
    let errors = service.metrics().store_error_count();
    match service.enforcer.memory() {
        Some(memory) => {
            let pressure = memory.pressure();
            json!({
                "kind": "memory",
                "keys": pressure.used,
                "keys_max": memory.capacity().keys,
                "forgotten": pressure.forgotten,
                "refused": pressure.refused,
                "errors": errors,
                "degraded": degraded,
            })
        }
        None => {
            let is_up = service.enforcer.outages().is_up();
            json!({"kind": "shared", "up": is_up, "errors": errors, "degraded": degraded})
        }
    }
}

fn connections(service: &Service) -> Value {
    let open = |front| service.metrics().front(front).open.load(Ordering::Relaxed);
    let [resp, http, grpc] = Front::ALL.map(open);
    json!({"resp": resp, "http": http, "grpc": grpc})
}

fn as_event(event: &Value) -> Bytes {
    Bytes::from(format!("event: tick\ndata: {event}\n\n"))
}

/// Bans and quotas of their own that keys have.
fn amended_keys(service: &Service) -> usize {
    let rules = service.enforcer.rules_at_hand();
    rules.own_quotas().count().0
}
