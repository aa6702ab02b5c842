//! What the proxy counts, in Prometheus's text format. Labels are words of ours, never a client's.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::State;
use crate::refusal::Cause;
use tollway_upstream::profile::{Observation, Scope};

/// Upper bounds of durations, in milliseconds.
const BOUNDS_MS: [u64; 10] = [1, 5, 25, 100, 250, 1_000, 2_500, 10_000, 60_000, 300_000];
/// Every word of [`Cause::word`].
const CAUSES: [&str; 16] = [
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
    "no-connection",
    "broken",
    "late",
    "client-gone",
];
const SCOPES: [&str; 4] = ["user", "shared", "global", "unsaid"];
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
    waited: Histogram,
    answered: Histogram,
}

#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS_MS.len() + 1],
    sum_us: AtomicU64,
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
            let scope = match observation.scope {
                Some(Scope::User) => 0,
                Some(Scope::Shared) => 1,
                Some(Scope::Global) => 2,
                None => 3,
            };
            self.limited[scope].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn waited(&self, wait: Duration) {
        self.waited.observe(wait);
    }

    /// Counts an answer of our own.
    pub(super) fn refused(&self, cause: Cause) {
        if let Some(index) = CAUSES.iter().position(|word| *word == cause.word()) {
            self.refused[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a client that left while its request waited or was under way.
    pub(super) fn client_gone(&self) {
        self.refused[CAUSES.len() - 1].fetch_add(1, Ordering::Relaxed);
    }

    /// The text that Prometheus reads.
    pub(super) fn text(&self, state: &State) -> String {
        let mut text = Text::default();
        text.family("responses_total", "counter", "Heads of answers of the upstream.");
        text.by("class", &CLASSES, &self.responses);
        text.family(
            "not_forwarded_total",
            "counter",
            "Requests without an answer of the upstream.",
        );
        text.by("cause", &CAUSES, &self.refused);
        text.family("limited_total", "counter", "Refusals of the upstream by a limit.");
        text.by("scope", &SCOPES, &self.limited);
        for (name, help, value) in [
            ("retries_total", "Refused requests that were sent again.", &self.retries),
            ("malformed_fields_total", "Fields of answers that made no sense.", &self.malformed),
            ("invalid_total", "Answers that count towards a ban.", &self.invalid),
        ] {
            text.family(name, "counter", help);
            text.sample("", value.load(Ordering::Relaxed) as f64);
        }
        let store = state.store.get();
        let unanswered = store.map_or(0, |store| store.failures());
        text.family("store_errors_total", "counter", "Calls that the store did not answer.");
        text.sample("", (unanswered + self.store_errors.load(Ordering::Relaxed)) as f64);
        if let Some(store) = store {
            text.family("store_up", "gauge", "Whether the store that proxies share answers.");
            text.sample("", f64::from(u8::from(store.current().is_none())));
        }
        for (name, help, value) in [
            ("requests", "Requests at work or waiting.", state.room.requests() as f64),
            ("held_bytes", "Bytes that they hold.", state.room.bytes() as f64),
            ("credentials", "Credentials in use.", state.accounts.count() as f64),
            ("connections", "Open connections of clients.", state.connections() as f64),
        ] {
            text.family(name, "gauge", help);
            text.sample("", value);
        }
        if let Some(guard) = &state.guard {
            text.family("invalid_remaining", "gauge", "Invalid requests left before a ban.");
            text.sample("", guard.remaining() as f64);
        }
        text.family("wait_seconds", "histogram", "Time in line.");
        text.histogram(&self.waited);
        text.family("upstream_seconds", "histogram", "Time from dispatch to the answer's head.");
        text.histogram(&self.answered);
        text.out
    }
}

impl Histogram {
    fn observe(&self, duration: Duration) {
        let bucket = BOUNDS_MS.partition_point(|&bound| Duration::from_millis(bound) < duration);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.sum_us.fetch_add(micros, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Text {
    out: String,
    family: String,
}

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.family = format!("tollway_proxy_{name}");
        // Writing into a string cannot fail.
        let _ = writeln!(self.out, "# HELP {0} {help}\n# TYPE {0} {kind}", self.family);
    }

    fn sample(&mut self, rest: &str, value: f64) {
        let _ = writeln!(self.out, "{}{rest} {value}", self.family);
    }

    fn by(&mut self, label: &str, words: &[&str], values: &[AtomicU64]) {
        for (word, value) in words.iter().zip(values) {
            self.sample(&format!("{{{label}=\"{word}\"}}"), value.load(Ordering::Relaxed) as f64);
        }
    }

    fn histogram(&mut self, histogram: &Histogram) {
        let mut count = 0;
        for (index, bucket) in histogram.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            let bound = match BOUNDS_MS.get(index) {
                Some(millis) => (*millis as f64 / 1e3).to_string(),
                None => "+Inf".to_owned(),
            };
            self.sample(&format!("_bucket{{le=\"{bound}\"}}"), count as f64);
        }
        self.sample("_sum", histogram.sum_us.load(Ordering::Relaxed) as f64 / 1e6);
        self.sample("_count", count as f64);
    }
}
