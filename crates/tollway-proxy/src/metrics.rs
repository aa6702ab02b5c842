//! What the proxy counts, in Prometheus's text format. Labels are words of ours, never a client's;
//! what is counted by route and by credential is in `labelled`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollway_http::metrics::{BUCKETS, Bounds, Exposition, Histogram};
use tollway_upstream::profile::{Observation, Scope};

use crate::State;
use crate::refusal::Cause;

/// From what a free budget takes to what a long line of waiters does.
#[derive(Debug)]
struct WaitBounds;

impl Bounds for WaitBounds {
    const NS: [u64; BUCKETS - 1] = {
        const MS: u64 = 1_000_000;
        [
            MS,
            5 * MS,
            25 * MS,
            100 * MS,
            250 * MS,
            1_000 * MS,
            2_500 * MS,
            10_000 * MS,
            60_000 * MS,
            300_000 * MS,
        ]
    };
}

/// Every word of [`Cause::word`].
const CAUSES: [&str; 18] = [
    "bad-request",
    "cross-site",
    "no-page",
    "no-tunnel",
    "full",
    "deadline",
    "too-costly",
    "drained",
    "unavailable",
    "unauthorized",
    "missing",
    "guarded",
    "budget",
    "too-large",
    "no-connection",
    "broken",
    "late",
    "client-gone",
];
pub(super) const SCOPES: [&str; 4] = ["user", "shared", "global", "unsaid"];
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Sums since the start.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    responses: [AtomicU64; CLASSES.len()],
    refused: [AtomicU64; CAUSES.len()],
    limited: [AtomicU64; SCOPES.len()],
    pub(super) retries: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) invalid: AtomicU64,
    pub(super) store_errors: AtomicU64,
    waited: Histogram<WaitBounds>,
    answered: Histogram<WaitBounds>,
}

impl Metrics {
    /// Counts the head of an upstream's answer.
    pub(super) fn answered(&self, observation: &Observation, took: Duration) {
        let class = usize::from(observation.status / 100).clamp(1, CLASSES.len()) - 1;
        self.responses[class].fetch_add(1, Ordering::Relaxed);
        self.malformed.fetch_add(u64::from(observation.malformed), Ordering::Relaxed);
        self.invalid.fetch_add(u64::from(observation.invalid), Ordering::Relaxed);
        self.answered.observe(took);
        if observation.is_limited() {
            self.limited[scope_index(observation.scope)].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn waited(&self, wait: Duration) {
        self.waited.observe(wait);
    }

    /// Counts an answer of our own.
    pub(super) fn refused(&self, cause: &Cause) {
        if let Some(index) = CAUSES.iter().position(|word| *word == cause.word()) {
            self.refused[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a client that left while its request waited or was under way.
    pub(super) fn client_gone(&self) {
        self.refused[CAUSES.len() - 1].fetch_add(1, Ordering::Relaxed);
    }

    /// Refusals of the upstream and answers of our own, by their words.
    pub(super) fn refusals(&self) -> [Vec<(&'static str, u64)>; 2] {
        let told = |words: &[&'static str], counts: &[AtomicU64]| {
            let counts = counts.iter().map(|count| count.load(Ordering::Relaxed));
            words.iter().copied().zip(counts).filter(|(_, count)| *count > 0).collect()
        };
        [told(&SCOPES, &self.limited), told(&CAUSES, &self.refused)]
    }

    /// The text that Prometheus reads.
    pub(super) fn text(&self, state: &State) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut text = Exposition::default();
        let help = "Responses of the upstream, counted at their heads.";
        text.family("tollway_proxy_responses_total", "counter", help);
        by(&mut text, "class", &CLASSES, &self.responses);
        let help = "Requests without an answer of the upstream.";
        text.family("tollway_proxy_not_forwarded_total", "counter", help);
        by(&mut text, "cause", &CAUSES, &self.refused);
        let help = "Refusals of the upstream by a limit.";
        text.family("tollway_proxy_limited_total", "counter", help);
        by(&mut text, "scope", &SCOPES, &self.limited);
        let help = "Refused requests that were sent again.";
        text.counter("tollway_proxy_retries_total", help, count(&self.retries));
        let help = "Header fields of responses that could not be understood.";
        text.counter("tollway_proxy_malformed_fields_total", help, count(&self.malformed));
        let help = "Answers that count towards a ban.";
        text.counter("tollway_proxy_invalid_total", help, count(&self.invalid));
        let store = state.store.get();
        // Without a shared store: the file with the count of invalid requests.
        let unanswered = store.map_or_else(|| count(&self.store_errors), |store| store.failures());
        let help = "Calls that the store did not answer.";
        text.counter("tollway_proxy_store_errors_total", help, unanswered);
        if let Some(store) = store {
            let is_up = f64::from(u8::from(store.current().is_none()));
            let help = "Whether the store that proxies share answers.";
            text.gauge("tollway_proxy_store_up", help, is_up);
        }
        for (name, help, value) in [
            (
                "tollway_proxy_requests",
                "Requests at work or waiting.",
                state.room.requests() as f64,
            ),
            ("tollway_proxy_held_bytes", "Bytes that they hold.", state.room.bytes() as f64),
            ("tollway_proxy_credentials", "Credentials in use.", state.accounts.count() as f64),
            (
                "tollway_proxy_connections",
                "Open connections of clients.",
                state.connections() as f64,
            ),
        ] {
            text.gauge(name, help, value);
        }
        if let Some(guard) = &state.guard {
            let help = "Invalid requests left before a ban.";
            text.gauge("tollway_proxy_invalid_remaining", help, guard.remaining() as f64);
        }
        text.family("tollway_proxy_wait_seconds", "histogram", "Time in line.");
        self.waited.write(&[], &mut text);
        let help = "Time from dispatch to the answer's head.";
        text.family("tollway_proxy_upstream_seconds", "histogram", help);
        self.answered.write(&[], &mut text);
        let help = "Whether the upstream could be reached when it was last tried.";
        let is_up = f64::from(u8::from(state.events.is_upstream_up()));
        text.gauge("tollway_proxy_upstream_up", help, is_up);
        if let Some(models) = &state.models {
            models.spending().write(&mut text);
        }
        state.labelled.write(&mut text);
        text.finish()
    }
}

/// Where refusals of that scope are counted.
pub(super) fn scope_index(scope: Option<Scope>) -> usize {
    match scope {
        Some(Scope::User) => 0,
        Some(Scope::Shared) => 1,
        Some(Scope::Global) => 2,
        None => 3,
    }
}

fn by(text: &mut Exposition, label: &str, words: &[&str], values: &[AtomicU64]) {
    for (word, value) in words.iter().zip(values) {
        text.sample(&[(label, word)], value.load(Ordering::Relaxed) as f64);
    }
}
