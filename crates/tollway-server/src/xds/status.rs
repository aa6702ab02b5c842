//! What is known of the server that pushes rules, and of what it pushed: for `/readyz`, the rules,
//! the metrics and the page.

use std::sync::{Mutex, MutexGuard, PoisonError};

use http::Uri;
use serde_json::{Value, json};
use tollway_core::Timestamp;
use tracing::{debug, info, warn};

use super::push::visible;
use super::stream::Broken;
use crate::metrics::{Counter, Exposition};

/// Stands for bytes that were pushed.
pub(super) type Digest = [u8; 32];

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Status {
    state: Mutex<State>,
    connections: Counter,
    accepted: Counter,
    unchanged: Counter,
    refused: Counter,
    ignored: Counter,
    /// Streams that were ended because a response was too long, or was none.
    unreadable: Counter,
}

#[derive(Clone, Debug, Default)]
struct State {
    connected: bool,
    /// Since when it is, or is not.
    since: Option<Timestamp>,
    /// Why the last stream ended, or none began.
    ended: Option<String>,
    in_force: Option<Accepted>,
    refused: Option<Refused>,
}

/// The rules in force.
#[derive(Clone, Debug)]
pub(super) struct Accepted {
    pub version: String,
    pub domains: usize,
    pub resources: Digest,
    pub at: Timestamp,
}

/// What was pushed after them, and is not in force.
#[derive(Clone, Debug)]
struct Refused {
    version: String,
    reason: String,
    /// What stands for its resources, if they could be read.
    resources: Option<Digest>,
    at: Timestamp,
}

impl Status {
    /// A stream has begun.
    pub(super) fn connected(&self, server: &Uri, now: Timestamp) {
        self.connections.add(1);
        let mut state = self.lock();
        (state.connected, state.since, state.ended) = (true, Some(now), None);
        info!(%server, "xDS: connected");
    }

    /// A stream has ended, or none could begin. What is told again and again is logged once.
    pub(super) fn disconnected(&self, broken: &Broken, now: Timestamp) {
        self.unreadable.add(u64::from(broken.is_unreadable()));
        let reason = visible(&broken.to_string());
        let mut state = self.lock();
        if state.connected || state.ended.as_ref() != Some(&reason) {
            warn!(%reason, "xDS: no connection, the rules in force stay");
        } else {
            debug!(%reason, "xDS: no connection");
        }
        if state.connected || state.since.is_none() {
            state.since = Some(now);
        }
        (state.connected, state.ended) = (false, Some(reason));
    }

    /// Rules were put in force.
    pub(super) fn accepted(&self, accepted: Accepted) {
        self.accepted.add(1);
        let mut state = self.lock();
        (state.in_force, state.refused) = (Some(accepted), None);
    }

    /// The rules in force were pushed again, under this version.
    pub(super) fn unchanged(&self, version: String) {
        self.unchanged.add(1);
        let mut state = self.lock();
        state.refused = None;
        if let Some(accepted) = &mut state.in_force {
            accepted.version = version;
        }
    }

    /// What was pushed is wrong; whether that is news.
    pub(super) fn refused(
        &self,
        version: &str,
        reason: &str,
        resources: Option<Digest>,
        at: Timestamp,
    ) -> bool {
        self.refused.add(1);
        let (version, reason) = (version.to_owned(), reason.to_owned());
        let mut state = self.lock();
        let before = state.refused.as_ref().map(|it| (&it.version, &it.reason));
        let is_news = before != Some((&version, &reason));
        state.refused = Some(Refused { version, reason, resources, at });
        is_news
    }

    /// Something was pushed that was not asked for.
    pub(super) fn ignored(&self) {
        self.ignored.add(1);
    }

    /// Why these resources were refused the last time: they need not be read again.
    pub(super) fn refused_before(&self, resources: &Digest) -> Option<String> {
        let state = self.lock();
        let refused = state.refused.as_ref().filter(|it| it.resources == Some(*resources))?;
        Some(refused.reason.clone())
    }

    /// Whether the rules of these resources are in force.
    pub(super) fn has_resources(&self, resources: &Digest) -> bool {
        self.lock().in_force.as_ref().is_some_and(|accepted| accepted.resources == *resources)
    }

    /// The version in force.
    pub(super) fn version(&self) -> Option<String> {
        self.lock().in_force.as_ref().map(|accepted| accepted.version.clone())
    }

    /// Whether any rules were pushed and taken, be it none at all.
    pub(crate) fn has_rules(&self) -> bool {
        self.lock().in_force.is_some()
    }

    /// What `/readyz` and `/admin/rules` say; what the server said, only to whoever may know.
    pub(crate) fn json(&self, tells_why: bool) -> Value {
        let State { connected, since, ended, in_force, refused } = self.lock().clone();
        let accepted = in_force.as_ref();
        let refused = refused.map(|refused| {
            json!({
                "at_ms": millis(refused.at),
                "version": Some(&refused.version).filter(|_| tells_why),
                "reason": Some(&refused.reason).filter(|_| tells_why),
            })
        });
        json!({
            "connected": connected,
            "since_ms": since.map(millis),
            "last_error": ended.filter(|_| tells_why),
            "version": accepted.map(|accepted| visible(&accepted.version)).filter(|_| tells_why),
            "pushed_at_ms": accepted.map(|accepted| millis(accepted.at)),
            "domains": accepted.map(|accepted| accepted.domains),
            "refused": refused,
        })
    }

    /// What is wrong, for the banners of the page.
    pub(crate) fn troubles(&self) -> Vec<Value> {
        let State { connected, since, ended, in_force, refused } = self.lock().clone();
        let has_rules = in_force.is_some();
        let mut troubles = Vec::new();
        if let (false, Some(since), Some(reason)) = (connected, since, ended) {
            let since_ms = millis(since);
            troubles.push(json!({
                "kind": "xds_down", "since_ms": since_ms, "has_rules": has_rules, "reason": reason,
            }));
        }
        troubles.extend(refused.map(|refused| {
            let Refused { version, reason, .. } = refused;
            json!({"kind": "xds_refused", "version": version, "reason": reason})
        }));
        troubles
    }

    /// What is counted.
    pub(crate) fn write(&self, text: &mut Exposition) {
        let state = self.lock().clone();
        let help = "Whether the server that pushes rules is connected to.";
        text.gauge("tollway_xds_connected", help, f64::from(u8::from(state.connected)));
        let help = "Streams to the server that pushes rules.";
        text.counter("tollway_xds_streams_total", help, self.connections.get());
        let pushes = "tollway_xds_pushes_total";
        text.family(pushes, "counter", "Responses of the server that pushes rules, by result.");
        for (result, count) in [
            ("ok", &self.accepted),
            ("unchanged", &self.unchanged),
            ("refused", &self.refused),
            ("ignored", &self.ignored),
            ("unreadable", &self.unreadable),
        ] {
            text.sample(&[("result", result)], count.get() as f64);
        }
        let help = "Whether the last rules that were pushed are refused, and older ones in force.";
        let is_stale = f64::from(u8::from(state.refused.is_some()));
        text.gauge("tollway_xds_stale", help, is_stale);
        let at_s = state.in_force.map_or(0, |accepted| accepted.at.as_nanos() / 1_000_000_000);
        let help = "When the rules in force were pushed; 0 before the first.";
        text.gauge("tollway_xds_last_push_timestamp_seconds", help, at_s as f64);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const fn millis(at: Timestamp) -> u64 {
    at.as_nanos() / 1_000_000
}
